"""A plugin with a pooled stem of stride 4: a correct one, and ones with usual mistakes."""

from __future__ import annotations

import re

import pytest
import torch

import vitzoo
from helpers import fill, message, says
from vitzoo import testing
from vitzoo.errors import did_you_mean
from vitzoo.testing import check_patch_embedder

PARTS = '''\
import torch
import vitzoo
from torch import nn

POOLS = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}


class PooledStem(nn.Module):
    """7x7 convolution of stride 4, batch norm, ReLU, pooled to the grid, projected."""

    input_conv = "conv.weight"

    def __init__(self, *, patch_size, in_chans, embed_dim, width=64, pool="max"):
        super().__init__()
        self.in_chans, self.patch_size = in_chans, patch_size
        self.conv = nn.Conv2d(in_chans, width, 7, stride=4, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.pool = POOLS[pool]((patch_size[0] // 4, patch_size[1] // 4))
        self.project = nn.Conv2d(width, embed_dim, 1)

    def grid(self, image_size):
        (h, w), (p, q) = image_size, self.patch_size
        if h % p or w % q:
            raise vitzoo.InvalidOption(f"image_size {h}x{w} is no multiple of {p}x{q} patches")
        return h // p, w // q

    def forward(self, images):
        self.grid(tuple(images.shape[2:]))
        x = self.pool(torch.relu(self.norm(self.conv(images))))
        return self.project(x).flatten(2).transpose(1, 2)
'''
MANIFEST = """\
api = 1

[patch_embedders.pooled]
target = "acme.parts:PooledStem"
summary = "7x7 convolution of stride 4, pooled to the grid"

[variants.vit_ti16_pooled]
summary = "ViT-Tiny/16 with a pooled stem"
size = "ti"
patch_embed = { name = "acme/pooled", width = 48 }
params = 5586328
source = "mine"

[variants.vit_ti8_pooled]
summary = "ViT-Tiny/8 with a pooled stem"
size = "ti"
patch_size = 8
patch_embed = { name = "acme/pooled", pool = "avg" }
params = 5704680
source = "mine"
"""
STEM = {"name": "acme/pooled", "width": 16}


@pytest.fixture
def stem(install):
    """Install the plugin; the arguments replace text of its parts."""

    def make(*changes):
        parts = PARTS
        for old, new in changes:
            assert old in parts, old
            parts = parts.replace(old, new)
        files = {"acme/__init__.py": "", "acme/parts.py": parts, "acme/registry.toml": MANIFEST}
        install("acme-stem", "acme = acme:registry.toml", files)

    return make


@pytest.mark.parametrize("name", ["acme/vit_ti16_pooled", "acme/vit_ti8_pooled"])
def test_its_variants_have_the_stated_parameters(stem, name):
    stem()
    model = vitzoo.create(name, device="meta")
    assert sum(p.numel() for p in model.parameters()) == vitzoo.describe(name).params
    assert model.grid_size == ((14, 14) if "16" in name else (28, 28))


@pytest.mark.compile
def test_it_passes_the_conformance_tests(stem):
    stem()
    for options in ({}, {"pool": "avg", "width": 32}):
        check_patch_embedder("acme/pooled", **options)


def test_its_counts_are_saved_and_restored_in_their_own_type(stem, small, images, tmp_path):
    stem()
    model = fill(vitzoo.create(small, patch_embed=STEM)).train()
    for _ in range(3):
        model(images)
    model.eval()
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    again = vitzoo.create(path).eval()
    assert again.patch_embed.norm.num_batches_tracked == 3
    assert torch.equal(again(images), model(images))
    coarse = vitzoo.create(path, dtype=torch.bfloat16)
    assert coarse.patch_embed.norm.num_batches_tracked.dtype == torch.int64
    assert "patch_embed.norm.num_batches_tracked" in coarse.load_report.kept
    assert coarse.patch_embed.norm.running_mean.dtype == torch.bfloat16


def test_a_count_of_another_type_is_refused(stem, small, tmp_path):
    from safetensors.torch import load_file, save_file

    stem()
    model = vitzoo.create(small, patch_embed=STEM)
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    tensors = load_file(path)
    count = "patch_embed.norm.num_batches_tracked"
    for name, dtype in ((count, torch.float32), (count, torch.int32), ("cls_token", torch.int64)):
        save_file(tensors | {name: tensors[name].to(dtype)}, tmp_path / "odd.safetensors")
        text = message(
            vitzoo.CheckpointError,
            vitzoo.create,
            model.spec.to_data(),
            weights=tmp_path / "odd.safetensors",
        )
        says(text, "type", name, str(dtype))


