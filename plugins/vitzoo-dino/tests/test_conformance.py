"""The conformance kit of vitzoo, run on the namespaces of this plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitzoo.testing import PluginTests

pytestmark = pytest.mark.conformance

V1: dict[str, Any] = {"num_classes": 0}
V2: dict[str, Any] = {
    "num_classes": 0,
    "num_registers": 2,
    "pos_embed": {"name": "learned", "prefix": False},
    "block": {"layer_scale": 0.1, "mlp": "swiglu_packed"},
}
# With a position for the class token and a plain MLP.
V2_PLAIN: dict[str, Any] = {"num_classes": 0, "block": {"layer_scale": 0.1}}
V3: dict[str, Any] = {
    "num_classes": 0,
    "num_registers": 2,
    "pos_embed": {"name": "rope", "temperature": 100.0},
    "block": {"layer_scale": 0.1, "mlp": "swiglu", "qkv_bias": "qv"},
}
V3_WITHOUT_BIASES = V3 | {"block": {"layer_scale": 0.1, "qkv_bias": False}}
V3_WITHOUT_REGISTERS = V3 | {
    "num_registers": 0,
    "block": V3["block"] | {"proj_bias": False, "mlp_bias": False},
}


class TestDino(PluginTests):
    namespace = "dino"
    networks = {"dino/meta": V1}

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)


class TestDinoV2(PluginTests):
    namespace = "dinov2"
    networks = {name: [V2, V2_PLAIN] for name in ("dinov2/meta", "dinov2/transformers")}
    archives = False


class TestDinoV3(PluginTests):
    namespace = "dinov3"
    networks = {
        name: [V3, V3_WITHOUT_BIASES]
        for name in ("dinov3/timm", "dinov3/meta", "dinov3/transformers")
    }
    networks["dinov3/transformers"] = [*networks["dinov3/transformers"], V3_WITHOUT_REGISTERS]
    archives = False


class TestLingBot(PluginTests):
    namespace = "lingbot"
    archives = False
