"""What first-party plugins have that are not installed; torch-free.

`available.json` has a row for each of their variants, and the namespace for each model type of
transformers that they read, installed or not.
`tests/update_available.py` writes the file.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitzoo.errors import did_you_mean
from vitzoo.plugin.info import FIRST_PARTY, install_command
from vitzoo.registry.listing import KNOWN_AS, Listed

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry

TABLE = Path(__file__).with_name("available.json")
COLUMNS = ("name", "params", "summary", KNOWN_AS)  # of the file


def available(zoo: Registry) -> list[Listed]:
    """Return a row for each variant of the first-party plugins that are not installed.

    A row has `COLUMNS`, the `namespace` and the `plugin`, which is a distribution. The file is not
    read if all plugins are installed. A disabled plugin is installed.
    """
    absent = FIRST_PARTY.keys() - zoo.host.infos.keys()
    return [row for row in _rows() if row["namespace"] in absent] if absent else []


def needs(row: Listed) -> str:
    """Say which plugin a row of `available` needs, and how to install it."""
    install = install_command(row["namespace"])
    return f"needs the plugin {row['plugin']} (not installed); {install}"


def how_to_get(name: str, zoo: Registry) -> str:
    """Return the end of a message about a variant whose first-party plugin is not installed."""
    namespace = name.partition("/")[0]
    known = [row["name"] for row in available(zoo) if row["namespace"] == namespace]
    if name.partition(":")[0] in known:
        return f"; {install_command(namespace)}"
    both = f"update vitzoo and install the plugin {install_command(namespace, update=True)}"
    return f", and this vitzoo knows no such variant of it{did_you_mean(name, known)}; or {both}"


def reader_of(kind: str, zoo: Registry) -> str:
    """Return how to get the plugin that reads a model type of transformers, empty if there is none.

    A plugin that is installed or disabled has no such text.
    """
    namespace = _table()["types"].get(kind, "")
    absent = namespace and namespace not in zoo.host.infos
    return install_command(namespace) if absent else ""


def is_listed_type(kind: str) -> bool:
    """Return whether a plugin of this project reads a model type of transformers."""
    return kind in _table()["types"]


@cache
def _table() -> dict[str, Any]:
    import json

    found: dict[str, Any] = json.loads(TABLE.read_bytes())
    return found


@cache
def _rows() -> list[Listed]:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in _table()["variants"]]
    for row in rows:
        row["namespace"] = row["name"].partition("/")[0]
        row["plugin"] = FIRST_PARTY[row["namespace"]]
    return rows
