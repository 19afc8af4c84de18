"""Each check of checkpoint formats fails for a format with one error."""

from __future__ import annotations

import importlib
import os

import pytest

from vitzoo import testing
from vitzoo.errors import CheckpointError
from vitzoo.formats import Format
from vitzoo.testing import check_checkpoint_format


class Prefixed(Format):
    """timm's format with `acme.` before each key. The classes below add one error each."""

    def matches(self, keys):
        return {"acme.cls_token", "acme.norm.weight"} <= set(keys)

    def to_model(self, tensors):
        return {k.removeprefix("acme."): t for k, t in tensors.items()}

    def from_model(self, tensors):
        return {f"acme.{k}": t for k, t in tensors.items()}


class ClaimsAll(Prefixed):
    def matches(self, keys):
        return True


class ClaimsTorchvision(Prefixed):
    def matches(self, keys):
        return super().matches(keys) or "conv_proj.weight" in keys


class ClaimsNothing(Prefixed):
    def matches(self, keys):
        return False


class LosesBits(Prefixed):
    def from_model(self, tensors):
        return {k: t.bfloat16() for k, t in super().from_model(tensors).items()}


class LosesTensor(Prefixed):
    def from_model(self, tensors):
        return {k: t for k, t in super().from_model(tensors).items() if "mlp.fc1.bias" not in k}


class InPlace(Prefixed):
    def from_model(self, tensors):
        for tensor in tensors.values():
            tensor.mul_(2)
        return super().from_model(tensors)

    def to_model(self, tensors):
        return {k: t / 2 for k, t in super().to_model(tensors).items()}


class LooksAtValues(Prefixed):
    def from_model(self, tensors):
        return {k: t for k, t in super().from_model(tensors).items() if bool(t.isfinite().all())}


class MakesData(Prefixed):
    def from_model(self, tensors):
        return {k: t.new_ones(t.shape, device="cpu") * 0 + (0 if t.is_meta else t)
                for k, t in super().from_model(tensors).items()}  # fmt: skip


class DropsUnknown(Prefixed):
    def to_model(self, tensors):
        return {k: t for k, t in super().to_model(tensors).items() if "strange" not in k}


class DropsSilently(Prefixed):
    def from_model(self, tensors):
        return {k: t for k, t in super().from_model(tensors).items() if "strange" not in k}


class RefusesWithoutName(Prefixed):
    def from_model(self, tensors):
        if "strange.key" in tensors:
            raise CheckpointError("no")
        return super().from_model(tensors)


class Evaluates(Prefixed):
    def matches(self, keys):
        for key in keys:
            if key.startswith("__import__('os').system"):
                compile(key, "key", "eval")
        return super().matches(keys)


class Opens(Prefixed):
    def to_model(self, tensors):
        for key in tensors:
            if key.startswith(".."):
                os.close(os.open("/dev/null", os.O_RDONLY))
        return super().to_model(tensors)


class OddOverrides(Prefixed):
    def overrides(self, config, keys):
        return {"block": {"norm_epsilon": 1e-6}}


class TrustsConfig(Prefixed):
    def overrides(self, config, keys):
        return {"block": {"norm_eps": float(config["layer_norm_eps"])}} if config else {}


FORMATS = testing.checks.formats


@pytest.mark.parametrize(
    ("check", "made", "words"),
    [
        (FORMATS.check_protocol, object(), "'object': it is no vitzoo.formats.Format"),
        (
            FORMATS.check_matches,
            ClaimsNothing("acme"),
            "does not match its own files (acme.cls_token",
        ),
        (FORMATS.check_matches, ClaimsAll("acme"), "matches [[]], which are keys of no format"),
        (
            FORMATS.check_matches,
            ClaimsTorchvision("acme"),
            "matches files of the core's format 'torchvision'",
        ),
        (
            FORMATS.check_matches,
            Format("timm", marks=["cls_token"]),
            "the core's format 'timm' also matches its files",
        ),
        (
            FORMATS.check_round_trip,
            LosesBits("acme"),
            "does not return the weights that from_model wrote: cls_token",
        ),
        (
            FORMATS.check_round_trip,
            LosesTensor("acme"),
            "from_model drops blocks.0.mlp.fc1.bias, blocks.1.mlp",
        ),
        (
            FORMATS.check_round_trip,
            InPlace("acme"),
            "from_model changes its argument: cls_token, pos_embed",
        ),
        (
            FORMATS.check_meta,
            LooksAtValues("acme"),
            "working on tensors of the meta device: RuntimeError",
        ),
        (
            FORMATS.check_meta,
            MakesData("acme"),
            "from_model makes data from tensors on meta: acme.cls_token",
        ),
        (
            FORMATS.check_unknown_keys,
            DropsUnknown("acme"),
            "to_model loses or changes ['strange.key']",
        ),
        (
            FORMATS.check_unknown_keys,
            DropsSilently("acme"),
            "from_model silently drops 'strange.key'",
        ),
        (
            FORMATS.check_unknown_keys,
            RefusesWithoutName("acme"),
            "refuses 'strange.key' without naming it: no",
        ),
        (
            FORMATS.check_executes_nothing,
            Evaluates("acme"),
            "keys that look like code cause compile",
        ),
        (
            FORMATS.check_executes_nothing,
            Opens("acme"),
            "keys that look like code cause open /dev/null",
        ),
        (
            FORMATS.check_overrides,
            OddOverrides("acme"),
            "overrides({}, ...) cannot be used: config overrides of the weights",
        ),
        (FORMATS.check_overrides, TrustsConfig("acme"), "raises KeyError: 'layer_norm_eps'"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_broken_format(blames, check, made, words):
    subject = FORMATS.FormatSubject
    blames("checkpoint format", made, subject, check, words, check_checkpoint_format)


def test_a_good_format_passes():
    check_checkpoint_format(Prefixed("acme"))
    check_checkpoint_format("timm")  # by its registered name


def test_a_format_of_other_networks_says_how_to_name_one(complaint):
    core = importlib.import_module("vitzoo.formats.google").big_vision
    said = complaint(FORMATS.check_round_trip, FORMATS.FormatSubject(core))
    assert "from_model refuses the weights of a small ViT" in said
    assert "the checkpoint format big_vision has no place" in said
    assert "describe one in the `networks` table" in said
