"""A cache of the listed fields of a plugin's variants, so that listings parse no manifest.

The file name of a cache entry is a hash of the manifest, the core's manifest and the listed
columns. The cache serves listings only: variants and their hashes always come from the manifest.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitzoo import __version__, settings
from vitzoo.errors import InvalidOption
from vitzoo.files.access import read_regular, write_atomic
from vitzoo.registry.listing import ENTRIES, FIELDS, OF_WEIGHTS, Row, fields, of_weights
from vitzoo.schema.terms import CORE_MANIFEST, MAX_PLUGIN_MANIFEST

if TYPE_CHECKING:
    from vitzoo.schema.rows import Variant

KNOWN_AS = "known_as"
HUB = "the Hub"
SHAPE = 3  # version of the rows
COLUMNS = (*FIELDS, ENTRIES, KNOWN_AS)
MAX_ENTRIES = 1024  # also of former versions of manifests
MAX_INDEX = 16 * MAX_PLUGIN_MANIFEST


class Listing(NamedTuple):
    """What `vitzoo list` and `vitzoo plugins` show of a manifest.

    Args:
        rows: one of each variant.
        parts, formats: the number of its parts and of its checkpoint formats.
    """

    rows: list[Row]
    parts: int
    formats: int


def row_of(variant: Variant) -> Row:
    """Return the listed fields of a variant, of its weights entries, and its names outside vitzoo.

    These names are (library, name, "") for the network and (`HUB`, repository, weights) for files.
    """
    names = [[library, name, ""] for library, name in variant.known_as]
    names += [[HUB, row.repo, row.name] for row in variant.weights if row.repo]
    entries = [of_weights(row) for row in variant.weights]
    return fields(variant) | {ENTRIES: entries, KNOWN_AS: names}


def index_path(manifest: Path, namespace: str) -> Path | None:
    """Return the path of a manifest's cache entry, None if there is no folder for it."""
    # An unreadable or large file, or no folder for the cache.
    with suppress(OSError, InvalidOption):
        home, text = settings.home(), read_regular(manifest, MAX_PLUGIN_MANIFEST)
        if home is None or text is None:
            return None
        from hashlib import sha256

        made_from = sha256(text)
        made_from.update(os.fsencode(f"\0{namespace}\0{manifest}\0{_version()}"))
        return home / "cache" / "listing" / f"{made_from.hexdigest()}.json"
    return None


def read_listing(path: Path) -> Listing | None:
    """Return a cache entry, None if it is missing or damaged."""
    import json

    try:
        parts, formats, table = json.loads(read_regular(path, MAX_INDEX) or b"")
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in table]
        return Listing(rows, int(parts), int(formats))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def write_listing(path: Path, listing: Listing) -> None:
    """Write a cache entry, if its folder can be written."""
    import json

    table = [[row[c] for c in COLUMNS] for row in listing.rows]
    data = json.dumps([listing.parts, listing.formats, table]).encode()
    with suppress(OSError):
        write_atomic(path, data, lasting=False)


def clear_oldest(folder: Path, used: int) -> None:
    """Delete the oldest entries beyond a limit, which leaves room for twice the `used` ones."""
    with suppress(OSError):  # another process deletes them, too
        entries = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in entries[: max(0, len(entries) - max(MAX_ENTRIES, 2 * used))]:
            path.unlink(missing_ok=True)


@lru_cache(maxsize=1)
def _version() -> str:
    from hashlib import sha256

    core = sha256(CORE_MANIFEST.read_bytes()).hexdigest()
    return f"{SHAPE} {__version__} {core} {' '.join((*COLUMNS, *OF_WEIGHTS))}"