def test_other_channels_are_loaded(stem, small, tmp_path):
    stem()
    model = vitzoo.create(small, patch_embed=STEM)
    grey = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"), in_chans=1)
    expected = model.patch_embed.conv.weight.sum(1, keepdim=True)
    torch.testing.assert_close(grey.patch_embed.conv.weight, expected)


UNNAMED = ('    input_conv = "conv.weight"\n\n', "")


def test_a_patch_embedder_without_input_conv_is_told_to_name_it(stem, small, tmp_path):
    stem(UNNAMED)
    path = vitzoo.save(vitzoo.create(small, patch_embed=STEM), tmp_path / "net.safetensors")
    text = message(vitzoo.CheckpointError, vitzoo.create, path, in_chans=1)
    says(text, "patch_embed.conv.weight", "(16, 3, 7, 7)", "(16, 1, 7, 7)", "in_chans")
    assert text.splitlines()[0].endswith("input_conv = 'conv.weight'")


def test_the_conformance_tests_ask_for_input_conv(stem):
    stem(UNNAMED)
    text = message(AssertionError, check_patch_embedder, "acme/pooled")
    says(text, "conv.weight", "channels", "input_conv = 'conv.weight'")


def test_an_option_that_the_part_does_not_check_names_the_part(stem, small):
    stem()
    wrong = STEM | {"pool": "sum"}
    text = message(vitzoo.InvalidOption, vitzoo.create, small, patch_embed=wrong)
    says(text, "patch_embed 'acme/pooled'", "width=16, pool='sum'", "KeyError: 'sum'")


@pytest.mark.parametrize("device", [None, "meta"])
def test_without_options_it_is_named_too(stem, small, device):
    stem(("super().__init__()", "super().__init__(); 1 / 0"))
    text = message(
        vitzoo.PluginError, vitzoo.create, small, patch_embed="acme/pooled", device=device
    )
    says(text, "patch_embed 'acme/pooled'", "acme-stem 1.0", "ZeroDivisionError: division by zero")


def test_a_name_without_its_namespace_is_suggested_with_it(stem, small):
    stem()
    text = message(vitzoo.UnknownName, vitzoo.create, small, patch_embed="pooled")
    says(text, "patch embedder 'pooled'", "'acme/pooled'")
    far = did_you_mean("pooled", ["spooled", "a_namespace_of_many_letters/pooled", "pool"])
    assert re.findall(r"'(.*?)'", far) == ["a_namespace_of_many_letters/pooled", "spooled", "pool"]
    text = message(vitzoo.UnknownName, vitzoo.create, "vit_ti8_pooled")
    assert re.findall(r"'(.*?)'", text)[:2] == ["vit_ti8_pooled", "acme/vit_ti8_pooled"]


def test_the_registry_check_suggests_it_too(stem, tmp_path, run):
    stem()
    path = tmp_path / "site" / "acme" / "registry.toml"
    path.write_text(MANIFEST.replace('"acme/pooled", width', '"pooled", width'))
    code, out, err = run("registry", "check", path)
    assert code == 1
    says(out + err, "vit_ti16_pooled:", "patch embedder 'pooled'", "'acme/pooled'")


def test_wrong_params_fail_check_params_and_not_check_spawned(
    stem, tmp_path, new_registry, monkeypatch
):
    stem()
    path = tmp_path / "site" / "acme" / "registry.toml"
    path.write_text(MANIFEST.replace("params = 5586328", "params = 5700000"))
    new_registry()
    # What a worker finds; tests/testing and the plugins spawn real ones.
    names = [variant.name for variant in vitzoo.variants("acme/*")]
    models = {name: vitzoo.create(name, device="meta") for name in names}
    counts = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    found = {"names": names, "params": counts, "error": None, "sockets": []}
    monkeypatch.setattr(testing.checks.plugin, "in_worker", lambda _: found)
    testing.checks.plugin.check_spawned("acme")
    variant = testing.checks.variants.VariantSubject("acme/vit_ti16_pooled")
    text = message(AssertionError, testing.checks.variants.check_params, variant)
    says(text, "params = 5586328")
