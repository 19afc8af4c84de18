"""The conformance kit of vitzoo, run on each namespace of this plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitzoo.testing import PluginTests

pytestmark = pytest.mark.conformance

LANG = {
    "num_classes": 0,
    "pre_norm": True,
    "final_norm": False,
    "patch_embed": {"name": "conv", "bias": False},
    "pos_embed": {"name": "rope", "absolute": True},
    "pool": "mean",
    "block": {"layer_scale": 0.1},
}
TIPS = {
    "num_classes": 0,
    "num_registers": 1,
    "pos_embed": {"name": "learned", "prefix": False},
    "block": {"layer_scale": 1.0},
}


RADIO = {
    "num_classes": 0,
    "final_norm": False,
    "patch_embed": {"name": "radio/normalised", "bias": False},
    "pos_embed": {"name": "radio/cropped", "side": 8},
    "pool": "radio/summary",
    "head": "radio/summary",
}


class TestPe(PluginTests):
    namespace = "pe"
    networks = {"pe/timm": [LANG, LANG | {"class_token": False}]}

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)


class TestTipsV2(PluginTests):
    namespace = "tipsv2"
    archives = False
    networks = {"tipsv2/transformers": TIPS}


class TestRadio(PluginTests):
    namespace = "radio"
    options = {
        "radio/cropped": [{"side": 3}, {"side": 9}],
        "head radio/summary": [{}, {"tokens": 2}],
    }
    networks = {
        "radio/transformers": [
            RADIO | {"block": {"layer_scale": 0.1}, "num_registers": 3},
            RADIO | {"block": {"layer_scale": 0.1, "mlp": "swiglu"}},
        ]
    }
    archives = False


class TestInternVit(PluginTests):
    namespace = "internvit"
    networks = {
        "internvit/transformers": [
            {"num_classes": 0, "block": {"layer_scale": 0.1, "qk_norm": "all_heads"}},
            {"num_classes": 0, "pos_embed": "none", "block": {"layer_scale": 0.1, "norm": "rms"}}
            | {"final_norm": False, "pool": "mean"},
        ]
    }
    archives = False


class TestPixio(PluginTests):
    namespace = "pixio"
    networks = {
        "pixio/transformers": [
            {"num_classes": 0, "pool": "pixio/prefix_mean", "num_registers": number}
            for number in (0, 3)
        ]
    }
    archives = False


class TestVitPose(PluginTests):
    namespace = "vitpose"
    networks = {
        "vitpose/transformers": {
            "num_classes": 0,
            "class_token": False,
            "pool": "mean",
            "patch_embed": "vitpose/padded",
        }
    }
    archives = False


class TestBlip(PluginTests):
    namespace = "blip"
    networks = {
        "blip/transformers": [{"num_classes": 0}, {"num_classes": 0, "block": {"qkv_bias": False}}]
    }
    archives = False


WINDOWS = {
    "num_classes": 0,
    "image_size": 24,
    "patch_size": 4,
    "class_token": False,
    "final_norm": False,
    "block": {"window": 4, "global_blocks": [1]},
    "pool": "sam/neck",
    "pos_embed": {"name": "decomposed", "reference_grid": 6, "absolute": True},
}
SQUARE = WINDOWS | {"pool": "mean"}


class TestSam(PluginTests):
    namespace = "sam"
    options = {"sam/neck": [{}, {"channels": 6}]}
    networks = {
        "sam/transformers": [WINDOWS, WINDOWS | {"pos_embed": "none"}],
        "sam/timm": [WINDOWS, WINDOWS | {"num_classes": 5}],
    }
    archives = False


class TestVitDet(PluginTests):
    namespace = "vitdet"
    networks = {
        "vitdet/transformers": [
            SQUARE,
            SQUARE | {"pos_embed": {"name": "learned", "reference_grid": 3}},
        ],
        "vitdet/detectron2": SQUARE,
    }
    archives = False
