"""The conformance tests of plugins, run on the core."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitzoo.testing import PluginTests, Sizes

pytestmark = pytest.mark.conformance


class TestCore(PluginTests):
    namespace = "core"
    options = {
        "conv": [{}, {"bias": False, "norm": "rms", "norm_eps": 1e-5}],
        "unfold": [{}, {"norm": "layer"}],
        "attention": [{}, {"prefix": True, "num_heads": 4, "mlp_dim": 24}],
        "constant": {"rate": 0.3},
        "learned": [
            {},
            {"where": "layers"},
            {"where": "layers_shared", "prefix": False},
            {"reference_grid": (3, 4)},
        ],
        "learned_2d": [{}, {"where": "layers"}],
        "cosine": [{}, {"width": 20, "logit_bias": True}],
        "drop-path policy linear": {"rate": 0.3},
        "mean": [{}, {"norm_first": False}],
        "prefix": [{}, {"tokens": 1}],
        "relative": [{}, {"shared": True}],
        "decomposed": [{}, {"reference_grid": (3, 5), "absolute": True, "absolute_grid": 4}],
        "rope_mixed": [{}, {"absolute": True}],
        "rope": [{}, {"layout": "interleaved", "coordinates": "index", "absolute": True}],
    }
    sizes = {"head none": Sizes(num_classes=0)}
    networks = {"big_vision": {"class_token": False, "pool": "mean"}}
    test_plugin_can_be_disabled = None  # the core cannot be disabled

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)
