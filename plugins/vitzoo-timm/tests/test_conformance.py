"""The conformance kit of vitzoo, run on this plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitzoo.testing import PluginTests

pytestmark = pytest.mark.conformance


class TestTimm(PluginTests):
    namespace = "timm"

    # `test_variants.py` counts the parameters of every network when it writes the manifest again.
    test_variant_params = None

    # timm's networks have no small copies; `test_build.py` runs one of each class.
    test_variant_runs = None
    test_variant_lora = None  # `test_build.py` shows that vitzoo.lora refuses them

    @pytest.mark.install
    def test_plugin_archives(self, tmp_path: Path) -> None:
        super().test_plugin_archives(tmp_path)
