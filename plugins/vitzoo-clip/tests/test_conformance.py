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
SIGLIP = {"class_token": False, "pool": "attention", "num_classes": 0}


class TestClip(PluginTests):
    namespace = "clip"
    options = {"clip/projection": [{}, {"width": 5}, {"width": 512}]}
    networks = {
        "clip/open_clip": CLIP,
        "clip/transformers": [CLIP, CLIP | {"pos_embed": "clip/rope_prefix"}],
    }

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)


class TestSiglip(PluginTests):
    namespace = "siglip"
    networks = {"siglip/transformers": SIGLIP}

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)


class TestAimv2(PluginTests):
    namespace = "aimv2"
    archives = False
