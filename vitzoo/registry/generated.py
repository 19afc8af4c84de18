"""The listings of the core and of the first-party plugins, which this repository generates.

`listings/NAMESPACE.json` has what `vitzoo list` shows of a manifest, and the hash of that manifest.
It is used in place of an equal manifest, and for a plugin that is not installed.
`tests/update_listings.py` writes the files. Torch-free.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from vitzoo.errors import StoreError
from vitzoo.files.access import read_regular
from vitzoo.plugin.info import CORE, FIRST_PARTY
from vitzoo.registry.listing import ENTRIES, FIELDS, KNOWN_AS, Listed
from vitzoo.schema.terms import MAX_PLUGIN_MANIFEST

FOLDER = Path(__file__).with_name("listings")
COLUMNS = (*FIELDS, ENTRIES, KNOWN_AS)


class Listing(NamedTuple):
    """What `vitzoo list` and `vitzoo plugins` show of a plugin.

    Args:
        rows: one of each variant.
        parts, formats: the number of its parts and of its checkpoint formats.
        summary: what its networks are, in one sentence; empty if it states none.
    """

    rows: list[Listed]
    parts: int
    formats: int
    summary: str = ""


class Generated(NamedTuple):
    """A generated file.

    Args:
        manifest: the SHA-256 of the manifest from which it was made, in hex digits.
        listing: of that manifest.
        types: the model types of transformers that the formats of the plugin read.
    """

    manifest: str
    listing: Listing
    types: tuple[str, ...]


@cache
def generated(namespace: str) -> Generated | None:
    """Return what was generated for a namespace, None for the plugin of someone else."""
    file = FOLDER / f"{namespace}.json"
    if (namespace != CORE and namespace not in FIRST_PARTY) or not file.is_file():
        return None  # a new namespace has no file until it is generated
    import json

    table = json.loads(file.read_bytes())
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table["variants"]]
    listing = Listing(rows, table["parts"], table["formats"], table["summary"])
    return Generated(table["manifest"], listing, tuple(table["types"]))


def listing_of(manifest: Path, namespace: str) -> Listing | None:
    """Return the generated listing of a manifest, None if it was made from another manifest."""
    if (found := generated(namespace)) is None:
        return None
    from hashlib import sha256  # costs milliseconds, which `vitzoo show` has not

    try:
        data = read_regular(manifest, MAX_PLUGIN_MANIFEST)
    except StoreError:
        return None  # reading the manifest reports the error
    same = data is not None and sha256(data).hexdigest() == found.manifest
    return found.listing if same else None
