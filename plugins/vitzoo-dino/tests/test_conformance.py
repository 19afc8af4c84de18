"""The conformance kit of vitzoo, run on the three namespaces of this plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitzoo.testing import PluginTests

V1: dict[str, Any] = {"num_classes": 0}
V2: dict[str, Any] = {
    "num_classes": 0,
    "num_registers": 2,
    "pos_embed": {"name": "learned", "prefix": False},
    "block": {"layer_scale": 0.1, "mlp": "swiglu_packed"},
}
V3: dict[str, Any] = {
    "num_classes": 0,
    "num_registers": 2,
    "pos_embed": {"name": "rope", "temperature": 100.0},
    "block": {"layer_scale": 0.1, "mlp": "swiglu", "qkv_bias": "qv"},
}


class TestDino(PluginTests):
    namespace = "dino"
    networks = {"dino/meta": V1}

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)


class TestDinoV2(PluginTests):
    namespace = "dinov2"
    networks = {"dinov2/meta": V2, "dinov2/transformers": V2}
    archives = False


class TestDinoV3(PluginTests):
    namespace = "dinov3"
    networks = {"dinov3/timm": V3, "dinov3/meta": V3, "dinov3/transformers": V3}
    archives = False


class TestDinoV2WithoutRegisters(PluginTests):
    """The same layouts, with a position for the class token and a plain MLP."""

    namespace = "dinov2"
    networks = {
        name: {"num_classes": 0, "block": {"layer_scale": 0.1}}
        for name in ("dinov2/meta", "dinov2/transformers")
    }
    archives = False


class TestDinoV3WithoutBiases(PluginTests):
    """The same layouts, with a plain MLP and no biases of queries, keys and values."""

    namespace = "dinov3"
    networks = {
        name: V3 | {"block": {"layer_scale": 0.1, "qkv_bias": False}}
        for name in ("dinov3/timm", "dinov3/meta", "dinov3/transformers")
    }
    archives = False
