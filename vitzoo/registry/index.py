"""The rows of all variants, for listings; those of manifests that were listed before are cached.

A manifest has one cache entry. The entry states from what it was made: the manifest, the core's
manifest and the listed columns. The cache serves listings only: variants and their hashes always
come from the manifest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitzoo import __version__, settings
from vitzoo.errors import InvalidOption, PluginError
from vitzoo.files.access import read_own, read_regular, write_atomic
from vitzoo.plugin.host import LOCK, named
from vitzoo.plugin.info import CORE, LOCAL, PluginInfo, place
from vitzoo.registry.listing import (
    ENTRIES,
    FIELDS,
    HUB,
    KNOWN_AS,
    LABEL,
    OF_WEIGHTS,
    Listed,
    fields,
    for_each_weights,
    mentions,
    of_weights,
)
from vitzoo.schema.terms import CORE_MANIFEST, MAX_PLUGIN_MANIFEST

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry
    from vitzoo.schema.rows import Variant

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


class Index:
    """The listed fields of all variants, and the variants behind them.

    Args:
        zoo: the registry; a manifest that was listed before is not read.
    """

    def __init__(self, zoo: Registry) -> None:
        self.zoo = zoo
        self._cached: dict[str, Listing] = {}  # of manifests that have not been read

    def listing(
        self, patterns: Iterable[str] = ("*",), *, each_weights: bool = False
    ) -> list[Listed]:
        """Return the listed fields of the variants whose names match a shell-style pattern.

        With `each_weights`, every weights entry of a variant has a row, whose `LABEL` names it.

        A manifest that was listed before is not parsed again. A pattern with the namespace of a
        lazy module plugin (`acme/*`) imports that plugin.
        """
        patterns = list(patterns)
        for pattern in patterns:  # raises PluginError if this plugin cannot be used
            namespace, slash, _ = pattern.partition("/")
            if slash and namespace in self.zoo.host.manifests():
                self._index(namespace)
            elif slash:
                self.zoo.load_namespace_of(pattern)
        every = self.rows()
        patterns = [self._renamed(pattern, every) for pattern in patterns]
        rows = [row for row in every if any(fnmatchcase(row["name"], p) for p in patterns)]
        rows.sort(key=lambda row: place(row["namespace"]))
        if each_weights:
            rows = [entry for row in rows for entry in for_each_weights(row)]
        keys = (*FIELDS, LABEL) if each_weights else FIELDS
        return [{key: row[key] for key in keys} for row in rows]

    def unmatched(self, patterns: Iterable[str]) -> list[str]:
        """Return the patterns that match no variant; `listing` has read their plugins.

        `mim/*` is no such pattern, because that plugin is installed: it has parts and no variants.
        """
        patterns = list(patterns)
        rows = self.rows() if patterns else []  # a row of each variant takes time
        whole = [f"{namespace}/*" for namespace in self.zoo.host.infos]
        present = {pattern: self._renamed(pattern, rows) for pattern in patterns}
        names = [*(row["name"] for row in rows), *whole]
        return [p for p, now in present.items() if not any(fnmatchcase(n, now) for n in names)]

    def search(self, word: str) -> list[str]:
        """Return the names of variants that mention a word, see `mentions`."""
        return [row["name"] for row in self.rows() if mentions(row, word)]

    def _renamed(self, pattern: str, rows: Iterable[Listed]) -> str:
        """Return the present name if `pattern` is an alias that matches no row."""
        if any(fnmatchcase(row["name"], pattern) for row in rows):
            return pattern
        self.zoo.load_namespace_of(pattern)  # the listing cache has no aliases
        return (
            pattern
            if self.zoo.host.switches.hides(pattern)
            else self.zoo.aliases.get(pattern, pattern)
        )

    def variant(self, row: Listed) -> Variant | None:
        """Return the variant of a listed row, None if the plugin does not have it.

        The variant always comes from the plugin, never from the listing cache.
        """
        with suppress(PluginError):
            self.zoo.load_namespace_of(row["name"])
        return self.zoo.host.variants.get(row["name"])

    def overview(self) -> Iterator[tuple[str, PluginInfo, tuple[int, int, int] | None]]:
        """Yield the name and the state of every plugin, and the numbers of its contributions.

        These are variants, parts and checkpoint formats; None if they are not known. A manifest
        that was listed before is not read, because it could be used.
        """
        from dataclasses import replace

        self.rows()
        for name, info in list(self.zoo.host.infos.items()):
            if any(off.startswith(f"{name}/") for off in self.zoo.host.switches.off):
                with suppress(PluginError):
                    self.zoo.host.load(name)  # it may have parts that are disabled
            if name in self._cached and name in self.zoo.host.manifests():
                listing, path = self._cached[name], self.zoo.host.manifest_path(name)
                state = info.state if name == CORE else "loaded"
                counts = len(listing.rows), listing.parts, listing.formats
                yield name, replace(info, state=state, location=str(path)), counts
            elif name == LOCAL:
                own = (row for row in self.zoo.host.variants.values() if row.namespace == LOCAL)
                yield name, info, _counts(own)
            else:
                rows = [row for _, row in self.zoo.host.rows.get(name, ())]
                yield name, self.zoo.host.infos[name], _counts(rows) if rows else None

    def rows(self) -> list[Listed]:
        """Return a row for every variant; the rows of unread manifests come from the cache."""
        cached: list[Listed] = []
        for namespace in self.zoo.host.manifests():
            with suppress(PluginError):
                cached += self._index(namespace)
        with LOCK:
            loaded = [row_of(variant) for variant in self.zoo.host.variants.values()]
        there = {row["namespace"] for row in loaded}
        return [*(row for row in cached if row["namespace"] not in there), *loaded]

    def _index(self, namespace: str) -> list[Listed]:
        """Return the cached rows of a manifest.

        Without a cache entry, load the plugin, write the entry and return an empty list.

        Raises:
            PluginError: the manifest cannot be used.
        """
        if namespace in self._cached:
            return self._cached[namespace].rows
        path = self.zoo.host.manifest_path(namespace)
        entry = path and Entry.of(path, namespace)
        if listing := entry and entry.read():
            rows = [row for row in listing.rows if not self.zoo.host.switches.hides(row["name"])]
            self._cached[namespace] = listing._replace(rows=rows)
            return rows
        self.zoo.host.load(namespace)
        if entry:
            every = [row for _, row in self.zoo.host.contents[namespace].rows]
            variants = [row for row in every if type(row).__name__ == "Variant"]
            rows = [row_of(named(namespace, variant)) for variant in variants]
            entry.write(Listing(rows, *_counts(every)[1:]))
        return []


def _counts(rows: Iterable[Any]) -> tuple[int, int, int]:
    """Return the numbers of variants, parts and checkpoint formats."""
    kinds = [type(row).__name__ for row in rows]
    variants, formats = kinds.count("Variant"), kinds.count("CheckpointFormat")
    return variants, len(kinds) - variants - formats, formats
