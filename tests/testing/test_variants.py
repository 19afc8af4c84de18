"""Each check of variants and weights fails for an entry with one error."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import sys
from pathlib import Path
from unittest import SkipTest

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitzoo
from helpers import says
from internals import registry
from vitzoo import Preprocessing, Weights, testing
from vitzoo.errors import InvalidOption
from vitzoo.parts import Attention, Mlp

VARIANT, WEIGHTS = testing.checks.variants, testing.checks.weights


@pytest.mark.parametrize(
    ("changes", "check", "words"),
    [
        ([("params = 32613", "params = 32614")], VARIANT.check_params, "states params = 32614"),
        ([("depth = 3", "depth = 3\nblock = {qkv_bias = false}")], VARIANT.check_params, "32325"),
        ([("num_classes = 5", 'num_classes = 5\npatch_embed = {name = "conv", bias = "x"}')],
         VARIANT.check_params, "bias must be true or false"),
    ],
)  # fmt: skip
def test_a_broken_variant(acme, changes, check, words):
    acme(*changes)
    with pytest.raises((AssertionError, InvalidOption)) as caught:
        check(VARIANT.VariantSubject("acme/net"))
    assert words in str(caught.value)


def test_several_weights_without_a_default(complaint, acme):
    main = acme.manifest[acme.manifest.index("[variants.net.weights.main]") :]
    other = main.replace("weights.main", "weights.other")
    two = f"{main}\n{other}"
    acme((main, two))
    said = complaint(VARIANT.check_default, VARIANT.VariantSubject("acme/net"))
    says(said, "variant 'acme/net'", "none of its weights", "main, other", "`default = true`")
    acme((main, main + "\n" + other.replace("pin =", "default = true\npin =")))
    VARIANT.check_default(VARIANT.VariantSubject("acme/net"))


@pytest.mark.parametrize(
    ("body", "check", "words"),
    [
        ("nn.Linear(3, 5, device='cpu')", VARIANT.check_params, "these take memory: 0.weight, 0.b"),
        ("nn.Linear(2, 5)", VARIANT.check_runs, "fails when a small copy of it runs: RuntimeError"),
        ("nn.Flatten(), nn.Linear(3072, 7)", VARIANT.check_runs, "logits (2, 7), expected finite"),
        ("nn.Flatten(), nn.Linear(3072, 5).requires_grad_(False), nn.LayerNorm(5), Idle()",
         VARIANT.check_runs, "no gradient reaches 3.idle"),
    ],
)  # fmt: skip
def test_a_broken_builder(complaint, acme, body, check, words):
    idle = """

class Idle(nn.Module):
    def __init__(self):
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x
"""
    built = "nn.Flatten(), nn.AvgPool1d(16), nn.Linear(192, spec.num_classes)"
    acme((built, body), ("\n\ndef build", idle + "\n\ndef build"), ("params = 965", "params = 20"))
    said = complaint(check, VARIANT.VariantSubject("acme/own"))
    assert words in said
    assert "variant 'acme/own'" in said


DOCUMENTED = Path(__file__).parents[2] / "docs" / "hooks" / "variants.md"
ORIGINAL = "self.num_classes = spec.patch_size, spec.num_classes"


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        (ORIGINAL, ORIGINAL.replace("spec.num_classes", "7"), "num_classes is 7, that of"),
        ("return pooled if", "return features if", "pre_logits=True) gives (2, 64, 4, 4)"),
        ("else self.head(pooled)", "else pooled", "gives (2, 64), a call (2, 5)"),
        ('"num_chs": 64', '"num_chs": 32', "maps [(2, 32, 4, 4)], forward_intermediates gives [(2"),
        ('"reduction": side', '"reduction": 2 * side', "feature_info states maps [(2, 64, 2, 2)]"),
        ("**options", "indices", "forward_intermediates is called as backbone calls it: TypeError"),
        ("return self.head\n", "return None\n", "get_classifier() names no parameters"),
        ('{"stem": "patches"}', '{"stem": "stem"}', "group_matcher() names no parameters"),
    ],
)  # fmt: skip
def test_a_wrong_member_of_a_network_of_a_builder(complaint, acme, right, wrong, words):
    page = DOCUMENTED.read_text(encoding="utf-8")
    code = "class Mixer" + page.partition("class Mixer")[2].partition("\n```")[0]
    code = code.replace("return self.forward_head(", "return self.whole(")
    code += """

    def whole(self, features):
        return self.head(features.mean((2, 3)))


