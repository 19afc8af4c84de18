"""A manifest as a pluggy plugin, so that manifests and modules contribute through one interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vitzoo.plugin.hookspecs import hookimpl
from vitzoo.schema.kinds import HOOKS
from vitzoo.schema.manifest import Manifest


class ManifestPlugin:
    """Implements the hooks for which a manifest has entries."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        for hook in HOOKS:
            if rows := manifest.rows(hook):
                setattr(self, hook, hookimpl(_returning(rows)))


def _returning(rows: tuple[Any, ...]) -> Callable[[], tuple[Any, ...]]:
    return lambda: rows
