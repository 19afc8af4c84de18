"""Networks of builders: each app serves the documented one, and names what another one lacks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitzoo
from helpers import refuses
from vitzoo.errors import InvalidOption, PluginError

PAGE = Path(__file__).parents[2] / "docs" / "hooks" / "variants.md"
BARE = """

def bare(spec):
    patches = nn.Conv2d(spec.in_chans, 64, spec.patch_size, spec.patch_size)
    return nn.Sequential(patches, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
"""
ROW = """
[variants.{0}]
summary = "mean of projected patches"
builder = "acme_mean:{1}"
accepts = [{2}]
patch_size = 16
image_size = 32
num_classes = 10
params = 49866
source = "made by the test"
"""
MANIFEST = "api = 1\n" + "".join(
    ROW.format(*row) for row in (("mean", "Mixer", '"num_classes"'), ("bare", "bare", ""))
)


@pytest.fixture
def image(distribution, monkeypatch, new_registry, tmp_path):
    """Install a plugin with the documented network and one without members, and make images."""
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    files = {"acme_mean/__init__.py": code.partition("@vitzoo.hookimpl")[0] + BARE}
    files["acme_mean/registry.toml"] = MANIFEST
    site = distribution("acme-mean", "acme = acme_mean:registry.toml", files)
    monkeypatch.syspath_prepend(str(site))
    new_registry()
    folder = tmp_path / "images"
    for number in range(12):
        file = folder / ("even", "odd")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (20 * number, 0, 0)).save(file)
    yield file
    sys.modules.pop("acme_mean", None)


APPS = {
    "predict": lambda model, image, _: vitzoo.predict(model, image)[0].classes[0],
    "logits": lambda model, image, _: vitzoo.Predictor(model, outputs="logits")(image),
    "export": lambda model, _, out: vitzoo.export(model, "torch", out, progress=False),
    "summary": lambda model, *_: vitzoo.summary(model),
    "save": lambda model, image, out: vitzoo.predict(
        vitzoo.save(model, f"{out}.safetensors"), image
    ),
    "push": lambda model, _, out: vitzoo.push(
        model, "me/net", folder=out, dry_run=True, license="MIT", progress=False
    ),
    "param_groups": lambda model, *_: vitzoo.param_groups(model, 1e-3),
}
MORE = {  # what needs members of `vitzoo.parts.Network`, with these members
    "pooled": (
        lambda model, image, _: vitzoo.Predictor(model, outputs="pooled")(image),
        ("forward_features()", "forward_head()", "'pooled'", "outputs labels, logits"),
    ),
    "embed": (
        lambda model, image, out: vitzoo.embed(model, image.parent, out, progress=False),
        ("forward_features()", "forward_head()", "'pooled'"),
    ),
    "probe": (
        lambda model, image, _: vitzoo.probe(model, image.parents[1], progress=False),
        ("forward_features()", "forward_head()", "'pooled'"),
    ),
    "export pooled": (
        lambda model, _, out: vitzoo.export(model, "torch", out, output="pooled", progress=False),
        ("forward_features()", "forward_head()", "'pooled'"),
    ),
    "backbone": (
        lambda model, *_: vitzoo.backbone(model, dynamic=False).num_features,
        ("feature_info", "forward_intermediates()", "vitzoo.backbone"),
    ),
    "layer_decay": (
        lambda model, *_: vitzoo.param_groups(model, 1e-3, layer_decay=0.5),
        ("group_matcher()", "layer_decay=1"),
    ),
    "freeze head": (
        lambda model, *_: vitzoo.freeze(model, until="head"),
        ("get_classifier()", "until='head'"),
    ),
    "freeze layers": (
        lambda model, *_: vitzoo.freeze(model, until=0),
        ("group_matcher()",),
    ),
}


@pytest.mark.usefixtures("image")
def test_create_sets_the_number_of_classes_of_a_network_without_it():
    assert vitzoo.create("acme/bare").num_classes == 10
    assert vitzoo.create("acme/mean", num_classes=3).num_classes == 3


SLOW = {"export", "probe"}


def marked(apps):
    return [pytest.param(app, marks=[pytest.mark.slow] * (app in SLOW)) for app in apps]


@pytest.mark.usefixtures("image")
def test_an_adapter_without_its_members_is_an_error_of_the_plugin(monkeypatch):
    vitzoo.create("acme/mean")
    monkeypatch.setattr(sys.modules["acme_mean"].Mixer, "foreign", 1, raising=False)
    with refuses(
        PluginError, "builder of 'acme/mean'", "acme-mean", "of class int", "classifiers",
        "resample", "vitzoo.parts.WeightsAdapter",
    ):  # fmt: skip
        vitzoo.create("acme/mean")


@pytest.mark.parametrize("app", marked(APPS))
@pytest.mark.parametrize("name", ["acme/mean", "acme/bare"])
def test_an_app_serves_every_network_of_a_builder(image, tmp_path, name, app):
    assert APPS[app](vitzoo.create(name), image, tmp_path / "out")


@pytest.mark.parametrize("app", marked(MORE))
def test_an_app_names_the_members_that_a_network_lacks(image, tmp_path, app):
    use, words = MORE[app]
    assert use(vitzoo.create("acme/mean"), image, tmp_path / "out")
    with refuses(InvalidOption, "acme/bare (Sequential)", *words, "vitzoo.parts.Network"):
        use(vitzoo.create("acme/bare"), image, tmp_path / "other")


@pytest.mark.usefixtures("image")
def test_a_backbone_names_the_members_before_other_arguments():
    with refuses(InvalidOption, "acme/bare (Sequential)", "feature_info", "vitzoo.parts.Network"):
        vitzoo.backbone("acme/bare")
    with refuses(InvalidOption, "Mixer", "several sizes", "dynamic=False"):
        vitzoo.backbone("acme/mean")
    maps = vitzoo.backbone("acme/mean", dynamic=False)
    with refuses(InvalidOption, "acme/mean (Mixer)", "set_grad_checkpointing()", "leave this call"):
        maps.set_grad_checkpointing()


@pytest.mark.parametrize("use", [vitzoo.lora, lambda model: vitzoo.plot("filters", model)])
@pytest.mark.usefixtures("image")
def test_apps_for_blocks_of_vitzoo_say_so(use):
    with refuses(InvalidOption, "Mixer", "vitzoo's"):
        use(vitzoo.create("acme/mean"))


@pytest.mark.usefixtures("image")
def test_a_backbone_of_a_name_asks_only_for_changes_that_the_builder_accepts():
    maps = vitzoo.backbone("acme/mean", dynamic=False)(torch.zeros(1, 3, 32, 32))
    assert [tuple(one.shape) for one in maps] == [(1, 64, 2, 2)]
    with refuses(InvalidOption, "acme/bare (Sequential)", "feature_info"):
        vitzoo.backbone("acme/bare", dynamic=False)
