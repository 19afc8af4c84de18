"""Registry files: the contributions of the hooks, written in TOML.

The core's `registry.toml`, a plugin's manifest and the file that `VITZOO_REGISTRY` names share
one schema; docs/registry.md lists every key. Reading one imports nothing but this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vitzoo.plugin.hookspecs import hookimpl
from vitzoo.schema.kinds import HOOKS
from vitzoo.schema.manifest import Manifest


class ManifestPlugin:
    """A manifest as pluggy sees it: an object with an implementation of every hook."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        for hook in HOOKS:
            setattr(self, hook, hookimpl(_gives(manifest.rows(hook))))


def _gives(rows: tuple[Any, ...]) -> Callable[[], tuple[Any, ...]]:
    def give() -> tuple[Any, ...]:
        return rows

    return give
