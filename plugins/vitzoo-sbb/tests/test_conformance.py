"""The conformance kit of vitzoo, run on each namespace of this plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitzoo.testing import PluginTests

pytestmark = pytest.mark.conformance

SBB: dict[str, Any] = {
    "class_token": False,
    "num_registers": 2,
    "pool": {"name": "mean", "norm_first": False},
}
ROPE = SBB | {"pos_embed": {"name": "rope"}, "block": {"layer_scale": 0.1, "qkv_bias": "qv"}}
WITHOUT_BIASES = ROPE | {"block": {"layer_scale": 0.1, "qkv_bias": False}}
PARALLEL = SBB | {
    "embed_dim": 32,
    "mlp_dim": 160,
    "pos_embed": {"name": "learned", "prefix": False},
    "block": {"layer_scale": 0.1, "parallel": True},
}
AXIAL: dict[str, Any] = {"pos_embed": "rope", "block": {"layer_scale": 0.1}}
MIXED = AXIAL | {"pos_embed": {"name": "rope_mixed", "absolute": True}}


class TestSbb(PluginTests):
    namespace = "sbb"
    networks = {"sbb/timm": [ROPE, WITHOUT_BIASES], "sbb/timm_parallel": PARALLEL}

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)


class TestRopeVit(PluginTests):
    namespace = "rope_vit"
    networks = {"rope_vit/timm": [AXIAL, MIXED]}
    archives = False
