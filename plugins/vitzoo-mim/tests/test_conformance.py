"""The conformance kit of vitzoo, run on each namespace of this plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitzoo.testing import PluginTests

pytestmark = pytest.mark.conformance

BEIT = {"pos_embed": "mim/relative", "block": {"qkv_bias": "qv", "layer_scale": 0.1}}
AFTER = {"pool": {"name": "mean", "norm_first": False}}
EVA = {"block": {"qkv_bias": "qv", "mlp": "swiglu", "mlp_norm": True, "attn_norm": True}}


class TestMim(PluginTests):
    namespace = "mim"
    options = {"mim/relative": [{}, {"shared": True}, {"resample": "geometric_cubic"}]}

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)


class TestMae(PluginTests):
    namespace = "mae"
    archives = False
    networks = {"mae/meta": {}}


class TestBeit(PluginTests):
    namespace = "beit"
    archives = False
    networks = {f"beit/{name}": BEIT | AFTER for name in ("timm", "microsoft", "transformers")}


class TestEva02(PluginTests):
    namespace = "eva02"
    archives = False
    networks = {"eva02/timm": EVA, "eva02/authors": EVA}


class TestEva(PluginTests):
    namespace = "eva"
    archives = False


class TestFlexivit(PluginTests):
    namespace = "flexivit"
    archives = False
