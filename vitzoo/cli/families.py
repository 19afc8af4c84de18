"""What `vitzoo list`, `show` and `which` print about a family; torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vitzoo.cli.output import (
    PERCENT,
    Fit,
    Write,
    count,
    echo,
    on_terminal,
    paged,
    print_fields,
    print_json,
    print_rows,
    print_text,
    say,
)
from vitzoo.plugin.info import install_command
from vitzoo.registry.families import TIMM, Family, doubled
from vitzoo.registry.listing import ENTRIES, Listed
from vitzoo.registry.registry import Registry
from vitzoo.schema.terms import KNN
from vitzoo.text import listed

MOST_NAMED = 4  # papers or licenses in one line
KEYS = ("name", "params", "image_size", "top1", KNN, "license", "weights")
FIT = Fit(
    ("weights", "image_size", "license"),
    shorter={"weights": lambda names: _first(names.split(", "))},
    one_line=True,
)
PRETTY: dict[str, Write] = {"params": count, "image_size": str, "top1": PERCENT, KNN: PERCENT}


def say_needed(found: Family) -> None:
    """Say how to install the plugin of a family, unless it is installed."""
    if not found.installed:
        say(
            f"vitzoo: {found.name} needs the plugin {found.plugin} (not installed); "
            f"{install_command(found.namespaces[0])}"
        )


def say_siblings(found: Family) -> None:
    """Say which other families the plugin of a family without networks has."""
    if found.siblings:
        say(f"vitzoo: {found.plugin} also has the families {', '.join(found.siblings)}")


def print_header(found: Family) -> None:
    """Print what a family is, with papers and licenses, above its names."""
    print_text(f"{found.name}: {found.summary or found.contents}")
    about = {
        "papers": listed(found.papers, MOST_NAMED),
        "licenses": listed(found.licenses, MOST_NAMED),
        "plugin": found.plugin,
    }
    print_text("; ".join(f"{key}: {value}" for key, value in about.items() if value))


def print_family(zoo: Registry, found: Family, *, as_json: bool, everything: bool = False) -> None:
    """Print a family and its names, or its parts and formats if it has no networks.

    With `everything`, a terminal also shows timm's networks that another family has.
    """
    say_needed(found)
    parts = _contributions(zoo, found)
    about: dict[str, Any] = {
        "family": found.name,
        "summary": found.summary,
        "plugin": found.plugin,
        "installed": found.installed,
    }
    rows = [_row(row) for row in found.rows]
    if as_json:
        lists: dict[str, Any] = {"papers": found.papers, "licenses": found.licenses}
        variants = [row | {"weights": _names(found.rows[at])} for at, row in enumerate(rows)]
        print_json(about | lists | {"variants": variants, "contributions": parts})
        return
    if not on_terminal():
        lists = {"papers": ", ".join(found.papers), "licenses": ", ".join(found.licenses)}
        print_fields(about | lists)
        for table in filter(None, (rows, parts)):
            echo()
            print_rows(table, tuple(table[0]))
        return
    with paged():
        print_header(found)
        echo()
        if not rows:
            echo(f"no networks; {found.contents}")
            print_rows(parts or [], ("kind", "name", "summary"))
            say_siblings(found)
            return
        rows = rows if everything else without_doubled(zoo, rows)
        empty = {key for key in ("top1", KNN) if all(row[key] is None for row in rows)}
        same = {"license"} if len(found.licenses) < 2 else set()
        shown = [key for key in KEYS if key not in empty | same]
        print_rows(rows, shown, pretty=PRETTY, fit=FIT)
        say(f"vitzoo: vitzoo show {rows[0]['name']} describes one network")


def without_doubled(zoo: Registry, rows: list[Listed], asked: Iterable[str] = ()) -> list[Listed]:
    """Return the rows without timm's networks that another family builds; say how many they are.

    The names in `asked` stay.
    """
    if not any(row["name"].startswith(f"{TIMM}/") for row in rows):
        return rows
    names = doubled(zoo.index.rows()).difference(asked)
    left = [row for row in rows if row["name"].partition(":")[0] not in names]
    if number := len(rows) - len(left):
        say(
            f"vitzoo: {number} of timm's networks that other families have are left out; --all "
            "lists them, too"
        )
    return left


def _row(row: Listed) -> Listed:
    """Return what a family shows of a network."""
    return {key: row[key] for key in KEYS} | {"weights": ", ".join(_names(row))}


def _names(row: Listed) -> list[str]:
    """Return the names of the weights of a row, the default first."""
    names: list[str] = [entry[0] for entry in row[ENTRIES]]
    return sorted(names, key=lambda name: name != row["weights"])


def _first(names: list[str]) -> str:
    return f"{names[0]} +{len(names) - 1}" if len(names) > 1 else names[0]


def _contributions(zoo: Registry, found: Family) -> list[dict[str, str]] | None:
    """Return the parts and checkpoint formats of a family; None if it is not installed."""
    if not found.installed:
        return None
    for namespace in found.namespaces:
        zoo.host.load(namespace)
    return [
        {"kind": kind, "name": name, "summary": row.summary}
        for kind, rows in zoo.host.parts.items()
        for name, (namespace, row) in rows.items()
        if namespace in found.namespaces
    ]
