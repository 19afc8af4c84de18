"""The rows of all variants, for listings.

The rows of the core and of the first-party plugins are generated, see `generated.py`; any other
manifest is read. Variants and their hashes always come from the manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from vitzoo.errors import PluginError
from vitzoo.plugin.host import LOCK
from vitzoo.plugin.info import CORE, FIRST_PARTY, PluginInfo, place
from vitzoo.registry.generated import Listing, generated, listing_of
from vitzoo.registry.listing import (
    ENTRIES,
    FIELDS,
    HUB,
    KNOWN_AS,
    LABEL,
    Family,
    Listed,
    Names,
    fields,
    for_each_weights,
    mentions,
    names_elsewhere,
    of_weights,
)

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry
    from vitzoo.schema.rows import Variant

ALSO = {"vit": CORE}  # its names begin with it
NOT_IN_NAMESPACES = frozenset("/:.*?[@")


def row_of(variant: Variant) -> Listed:
    """Return the listed fields of a variant, of its weights entries, and its names outside vitzoo.

    These names are (library, name, "") for the network and (`HUB`, repository, weights) for files.
    """
    names = [[library, name, ""] for library, name in variant.known_as]
    names += [[HUB, row.repo, row.name] for row in variant.weights if row.repo]
    entries = [of_weights(row) for row in variant.weights]
    return fields(variant) | {ENTRIES: entries, KNOWN_AS: names}


class Index:
    """The listed fields of all variants, and the variants behind them.

    Args:
        zoo: the registry; a manifest whose listing is generated is not read.
    """

    def __init__(self, zoo: Registry) -> None:
        self.zoo = zoo
        self._listings: dict[str, Listing] = {}  # without disabled names, by namespace
        self._elsewhere: tuple[int, Names] = 0, {}  # of how many listings

    def listing(
        self, patterns: Iterable[str] = ("*",), *, each_weights: bool = False
    ) -> list[Listed]:
        """Return the listed fields of the variants whose names match a shell-style pattern.

        With `each_weights`, every weights entry of a variant has a row, whose `LABEL` names it.

        A pattern with the namespace of a lazy module plugin (`acme/*`) imports that plugin.
        """
        patterns = list(patterns)
        for pattern in patterns:  # raises PluginError if this plugin cannot be used
            namespace, slash, _ = pattern.partition("/")
            if slash and namespace in self.zoo.host.manifests():
                self._list(namespace)
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
        self.zoo.load_namespace_of(pattern)  # listings have no aliases
        return (
            pattern
            if self.zoo.host.switches.hides(pattern)
            else self.zoo.aliases.get(pattern, pattern)
        )

    def variant(self, row: Listed) -> Variant | None:
        """Return the variant of a listed row, None if the plugin does not have it.

        The variant always comes from the plugin, never from a listing.
        """
        with suppress(PluginError):
            self.zoo.load_namespace_of(row["name"])
        return self.zoo.host.variants.get(row["name"])

    def overview(self) -> Iterator[tuple[str, PluginInfo, tuple[int, int, int] | None]]:
        """Yield the name and the state of every plugin, and the numbers of its contributions.

        These are variants, parts and checkpoint formats; None if they are not known. A manifest
        whose listing is generated is not read, because it could be used.
        """
        host = self.zoo.host
        self.rows()
        self.zoo.check_vitzoo()
        for name in list(host.infos):
            if any(off.startswith(f"{name}/") for off in host.switches.off):
                with suppress(PluginError):
                    host.load(name)  # it may have parts that are disabled
            info, listing = host.infos[name], self._listings.get(name)
            if listing and name in host.manifests() and info.state != "incompatible":  # not read
                state = info.state if name == CORE else "loaded"
                info = replace(info, state=state, location=str(host.manifest_path(name)))
            elif host.rows.get(name):
                listing = self._of_read(name)
            yield name, info, listing and (len(listing.rows), listing.parts, listing.formats)

    def rows(self) -> list[Listed]:
        """Return a row for every variant."""
        for namespace in self.zoo.host.manifests():
            if namespace not in self._listings:
                with suppress(PluginError):
                    self._list(namespace)
        with LOCK:
            read = dict.fromkeys(variant.namespace for variant in self.zoo.host.variants.values())
        for namespace in read:
            if namespace not in self._listings:
                self._listings[namespace] = self._of_read(namespace)
        return [row for listing in self._listings.values() for row in listing.rows]

    def of(self, namespace: str) -> Listing:
        """Return the listing of one installed plugin; no other plugin is read.

        Raises:
            PluginError: the plugin cannot be used.
        """
        if namespace not in self._listings and namespace in self.zoo.host.manifests():
            self._list(namespace)
        if namespace not in self._listings:
            self.zoo.host.load(namespace)
            self._listings[namespace] = self._of_read(namespace)
        return self._listings[namespace]

    def family(self, name: str) -> Family | None:
        """Return the family that a name such as `dinov2` or `dinov2/` means, None for another.

        The name of a plugin of this project without `vitzoo-`, such as `encoders`, means all of its
        namespaces, and `vit` the core. Only that plugin is read, and a module plugin is imported.

        Raises:
            PluginError: the plugin cannot be used.
        """
        name = ALSO.get(name.removesuffix("/"), name.removesuffix("/"))
        if not NOT_IN_NAMESPACES.isdisjoint(name):  # reads no entry points
            return None
        if found := self._family_of(name):
            return found
        spaces = _namespaces(f"vitzoo-{name}")
        every = [one for space in spaces if (one := self._family_of(space))]
        if not every:
            return None
        return Family(
            name,
            f"The families {', '.join(one.name for one in every if one.rows)}",
            every[0].plugin,
            all(one.installed for one in every),
            [row for one in every for row in one.rows],
            sum(one.parts for one in every),
            sum(one.formats for one in every),
            tuple(one.name for one in every),
        )

    def families(self, patterns: Iterable[str]) -> tuple[dict[str, Family], tuple[str, ...]]:
        """Return the families that patterns name, and the patterns with those of their names.

        Raises:
            PluginError: a plugin cannot be used.
        """
        every = {pattern: self.family(pattern) for pattern in patterns}
        wanted = (one.patterns if one else (pattern,) for pattern, one in every.items())
        named = {pattern: one for pattern, one in every.items() if one}
        return named, tuple(pattern for several in wanted for pattern in several)

    def _family_of(self, namespace: str) -> Family | None:
        if info := self.zoo.host.infos.get(namespace):
            listing, plugin = self.of(namespace), info.distribution
        elif namespace in FIRST_PARTY and (found := generated(namespace)):
            listing, plugin = found.listing, FIRST_PARTY[namespace]
        else:
            return None
        others = (one for one in _namespaces(plugin) if one != namespace)
        siblings = (one for one in others if (found := generated(one)) and found.listing.rows)
        return Family(
            namespace,
            listing.summary,
            plugin,
            info is not None,
            listing.rows,
            listing.parts,
            listing.formats,
            (namespace,),
            () if listing.rows else tuple(siblings),
        )

    def elsewhere(self) -> Names:
        """Return what each name of another library, of a paper or of the Hub means."""
        rows = self.rows()
        if len(self._listings) != self._elsewhere[0]:  # a listing never changes
            self._elsewhere = len(self._listings), names_elsewhere(rows)
        return self._elsewhere[1]

    def _list(self, namespace: str) -> None:
        """List a manifest that has not been read; load it if its listing is not generated.

        Raises:
            PluginError: the manifest cannot be used.
        """
        host = self.zoo.host
        path = host.manifest_path(namespace)
        if listing := path and listing_of(path, namespace):
            rows = [row for row in listing.rows if not host.switches.hides(row["name"])]
            self._listings[namespace] = listing._replace(rows=rows)
        else:
            host.load(namespace)

    def _of_read(self, namespace: str) -> Listing:
        """Return the listing of a plugin that was read, or of the user's registry files."""
        with LOCK:
            every = list(self.zoo.host.variants.values())
        entries = [row for _, row in self.zoo.host.rows.get(namespace, ())]
        rows = [row_of(variant) for variant in every if variant.namespace == namespace]
        contents = self.zoo.host.contents.get(namespace)
        return Listing(rows, *contributions(entries), contents.summary if contents else "")


def _namespaces(plugin: str) -> list[str]:
    """Return the namespaces of a plugin of this project."""
    return [namespace for namespace, owner in FIRST_PARTY.items() if owner == plugin]


def contributions(entries: Iterable[Any]) -> tuple[int, int]:
    """Return the numbers of parts and of checkpoint formats."""
    kinds = [type(row).__name__ for row in entries]
    formats = kinds.count("CheckpointFormat")
    return len(kinds) - kinds.count("Variant") - formats, formats
