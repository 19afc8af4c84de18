"""A cache of the listed fields of a plugin's variants, so that listings parse no manifest.

A manifest has one entry. The entry states from what it was made: the manifest, the core's manifest
and the listed columns. The cache serves listings only: variants and their hashes always come from
the manifest.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vitzoo import __version__, settings
from vitzoo.errors import InvalidOption
from vitzoo.files.access import read_own, read_regular, write_atomic
from vitzoo.registry.listing import ENTRIES, FIELDS, OF_WEIGHTS, Listed, fields, of_weights
from vitzoo.schema.terms import CORE_MANIFEST, MAX_PLUGIN_MANIFEST

if TYPE_CHECKING:
    from vitzoo.schema.rows import Variant

KNOWN_AS = "known_as"
HUB = "the Hub"
SHAPE = 4  # version of the rows
COLUMNS = (*FIELDS, ENTRIES, KNOWN_AS)


class Listing(NamedTuple):
    """What `vitzoo list` and `vitzoo plugins` show of a manifest.

    Args:
        rows: one of each variant.
        parts, formats: the number of its parts and of its checkpoint formats.
    """

    rows: list[Listed]
    parts: int
    formats: int


def row_of(variant: Variant) -> Listed:
    """Return the listed fields of a variant, of its weights entries, and its names outside vitzoo.

    These names are (library, name, "") for the network and (`HUB`, repository, weights) for files.
    """
    names = [[library, name, ""] for library, name in variant.known_as]
    names += [[HUB, row.repo, row.name] for row in variant.weights if row.repo]
    entries = [of_weights(row) for row in variant.weights]
    return fields(variant) | {ENTRIES: entries, KNOWN_AS: names}


class Entry(NamedTuple):
    """The cache entry of a manifest.

    Args:
        path: of the entry.
        made_from: hash of everything that the rows depend on.
    """

    path: Path
    made_from: str

    @classmethod
    def of(cls, manifest: Path, namespace: str) -> Entry | None:
        """Return the entry of a manifest; None if it cannot be read, or without a home."""
        from hashlib import sha256  # costs milliseconds, which `vitzoo show` has not

        with suppress(OSError, InvalidOption):
            home, text = settings.home(), read_regular(manifest, MAX_PLUGIN_MANIFEST)
            if home is not None and text is not None:
                name = sha256(os.fsencode(f"{namespace}\0{manifest}")).hexdigest()
                made_from = sha256(text + _version().encode()).hexdigest()
                return cls(home / "cache" / "listing" / f"{name}.json", made_from)
        return None

    def read(self) -> Listing | None:
        """Return what was written, None if there is nothing, or it is damaged, old or unsafe."""
        import json

        try:
            made_from, parts, formats, table = json.loads(read_own(self.path) or b"")
            rows = [dict(zip(COLUMNS, row, strict=True)) for row in table]
        except (OSError, ValueError, TypeError):
            return None
        return Listing(rows, parts, formats) if made_from == self.made_from else None

    def write(self, listing: Listing) -> None:
        """Write the entry, if its folder can be written."""
        import json

        table = [[row[c] for c in COLUMNS] for row in listing.rows]
        data = json.dumps([self.made_from, listing.parts, listing.formats, table]).encode()
        with suppress(OSError):
            self.path.unlink(
                missing_ok=True
            )  # others might write to it; the new file is the user's
            write_atomic(self.path, data, lasting=False)


@lru_cache(maxsize=1)
def _version() -> str:
    from hashlib import sha256

    core = sha256(CORE_MANIFEST.read_bytes()).hexdigest()
    return f"{SHAPE} {__version__} {core} {' '.join((*COLUMNS, *OF_WEIGHTS))}"