build = Mixer
"""
    head, _, _ = acme.parts.partition("def build")
    assert right in code
    acme((acme.parts, head + code), ("params = 965", "params = 12677"))
    VARIANT.check_network(VARIANT.VariantSubject("acme/own"))
    assert VARIANT.refused_by("acme/own") == ""
    sys.modules.pop("acme_vit.parts")
    acme((acme.parts, head + code.replace(right, wrong)), ("params = 965", "params = 12677"))
    said = complaint(VARIANT.check_network, VARIANT.VariantSubject("acme/own"))
    says(said, "variant 'acme/own'", words)


def test_the_members_that_a_network_of_a_builder_lacks(acme):
    acme()
    VARIANT.check_network(VARIANT.VariantSubject("acme/own"))  # none is wrong
    said = VARIANT.refused_by("acme/own")
    says(said, "'pooled' needs forward_features() and forward_head()")
    says(said, "vitzoo.backbone needs feature_info and", "until='head' needs get_classifier()")


def test_a_spec_that_does_not_come_back(complaint):
    class Fixed(VARIANT.VariantSubject):
        @property
        def row(self):
            spec = vitzoo.describe("vit_b16").spec
            part = vitzoo.PartSpec("conv", (("bias", ["a"]),))
            return dataclasses.replace(
                super().row, spec=dataclasses.replace(spec, patch_embed=part)
            )

    assert "TOML changes its spec" in complaint(VARIANT.check_spec, Fixed("vit_b16"))


def test_one_variant_of_each_architecture_is_built_in_the_worker(acme):
    deeper = acme.manifest.partition("[variants.own]")[0].partition("[variants.net]")[2]
    deeper = deeper.replace("depth = 3", "depth = 4").replace("params = 32613", "params = 41125")
    biased = deeper.replace("depth = 4", "depth = 4\nblock = {qkv_bias = false}")
    own = acme.manifest.partition("[variants.own]")[2].partition("[variants.net.weights")[0]
    more = f"[variants.deep]{deeper}[variants.plain]{biased}[variants.twin]{own}"
    more += f"[variants.other]{own.rstrip()}\npaper = 'arXiv:2010.11929'\n\n"
    acme(("[variants.net.weights.main]", f"{more}[variants.net.weights.main]"))
    names = [f"acme/{name}" for name in ("net", "own", "plain", "other")]
    assert sorted(VARIANT.one_of_each("acme")) == sorted(names)


def test_a_small_copy_that_does_not_fit_says_where_to_change_it(complaint):
    subject = VARIANT.VariantSubject("vit_b16", {"num_heads": 7})
    said = complaint(VARIANT.check_runs, subject)
    assert "variant 'vit_b16': a small copy cannot be built" in said
    assert "`networks` table" in said


def reads_the_weight(layer, x, _):
    qkv = F.linear(x, layer.qkv.weight, layer.qkv.bias)
    q, k, v = qkv.reshape(*x.shape[:2], 3, layer.num_heads, -1).permute(2, 0, 3, 1, 4)
    return q, k, v


def leaves_out_a_layer(mlp, x):
    return mlp.fc2(x)  # the hidden width of the small copy is that of the tokens


def stops_gradients(mlp, x):
    return mlp.fc2(mlp.act(mlp.fc1(x).detach()))


@pytest.mark.parametrize(
    ("part", "method", "broken", "words"),
    [
        (Attention, "_project", reads_the_weight, "no attribute 'weight'"),
        (Mlp, "forward", leaves_out_a_layer, "does not call blocks.0.mlp.fc1, blocks.1.mlp.fc1"),
        (
            Mlp,
            "forward",
            stops_gradients,
            "do not depend on blocks.0.mlp.fc1, blocks.1.mlp.fc1",
        ),
    ],
    ids=["weight", "call", "gradient"],
)
def test_a_network_that_passes_adapters_by(complaint, monkeypatch, part, method, broken, words):
    VARIANT.check_lora(VARIANT.VariantSubject("vit_digits"))
    monkeypatch.setattr(part, method, broken)
    said = complaint(VARIANT.check_lora, VARIANT.VariantSubject("vit_digits"))
    assert "variant 'vit_digits'" in said
    assert words in said
    assert "`self.qkv(x)`" in said


def test_a_part_with_the_name_of_the_head(complaint, monkeypatch):
    copy, images = VARIANT.small_copy(VARIANT.VariantSubject("vit_digits"))
    copy.patch_embed.forehead = torch.nn.Identity()
    monkeypatch.setattr(VARIANT, "small_copy", lambda _: (copy, images))
    said = complaint(VARIANT.check_lora, VARIANT.VariantSubject("vit_digits"))
    assert "patch_embed.forehead" in said
    assert "other names" in said


class Counting(nn.Module):
    """A pool that counts batches, with a layer beside its buffer or not."""

    norm_first = True

    def __init__(self, *, layer):
        super().__init__()
        self.register_buffer("batches", torch.zeros(()))
        if layer:
            self.layer = nn.Identity()

    def forward(self, tokens, *_):
        if self.training:
            self.batches += 1
        return tokens.mean(1)


@pytest.mark.parametrize("layer", [False, True])
def test_buffers_that_training_changes(complaint, monkeypatch, layer):
    """An adapter holds those of a module without others in it."""
    digits = VARIANT.VariantSubject("vit_digits")
    copy, images = VARIANT.small_copy(digits)
    copy.pool = Counting(layer=layer).eval()
    monkeypatch.setattr(VARIANT, "small_copy", lambda _: (copy, images))
    if not layer:
        VARIANT.check_lora(digits)
        assert copy.pool.batches == 1
        return
    said = complaint(VARIANT.check_lora, digits)
    assert "pool.batches" in said
    assert "adapter" in said


def test_a_network_of_another_class_is_not_adapted(complaint, acme, monkeypatch):
    acme()
    VARIANT.check_lora(VARIANT.VariantSubject("acme/own"))
    monkeypatch.setattr("vitzoo.apps.train.lora.lora", lambda _, **__: {})
    assert "adapts Sequential" in complaint(VARIANT.check_lora, VARIANT.VariantSubject("acme/own"))


GOOD = {
    "file": "model.safetensors",
    "repo": "acme/net",
    "revision": "ab" * 20,
    "size": 10,
    "sha256": "ab" * 32,
    "license": "MIT",
    "source": "us",
    "num_classes": 1000,
}


class Row(WEIGHTS.WeightsSubject):
    """Weights of vit_b16 that are not registered."""

    given: dict

    @property
    def row(self):
        return Weights("main", **self.given)


def of(**changes):
    subject = Row("vit_b16", "main")
    object.__setattr__(subject, "given", GOOD | changes)
    return subject


@pytest.mark.parametrize(
    ("changes", "check", "words"),
    [
        ({"format": "acme"}, WEIGHTS.check_row, "there is no checkpoint format 'acme'"),
        ({"label_set": "imagenet-21k"}, WEIGHTS.check_row, "label set 'imagenet-21k' has 21843"),
        ({"labels": ("cat",)}, WEIGHTS.check_row, "1000 classes, but its list has 1 labels"),
        ({"license": " "}, WEIGHTS.check_row, "no license is stated"),
        ({"preprocessing": Preprocessing(mean=(0.5,), std=(0.5,))}, WEIGHTS.check_row, "1 means"),
    ],
)  # fmt: skip
def test_a_broken_weights_row(complaint, changes, check, words):
    WEIGHTS.check_row(of())
    said = complaint(check, of(**changes))
    assert words in said
    assert "weights 'vit_b16:main'" in said


def test_a_variant_too_large_to_run_is_skipped_with_a_reason(monkeypatch):
    monkeypatch.setattr(VARIANT, "LARGEST", 1000)
    with pytest.raises(SkipTest) as caught:
        VARIANT.check_runs(VARIANT.VariantSubject("vit_ti16"))
    assert re.fullmatch(
        r"variant 'vit_ti16' was not run, because its small copy has \d+ parameters; the limit is "
        "1000. Let its builder accept depth, or give smaller numbers in the `networks` table of "
        "the test class",
        str(caught.value),
    )


def test_a_damaged_bundled_file(complaint, acme):
    row = """repo = "acme/net"
