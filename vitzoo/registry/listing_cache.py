"""What a listing says of a plugin's variants, kept beside the store so that no manifest is parsed.

An entry is named by what it was made from: the bytes of the manifest and of the core's, and what a
listing says. It holds what is shown and searched, never pins that are used: whoever asks for a
variant gets it from the manifest itself.
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
SHAPE = 1  # of an entry; another number when rows change
COLUMNS = (*FIELDS, KNOWN_AS)
MAX_ENTRIES = 1024  # one for each manifest, and those of its former texts


def row_of(variant: Variant) -> Row:
    """Return what a listing says of a variant, and its names elsewhere.

    Those are (library, name, "") for the network, (`HUB`, repository, weights) for its files.
    """
    names = [[library, name, ""] for library, name in variant.known_as]
    names += [[HUB, row.repo, row.name] for row in variant.weights if row.repo]
    return fields(variant) | {KNOWN_AS: names}


def index_path(manifest: Path, namespace: str) -> Path | None:
    """Return where the rows of a manifest are kept, None where nothing is kept on disk."""
    with suppress(OSError, RuntimeError):  # no such file; nobody's home
        home = settings.home()
        if home is None:
            return None
        with manifest.open("rb") as file:
            made_from = hashlib.sha256(file.read(MAX_PLUGIN_MANIFEST + 1))
        made_from.update(f"\0{namespace}\0{manifest}\0{_version()}".encode())
        return home / "cache" / "listing" / f"{made_from.hexdigest()}.json"
    return None


def read_rows(path: Path) -> list[Row] | None:
    """Return the rows that are kept at a path, None where there are none."""
    try:
        with path.open("rb") as file:
            table = json.load(file)
        return [dict(zip(COLUMNS, row, strict=True)) for row in table]
    except (OSError, ValueError, TypeError, RecursionError):  # cut or damaged: written anew
        return None


def write_rows(path: Path, rows: list[Row]) -> None:
    """Keep the rows of a manifest, if there is a place for them."""
    with suppress(OSError, StoreError):
        make_folder(path.parent)
        _clear_oldest(path.parent)
        write_atomic(path, json.dumps([[row[c] for c in COLUMNS] for row in rows]).encode())


def _clear_oldest(folder: Path) -> None:
    """Make room for an entry; those of manifests that have changed are never read again."""
    entries = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in entries[: max(0, len(entries) - MAX_ENTRIES + 1)]:
        path.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def _version() -> str:
    core = hashlib.sha256(CORE_MANIFEST.read_bytes()).hexdigest()
    return f"{SHAPE} {__version__} {core} {' '.join(COLUMNS)}"
