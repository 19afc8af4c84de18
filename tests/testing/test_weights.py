"""The helpers for tests of weights: `stand_in`, `trained_spec` and `checkpoint_formats`."""

from __future__ import annotations

import os

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitzoo
from vitzoo.errors import CheckpointError, Offline, UnknownName
from vitzoo.formats import Format
from vitzoo.testing import checkpoint_formats, stand_in, trained_spec

ENTRIES = [("augreg_in21k", 21843), ("augreg_in21k_ft_in1k", 1000)]  # first-use and pinned


@pytest.fixture
def file(tmp_path):
    """Make a file of weights for vit_ti16."""

    def make(classes):
        model = vitzoo.create("vit_ti16", num_classes=classes)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        path = tmp_path / f"{classes}.safetensors"
        save_file(model.state_dict(), path)
        return path

    return make


@pytest.mark.parametrize(("weights", "classes"), ENTRIES)
def test_a_file_stands_in_for_registered_weights(file, weights, classes):
    path, before, environment = file(classes), vitzoo.describe("vit_ti16"), dict(os.environ)
    with stand_in("vit_ti16", weights, path):
        model = vitzoo.create("vit_ti16", weights=weights)
        inside = {row.name: row for row in vitzoo.describe("vit_ti16").weights}
    assert vitzoo.describe("vit_ti16") == before
    assert dict(os.environ) == environment
    expected, actual = load_file(path), model.state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())
    assert model.load_report.sha256 == inside[weights].sha256
    assert len(model.labels) == classes
    for row in before.weights:
        assert (inside[row.name] == row) == (row.name != weights)


def test_plugins_that_are_read_meanwhile_stay(file, new_registry):
    new_registry()
    with stand_in("vit_ti16", "augreg_in21k_ft_in1k", file(1000)):
        assert vitzoo.describe("beit/beit_b16").params
    assert vitzoo.describe("beit/beit_b16").params


def test_nothing_is_downloaded_inside(file, monkeypatch, tmp_path):
    monkeypatch.setenv("VITZOO_HOME", str(tmp_path / "empty"))
    with stand_in("vit_ti16", "augreg_in21k_ft_in1k", file(1000)), pytest.raises(Offline):
        vitzoo.create("vit_s16", pretrained=True)


def test_a_file_of_another_network_is_refused(file):
    with (
        stand_in("vit_s16", "augreg_in21k_ft_in1k", file(1000)),
        pytest.raises(CheckpointError, match="384"),
    ):
        vitzoo.create("vit_s16", weights="augreg_in21k_ft_in1k")


@pytest.mark.parametrize(("weights", "classes"), ENTRIES)
def test_the_spec_of_an_entry(weights, classes):
    spec = trained_spec("vit_ti16", weights)
    assert (spec.variant, spec.num_classes, spec.embed_dim) == ("vit_ti16", classes, 192)


def test_the_spec_of_the_default_entry_has_its_settings():
    default = vitzoo.describe("beit/beit_b16").default_weights
    named = trained_spec("beit/beit_b16", "microsoft_in22k_ft_in22k")
    assert (named.num_classes, named.block.norm_eps) == (21841, 1e-12)
    assert dict(named.pos_embed.options)["resample"] == "bilinear"
    assert trained_spec("beit/beit_b16") == trained_spec("beit/beit_b16", default.name) != named


def test_formats_by_name():
    formats = checkpoint_formats()
    assert {"timm", "transformers_vit", "torchvision", "google", "big_vision"} < formats.keys()
    assert "dinov3/meta" in formats
    assert all(isinstance(found, Format) for found in formats.values())


def test_unknown_names():
    with pytest.raises(UnknownName, match="vit_ti16"):
        trained_spec("vit_ti61")
    with pytest.raises(vitzoo.WeightsUnavailable, match="'none_such'"):
        trained_spec("vit_ti16", "none_such")