file = "model.safetensors"
pin = "reported"
revision = "0123456789abcdef0123456789abcdef01234567"
"""
    bundled = 'file = "model.safetensors"\npin = "confirmed"\n'
    root = acme((row, bundled), ("size = 130964", "size = 3"))
    subject = WEIGHTS.WeightsSubject("acme/net", "main")
    said = complaint(WEIGHTS.check_bundled, subject)
    says(said, "'acme/net:main'", "model.safetensors", "not in the installed package acme_vit")
    (root / "acme_vit" / "data").mkdir()
    (root / "acme_vit" / "data" / "model.safetensors").write_bytes(b"bad")
    said = complaint(WEIGHTS.check_bundled, subject)
    says(said, "model.safetensors", "3 bytes", hashlib.sha256(b"bad").hexdigest(), "its size")
    sha256 = registry().variant("acme/net").weights[0].sha256
    (root / "acme_vit" / "data" / "model.safetensors").write_bytes(b"longer")
    longer = hashlib.sha256(b"longer").hexdigest()
    acme((row, bundled), ("size = 130964", "size = 3"), (sha256, longer))
    said = complaint(WEIGHTS.check_bundled, subject)
    says(said, "6 bytes", "3 bytes are stated")
    assert "conflict" not in said


@pytest.mark.parametrize("pin", ["reported", "first-use"])
def test_a_zoo_that_takes_any_bytes(complaint, monkeypatch, pin):
    changes = {"pin": pin} | ({"sha256": ""} if pin == "first-use" else {})
    WEIGHTS.check_served(of(**changes))
    monkeypatch.setattr(WEIGHTS, "obtain", lambda *_args: (os.open(os.devnull, os.O_RDONLY), ""))
    said = complaint(WEIGHTS.check_served, of(**changes))
    assert "a file with one changed bit is accepted" in said
