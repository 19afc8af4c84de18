"""What first-party plugins have that are not installed, from generated listings; torch-free."""

from __future__ import annotations

from functools import cache

from vitzoo.plugin.info import FIRST_PARTY, install_command
from vitzoo.registry.generated import generated
from vitzoo.registry.listing import Listed
from vitzoo.registry.registry import Registry

PLUGIN = "plugin"  # of a row: the distribution


def available(zoo: Registry) -> list[Listed]:
    """Return the row of each variant of the first-party plugins that are not installed.

    A row also has the distribution of the `PLUGIN`. A disabled plugin is installed.
    """
    absent = (name for name in sorted(FIRST_PARTY) if name not in zoo.host.infos)
    return [row for namespace in absent for row in _rows(namespace)]


def needs(row: Listed) -> str:
    """Say which plugin a row of `available` needs, and how to install it."""
    install = install_command(row["namespace"])
    return f"needs the plugin {row['plugin']} (not installed); {install}"


def reader_of(kind: str, zoo: Registry) -> str:
    """Return how to get the plugin that reads a model type of transformers, empty if there is none.

    A plugin that is installed or disabled has no such text.
    """
    namespace = _readers().get(kind, "")
    absent = namespace and namespace not in zoo.host.infos
    return install_command(namespace) if absent else ""


def is_listed_type(kind: str) -> bool:
    """Return whether a plugin of this project reads a model type of transformers."""
    return kind in _readers()


@cache
def _rows(namespace: str) -> list[Listed]:
    found = generated(namespace)
    rows = found.listing.rows if found else []
    return [row | {PLUGIN: FIRST_PARTY[namespace]} for row in rows]


@cache
def _readers() -> dict[str, str]:
    """Return the namespace of the plugin that reads each model type."""
    every = ((name, generated(name)) for name in sorted(FIRST_PARTY))
    return {kind: name for name, found in every if found for kind in found.types}
