"""A plugin with one part of most kinds passes all conformance tests, and its models can be used."""

from __future__ import annotations

import hashlib
import io
import json
import re

import pytest
import torch
from safetensors.torch import save as serialise

import vitzoo
from helpers import fill, randn
from internals import registry
from vitzoo.authoring.plugin_check_worker import Notes, probe

PARTS = '''\
from torch import nn

from vitzoo import InvalidOption
from vitzoo.parts.patch_embed import tiled


class WindowEmbed(nn.Module):
    """Adds to each patch token a feature of the 2x2 patches around it."""

    input_conv = "project.weight"
    grid_multiple = (2, 2)

    def __init__(self, *, patch_size, in_chans, embed_dim, gain=1.0):
        super().__init__()
        self.patch_size, self.in_chans = patch_size, in_chans
        self.project = nn.Conv2d(in_chans, embed_dim, patch_size, stride=patch_size)
        self.window = nn.Conv2d(embed_dim, embed_dim, 2, stride=2, groups=embed_dim, bias=False)
        self.gain = nn.Parameter(gain * self.window.weight.new_ones(embed_dim))

    def grid(self, image_size):
        rows, columns = tiled(image_size, self.patch_size)
        if rows % 2 or columns % 2:
            raise InvalidOption(f"{rows}x{columns} patches cannot be divided into windows of 2x2")
        return rows, columns

    def no_weight_decay(self):
        return {"gain"}

    def forward(self, images):
        x = self.project(images)  # (b, d, h, w)
        window = nn.functional.interpolate(self.window(x), scale_factor=2.0)  # (b, d, h, w)
        return (x.flatten(2) + window.flatten(2)).transpose(1, 2) * self.gain  # (b, n, d)


class FocusPool(nn.Module):
    """Averages the patch tokens, weighted by a learned score."""

    norm_first = True

    def __init__(self, *, embed_dim):
        super().__init__()
        self.score = nn.Linear(embed_dim, 1, bias=False)

    def forward(self, tokens, num_prefix_tokens, grid_size):
        patches = tokens[:, num_prefix_tokens:]  # (b, n, d)
        return (self.score(patches).softmax(1) * patches).sum(1)  # (b, d)


def late(*, depth, rate, start=0.5):
    """0 in the first `start * depth` blocks, `rate` in the others."""
    return [0.0 if i < start * depth else rate for i in range(depth)]
'''
FORMAT = """\
from vitzoo.formats import Format, KeyMap

LAYER = {
    ("attention.q.", "attention.k.", "attention.v."): "attn.qkv.",
    "attention.out.": "attn.proj.",
    "ln1.": "norm1.",
    "ln2.": "norm2.",
    "mlp.0.": "mlp.fc1.",
    "mlp.2.": "mlp.fc2.",
}
STEM = {"token": "cls_token", "positions": "pos_embed", "ln.": "norm.", "classifier.": "head."}
STEM["score."] = "attn_pool.score."
split = Format(
    "acme/split",
    keymap=KeyMap(STEM, LAYER, block="encoder.{}.", others=True),
    marks=("token", "encoder.0.attention.q.weight"),
    defaults={"block": {"norm_eps": 1e-5}},
    network={},
)
"""
MANIFEST = """\
api = 1

[patch_embedders.window]
target = "acme_vit.parts:WindowEmbed"
summary = "patches with a feature of their 2x2 window"

[pools.focus]
target = "acme_vit.parts:FocusPool"
summary = "average of the patch tokens, weighted by a learned score"

[drop_path_policies.late]
target = "acme_vit.parts:late"
summary = "0 in the first half, the rate in the second"

[checkpoint_formats.split]
target = "acme_vit.formats:split"
summary = "queries, keys and values in separate tensors"
"""
VARIANT = """
[variants.{name}]
summary = "a network with windows"
embed_dim = 32
depth = {depth}
num_heads = 2
mlp_dim = 64
patch_size = 8
image_size = 32
num_classes = 5
patch_embed = "acme/window"
pool = "{pool}"
drop_path = {{ name = "acme/late", rate = 0.1 }}
params = {params}
source = "made up"

[variants.{name}.weights.first]
{place}
pin = "{pin}"
size = {size}
sha256 = "{sha256}"
format = "acme/split"
license = "Apache-2.0"
source = "made up"
default = true
preprocessing = {{ mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }}
"""
HUB = 'repo = "acme/window"\nfile = "model.safetensors"\nrevision = "' + "0123" * 10 + '"'
PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acme-vit"
version = "1.0"
dependencies = ["vitzoo"]

