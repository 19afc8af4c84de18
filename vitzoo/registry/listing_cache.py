"""A cache of the listed fields of a plugin's variants, so that listings parse no manifest.

The file name of a cache entry is a hash of the manifest, the core's manifest and the listed
columns. The cache serves listings only: variants and their hashes always come from the manifest.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from vitzoo import __version__, settings
from vitzoo.errors import StoreError
from vitzoo.files.access import make_folder, write_atomic
from vitzoo.registry.listing import FIELDS, fields
from vitzoo.schema.manifest import CORE_MANIFEST, MAX_PLUGIN_MANIFEST
from vitzoo.schema.rows import Variant

Row = dict[str, Any]
KNOWN_AS = "known_as"
HUB = "the Hub"
SHAPE = 1  # version of the rows
COLUMNS = (*FIELDS, KNOWN_AS)
MAX_ENTRIES = 1024  # also of former versions of manifests


def row_of(variant: Variant) -> Row:
    """Return the listed fields of a variant, and its names outside vitzoo.

    These names are (library, name, "") for the network and (`HUB`, repository, weights) for files.
    """
    names = [[library, name, ""] for library, name in variant.known_as]
    names += [[HUB, row.repo, row.name] for row in variant.weights if row.repo]
    return fields(variant) | {KNOWN_AS: names}


def index_path(manifest: Path, namespace: str) -> Path | None:
    """Return the path of a manifest's cache entry, None if there is no folder for it."""
    with suppress(OSError, RuntimeError):  # a missing file, or an unknown home folder
        home = settings.home()
        if home is None:
            return None
        with manifest.open("rb") as file:
            made_from = hashlib.sha256(file.read(MAX_PLUGIN_MANIFEST + 1))
        made_from.update(f"\0{namespace}\0{manifest}\0{_version()}".encode())
        return home / "cache" / "listing" / f"{made_from.hexdigest()}.json"
    return None


def read_rows(path: Path) -> list[Row] | None:
    """Return the rows of a cache entry, None if it is missing or damaged."""
    try:
        with path.open("rb") as file:
            table = json.load(file)
        return [dict(zip(COLUMNS, row, strict=True)) for row in table]
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def write_rows(path: Path, rows: list[Row]) -> None:
    """Write a cache entry, if its folder can be written."""
    with suppress(OSError, StoreError):
        make_folder(path.parent)
        _clear_oldest(path.parent)
        write_atomic(path, json.dumps([[row[c] for c in COLUMNS] for row in rows]).encode())


def _clear_oldest(folder: Path) -> None:
    """Delete the oldest entries, so that a new one stays within the limit."""
    entries = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in entries[: max(0, len(entries) - MAX_ENTRIES + 1)]:
        path.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def _version() -> str:
    core = hashlib.sha256(CORE_MANIFEST.read_bytes()).hexdigest()
    return f"{SHAPE} {__version__} {core} {' '.join(COLUMNS)}"
