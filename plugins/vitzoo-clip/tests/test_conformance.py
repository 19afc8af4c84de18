"""The conformance kit of vitzoo, run on this plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitzoo.testing import PluginTests

pytestmark = pytest.mark.conformance

CLIP = {
    "pre_norm": True,
    "patch_embed": {"name": "conv", "bias": False},
    "num_classes": 0,
}
AIMV2 = {
    "class_token": False,
    "num_classes": 0,
    "patch_embed": {"name": "conv", "norm": "rms"},
    "block": {"norm": "rms", "mlp": "swiglu", "qkv_bias": False, "proj_bias": False},
}
SIGLIP = {"class_token": False, "pool": "attention", "num_classes": 0}
MEAN = SIGLIP | {"pool": "mean"}


class TestClip(PluginTests):
    namespace = "clip"
    options = {"clip/projection": [{}, {"width": 5}, {"width": 512}]}
    networks = {
        "clip/open_clip": CLIP,
        "clip/open_clip_timm": {"num_classes": 5},
        "clip/transformers": [CLIP, CLIP | {"pos_embed": "clip/rope_prefix"}],
    }

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)


class TestSiglip(PluginTests):
    namespace = "siglip"
    networks = {"siglip/transformers": [SIGLIP, MEAN, MEAN | {"num_classes": 3}]}

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)


class TestAimv2(PluginTests):
    namespace = "aimv2"
    networks = {
        "aimv2/transformers": [
            AIMV2 | {"pool": "aimv2/query"},
            AIMV2 | {"pool": "mean", "pos_embed": {"name": "sincos_2d", "endpoint": False}},
        ]
    }
    archives = False
