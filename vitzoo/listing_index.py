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
from vitzoo.catalogue import Variant
from vitzoo.errors import StoreError
from vitzoo.listing import FIELDS, fields
from vitzoo.plugins import CORE_MANIFEST
from vitzoo.store import make_folder, write_atomic

Row = dict[str, Any]
KNOWN_AS = "known_as"
HUB = "the Hub"
SHAPE = 1  # of an entry; another number when rows change
MAX_INDEX = 64 * 1024 * 1024


def row_of(variant: Variant) -> Row:
    """Return what a listing says of a variant, and its names elsewhere.

    Those are (library, name, "") for the network, (`HUB`, repository, weights) for its files.
    """
    names = [[library, name, ""] for library, name in variant.known_as]
    names += [[HUB, row.repo, row.name] for row in variant.weights if row.repo]
    return fields(variant) | {KNOWN_AS: names}


def read_rows(manifest: Path, namespace: str) -> list[Row] | None:
    """Return the rows of a manifest, None where they are not known."""
    path = _path(manifest, namespace)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            rows = json.loads(file.read(MAX_INDEX).decode())
    except (OSError, ValueError, RecursionError):
        return None
    return rows if _fits(rows, namespace) else None


def write_rows(manifest: Path, namespace: str, rows: list[Row]) -> None:
    """Keep the rows of a manifest, if there is a place for them."""
    path = _path(manifest, namespace)
    if path is not None:
        with suppress(OSError, StoreError):
            make_folder(path.parent)
            write_atomic(path, json.dumps(rows).encode())


def _path(manifest: Path, namespace: str) -> Path | None:
    home = settings.home()
    if home is None:
        return None
    try:
        made_from = hashlib.sha256(manifest.read_bytes())
    except OSError:
        return None
    made_from.update(f"\0{namespace}\0{_version()}".encode())
    return home / "cache" / "listing" / f"{made_from.hexdigest()}.json"


@lru_cache(maxsize=1)
def _version() -> str:
    core = hashlib.sha256(CORE_MANIFEST.read_bytes()).hexdigest()
    return f"{SHAPE} {__version__} {core} {' '.join(FIELDS)}"


def _fits(rows: object, namespace: str) -> bool:
    keys = {*FIELDS, KNOWN_AS}
    return isinstance(rows, list) and all(
        isinstance(row, dict)
        and row.keys() == keys
        and str(row["name"]).startswith(f"{namespace}/")
        and row["namespace"] == namespace
        and all(row[key] is None or isinstance(row[key], str | int | float) for key in FIELDS)
        and _are_names(row[KNOWN_AS])
        for row in rows
    )


def _are_names(names: object) -> bool:
    return isinstance(names, list) and all(
        isinstance(name, list) and len(name) == 3 and all(isinstance(text, str) for text in name)
        for name in names
    )
