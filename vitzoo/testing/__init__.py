"""The conformance kit: tests that every plugin of vitzoo can run on itself.

    # conftest.py
    pytest_plugins = ["vitzoo.testing"]

    # test_conformance.py
    from vitzoo.testing import PluginTests

    class TestAcme(PluginTests):
        namespace = "acme"

Nothing loads it but that line, and nothing else of vitzoo needs pytest. docs/testing.md says what
is checked and what to do where samples are needed.

It has no assert statements (PYTEST_DONT_REWRITE), so it may be imported before pytest loads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from vitzoo.testing.checks import (
    check_checkpoint_format,
    check_drop_path_policy,
    check_head,
    check_patch_embedder,
    check_pool,
    check_position_embedding,
    check_variant,
)
from vitzoo.testing.hub import Hub
from vitzoo.testing.subject import Sizes
from vitzoo.testing.suite import PluginTests, drop_empty
from vitzoo.testing.weights import checkpoint_formats, listening, stand_in, trained_spec

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


@pytest.fixture
def vitzoo_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub on loopback that this process downloads from, into a store of the test's own."""
    for name in [name for name in os.environ if name.startswith("VITZOO_")]:
        monkeypatch.delenv(name)
    with listening(tmp_path / "vitzoo") as hub:
        yield hub


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests of kinds that a plugin does not contribute."""
    items[:], dropped = drop_empty(items)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