[project.entry-points.vitzoo]
acme = "acme_vit:registry.toml"

[tool.hatch.build.targets.wheel]
packages = ["acme_vit"]
"""
SUITE = """\
from vitzoo.testing import PluginTests


class TestAcme(PluginTests):
    namespace = "acme"
    project = {project!r}
    networks = {{"acme/split": [{{}}, {{"pool": "acme/focus"}}]}}
"""
PARAMS = {"window_two": 24229, "window_three": 32805}


@pytest.fixture
def plugin(acme, new_registry):
    """Install the plugin and write weights of its two variants, one bundled and one on a Hub."""
    files = {"acme_vit/parts.py": PARTS, "acme_vit/formats.py": FORMAT, "pyproject.toml": PYPROJECT}
    root = acme(files=files | {"acme_vit/registry.toml": MANIFEST})
    found = {}
    text = MANIFEST
    for name, depth, pool, place, pin in (
        ("window_two", 2, "class", 'file = "two.safetensors"', "confirmed"),
        ("window_three", 3, "acme/focus", HUB, "reported"),
    ):
        spec = {"embed_dim": 32, "depth": depth, "num_heads": 2, "mlp_dim": 64, "patch_size": 8}
        spec |= {"image_size": 32, "num_classes": 5, "patch_embed": "acme/window", "pool": pool}
        model = fill(vitzoo.create(spec, block={"norm_eps": 1e-5}))
        split = registry().part("checkpoint format", "acme/split")
        data = serialise(
            {k: t.contiguous() for k, t in split.from_model(model.state_dict()).items()}
        )
        found[name] = model, data
        text += VARIANT.format(
            name=name, depth=depth, pool=pool, params=PARAMS[name], place=place, pin=pin,
            size=len(data), sha256=hashlib.sha256(data).hexdigest(),
        )  # fmt: skip
    root.joinpath("acme_vit/data").mkdir()
    root.joinpath("acme_vit/data/two.safetensors").write_bytes(found["window_two"][1])
    root.joinpath("acme_vit/registry.toml").write_text(text)
    new_registry()
    found["root"] = root
    return found


@pytest.mark.long
def test_it_passes_every_conformance_test(plugin, author):
    """No test fails, is skipped or is expected to fail."""
    suite = SUITE.format(project=str(plugin["root"]))
    said = author("-W", "error", "--tb=line", suite=suite)
    found = re.findall(r"(\d+) ([a-z]+)", said.splitlines()[-1].partition(" in ")[0])
    counts = {what: int(number) for number, what in found}
    assert counts.keys() <= {"passed", "deselected"}, said
    assert counts["passed"] > 40


@pytest.mark.usefixtures("plugin")
def test_plugins_check_finds_nothing():
    file = io.StringIO()
    probe("acme", Notes(file))
    notes = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [note["problem"] for note in notes if "problem" in note] == []
    assert [note["contributions"] for note in notes if "contributions" in note] == [6]


@pytest.mark.parametrize("name", ["window_two", "window_three"])
def test_its_weights_are_loaded_and_its_networks_are_saved(plugin, vitzoo_hub, tmp_path, name):
    revision = "0123" * 10
    vitzoo_hub.add("acme/window", "model.safetensors", plugin["window_three"][1], revision=revision)
    reference, _ = plugin[name]
    model = vitzoo.create(f"acme/{name}", pretrained=True).eval()
    images = randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(model(images), reference(images))
        again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors")).eval()
        assert torch.equal(again(images), reference(images))
    assert ("attn_pool.score.weight" in model.state_dict()) == (name == "window_three")
    assert model.load_report.format == "acme/split"
    assert model.no_weight_decay() == {"pos_embed", "cls_token", "patch_embed.gain"}
    rated = vitzoo.create(f"acme/{name}", drop_path={"rate": 0.3})
    assert [block.drop_path.rate for block in rated.blocks][-1] == 0.3
    assert rated.spec.drop_path.name == "acme/late"
    with pytest.raises(
        vitzoo.InvalidOption, match="3x4 patches cannot be divided into windows of 2x2"
    ):
        model.set_input_size((24, 32))
