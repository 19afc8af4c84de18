"""Families: the networks of one namespace, such as `dinov2`, or of one plugin; torch-free.

The sentence about a family is the `summary` at the top of its manifest. Papers and licenses are
those of its networks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from vitzoo.plugin.info import CORE, FIRST_PARTY
from vitzoo.registry.generated import generated
from vitzoo.registry.listing import ENTRIES, KNOWN_AS, OF_WEIGHTS, Listed

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry

LICENSE = OF_WEIGHTS.index("license")
NOT_IN_NAMESPACES = frozenset("/:.*?[@")
ALSO = {"vit": CORE}  # its names begin with it
TIMM = "timm"  # the namespace of timm's networks, and the library


class Family(NamedTuple):
    """The networks of a namespace, or of a plugin of this project.

    Args:
        name: the namespace, or the name of the plugin without `vitzoo-`.
        summary: what the networks are, in one sentence; empty if the plugin does not state it.
        plugin: the distribution.
        installed: whether the plugin is installed.
        rows: one of each network.
        parts, formats: the number of parts and of checkpoint formats.
        namespaces: of the plugin, or the only one.
    """

    name: str
    summary: str
    plugin: str
    installed: bool
    rows: list[Listed]
    parts: int
    formats: int
    namespaces: tuple[str, ...]

    @property
    def papers(self) -> list[str]:
        """The papers of the networks."""
        return list(dict.fromkeys(row["paper"] for row in self.rows if row["paper"]))

    @property
    def licenses(self) -> list[str]:
        """The licenses of all weights."""
        every = (entry[LICENSE] for row in self.rows for entry in row[ENTRIES])
        return list(dict.fromkeys(filter(None, every)))

    @property
    def contents(self) -> str:
        """The numbers of networks, parts and checkpoint formats."""
        numbers = {
            "network": len(self.rows), "part": self.parts, "checkpoint format": self.formats
        }  # fmt: skip
        stated = (f"{n} {what}{'s' * (n > 1)}" for what, n in numbers.items() if n)
        return ", ".join(stated) or "nothing"

    @property
    def patterns(self) -> tuple[str, ...]:
        """The patterns that match the names of the family, if it is installed."""
        core = tuple(row["name"] for row in self.rows)  # these have no common beginning
        return core if self.name == CORE else tuple(f"{one}/*" for one in self.namespaces)

    @property
    def siblings(self) -> list[str]:
        """The other namespaces of the plugin, if it is of this project, that have networks."""
        names = (one for one in _namespaces(self.plugin) if one not in self.namespaces)
        return [one for one in names if (found := generated(one)) and found.listing.rows]


def family(name: str, zoo: Registry) -> Family | None:
    """Return the family that a name such as `dinov2` or `dinov2/` means, None for another name.

    The name of a plugin of this project without `vitzoo-`, such as `encoders`, means all of its
    namespaces, and `vit` the core. Only that plugin is read, and a module plugin is imported.

    Raises:
        PluginError: the plugin cannot be used.
    """
    name = ALSO.get(name.removesuffix("/"), name.removesuffix("/"))
    if not NOT_IN_NAMESPACES.isdisjoint(name):  # reads no entry points
        return None
    if found := _of_namespace(name, zoo):
        return found
    every = [one for space in _namespaces(f"vitzoo-{name}") if (one := _of_namespace(space, zoo))]
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


def _namespaces(plugin: str) -> list[str]:
    """Return the namespaces of a plugin of this project."""
    return [namespace for namespace, owner in FIRST_PARTY.items() if owner == plugin]


def _of_namespace(namespace: str, zoo: Registry) -> Family | None:
    if info := zoo.host.infos.get(namespace):
        listing, plugin = zoo.index.of(namespace), info.distribution
    elif namespace in FIRST_PARTY and (found := generated(namespace)):
        listing, plugin = found.listing, FIRST_PARTY[namespace]
    else:
        return None
    return Family(
        namespace,
        listing.summary,
        plugin,
        info is not None,
        listing.rows,
        listing.parts,
        listing.formats,
        (namespace,),
    )


def doubled(rows: Iterable[Listed]) -> set[str]:
    """Return the names of timm's networks that another family builds of vitzoo's parts.

    `timm/NAME` runs timm's code. The other family states that its network is `NAME` in timm.
    """
    return {
        f"{TIMM}/{name}"
        for row in rows
        if row["namespace"] != TIMM
        for library, name, _ in row[KNOWN_AS]
        if library == TIMM
    }
