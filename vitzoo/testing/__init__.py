"""Conformance tests for plugins, a Hub on loopback, and helpers for tests of weights.

    # tests/test_conformance.py
    from vitzoo.testing import PluginTests

    class TestAcme(PluginTests):
        namespace = "acme"

docs/testing.md lists the tests. Only `PluginTests` and the fixture `vitzoo_hub` need pytest.

The module has no assert statements (PYTEST_DONT_REWRITE), so it may be imported before pytest
loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitzoo.testing.checks import (
    check_checkpoint_format,
    check_drop_path_policy,
    check_head,
    check_patch_embedder,
    check_pool,
    check_position_embedding,
    check_variant,
)
from vitzoo.testing.checks.weights import checkpoint_formats, stand_in, trained_spec
from vitzoo.testing.hub import Hub
from vitzoo.testing.subject import Sizes

if TYPE_CHECKING:
    from vitzoo.testing.suite import PluginTests

__all__ = [
    "Hub",
    "PluginTests",
    "Sizes",
    "check_checkpoint_format",
    "check_drop_path_policy",
    "check_head",
    "check_patch_embedder",
    "check_pool",
    "check_position_embedding",
    "check_variant",
    "checkpoint_formats",
    "stand_in",
    "trained_spec",
]
pytest_plugins = ["vitzoo.testing.suite"]


def __getattr__(name: str) -> Any:
    if name == "PluginTests":
        from vitzoo.testing.suite import PluginTests

        return PluginTests
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
