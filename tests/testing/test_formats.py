"""Each check of a checkpoint format fails for one that breaks just that."""

from __future__ import annotations

import importlib
import os

import pytest

from vitzoo import testing
from vitzoo.errors import CheckpointError
from vitzoo.formats.timm import TimmFormat
from vitzoo.testing import (
    check_checkpoint_format,
)


class Prefixed(TimmFormat):
    """A good one, to be broken: timm's with `acme.` in front."""

    def claims(self, keys):
        return {"acme.cls_token", "acme.norm.weight"} <= set(keys)

    def canonical(self, tensors):
        return {k.removeprefix("acme."): t for k, t in tensors.items()}

    def inverse(self, tensors):
        return {f"acme.{k}": t for k, t in tensors.items()}


class ClaimsAll(Prefixed):
    def claims(self, keys):
        return True


class ClaimsTorchvision(Prefixed):
    def claims(self, keys):
        return super().claims(keys) or "conv_proj.weight" in keys


class ClaimsNothing(Prefixed):
    def claims(self, keys):
        return False


class LosesBits(Prefixed):
    def inverse(self, tensors):
        return {k: t.bfloat16() for k, t in super().inverse(tensors).items()}


class LosesTensor(Prefixed):
    def inverse(self, tensors):
        return {k: t for k, t in super().inverse(tensors).items() if "mlp.fc1.bias" not in k}


class InPlace(Prefixed):
    def inverse(self, tensors):
        for tensor in tensors.values():
            tensor.mul_(2)
        return super().inverse(tensors)

    def canonical(self, tensors):
        return {k: t / 2 for k, t in super().canonical(tensors).items()}


class LooksAtValues(Prefixed):
    def inverse(self, tensors):
        return {k: t for k, t in super().inverse(tensors).items() if bool(t.isfinite().all())}


class MakesData(Prefixed):
    def inverse(self, tensors):
        return {k: t.new_ones(t.shape, device="cpu") * 0 + (0 if t.is_meta else t)
                for k, t in super().inverse(tensors).items()}  # fmt: skip


class DropsUnknown(Prefixed):
    def canonical(self, tensors):
        return {k: t for k, t in super().canonical(tensors).items() if "strange" not in k}


class DropsSilently(Prefixed):
    def inverse(self, tensors):
        return {k: t for k, t in super().inverse(tensors).items() if "strange" not in k}


class RefusesWithoutName(Prefixed):
    def inverse(self, tensors):
        if "strange.key" in tensors:
            raise CheckpointError("no")
        return super().inverse(tensors)


class Evaluates(Prefixed):
    def claims(self, keys):
        for key in keys:
            if key.startswith("__import__('os').system"):
                compile(key, "key", "eval")
        return super().claims(keys)


class Opens(Prefixed):
    def canonical(self, tensors):
        for key in tensors:
            if key.startswith(".."):
                os.close(os.open("/dev/null", os.O_RDONLY))
        return super().canonical(tensors)


class OddFacts(Prefixed):
    def facts(self, config, keys):
        return {"block": {"norm_epsilon": 1e-6}}


class TrustsConfig(Prefixed):
    def facts(self, config, keys):
        return {"block": {"norm_eps": float(config["layer_norm_eps"])}} if config else {}


FORMATS = testing.formats


@pytest.mark.parametrize(
    ("check", "made", "words"),
    [
        (FORMATS.check_protocol, object(), "'object' lacks claims, canonical, inverse, facts"),
        (FORMATS.check_claims, ClaimsNothing(), "does not claim its own files (acme.cls_token"),
        (FORMATS.check_claims, ClaimsAll(), "claims [[]], which are keys of no layout"),
        (
            FORMATS.check_claims,
            ClaimsTorchvision(),
            "claims files of the core's format 'torchvision'",
        ),
        (FORMATS.check_claims, TimmFormat(), "the core's format 'timm' claims its files too"),
        (FORMATS.check_round_trip, LosesBits(), "does not come back: cls_token differs"),
        (FORMATS.check_round_trip, LosesTensor(), "missing blocks.0.mlp.fc1.bias, blocks.1.mlp"),
        (
            FORMATS.check_round_trip,
            InPlace(),
            "inverse changes what it is given: cls_token differs",
        ),
        (
            FORMATS.check_meta,
            LooksAtValues(),
            "working on tensors of the meta device: RuntimeError",
        ),
        (FORMATS.check_meta, MakesData(), "inverse makes data out of none"),
        (FORMATS.check_unknown_keys, DropsUnknown(), "canonical loses or changes ['strange.key']"),
        (FORMATS.check_unknown_keys, DropsSilently(), "inverse silently drops 'strange.key'"),
        (
            FORMATS.check_unknown_keys,
            RefusesWithoutName(),
            "refuses a tensor without naming it: no",
        ),
        (FORMATS.check_executes_nothing, Evaluates(), "given keys that look like code: compile"),
        (FORMATS.check_executes_nothing, Opens(), "given keys that look like code: open /dev/null"),
        (FORMATS.check_facts, OddFacts(), "facts({}, ...) cannot be used: facts of the weights"),
        (FORMATS.check_facts, TrustsConfig(), "raises KeyError: 'layer_norm_eps'"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_a_broken_format(blames, check, made, words):
    subject = FORMATS.FormatSubject
    blames("checkpoint format", made, subject, check, words, check_checkpoint_format)


def test_a_good_format_passes():
    check_checkpoint_format(Prefixed())
    check_checkpoint_format("timm")  # by its registered name


def test_a_format_of_other_networks_says_how_to_name_one(complaint):
    core = importlib.import_module("vitzoo.formats.google").big_vision
    said = complaint(FORMATS.check_round_trip, FORMATS.FormatSubject(core))
    assert "inverse refuses the weights of a small ViT: the layout big_vision has no place" in said
    assert "say which in the `networks` table" in said
