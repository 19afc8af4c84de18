"""The conformance kit of vitzoo, run on this plugin.

The deep ResNets are checked with half their channels, which costs a quarter of the time; their
variants are built in full, without memory, where parameters are counted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import vitzoo
from vitzoo.testing import PluginTests, Sizes

pytestmark = pytest.mark.conformance

NARROW = {"width": 32}
STRIDE_32 = Sizes(patch_size=(32, 32))


@pytest.mark.one_in(5)
class TestHybrid(PluginTests):
    namespace = "hybrid"
    options = {
        "hybrid/resnet26": NARROW,
        "hybrid/resnet50": [NARROW, NARROW | {"layers": [1, 1], "arithmetic": "google"}],
        "hybrid/resnet50_s32": NARROW,
    }
    sizes = {
        "hybrid/resnet26": STRIDE_32,
        "hybrid/resnet50": Sizes(patch_size=(16, 16)),
        "hybrid/resnet50_s32": STRIDE_32,
    }
    networks = {
        variant.name: {"patch_embed": {"name": variant.spec.patch_embed.name} | NARROW}
        for variant in vitzoo.variants("hybrid/*")
    }

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)
