"""The conformance kit of vitzoo, run on this plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitzoo.testing import PluginTests

pytestmark = pytest.mark.conformance

DISTILLED = {
    "num_registers": 1,
    "pool": {"name": "prefix", "tokens": 2},
    "head": "deit/distilled",
}


class TestDeit(PluginTests):
    namespace = "deit"
    options = {"deit/power": [{"rate": 0.3}, {"rate": 0.3, "exponent": 0.5}]}
    networks = {
        "deit/timm_distilled": DISTILLED,
        "deit/transformers": DISTILLED,
        "deit/meta": {
            "block": {"layer_scale": 1e-4},
            "pos_embed": {"name": "learned", "prefix": False},
        },
    }

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)
