"""What `vitzoo list` says of plugins that are not installed; torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from vitzoo.cli.output import Fit, count, on_terminal, print_rows, say
from vitzoo.errors import InvalidOption, UnknownName, did_you_mean
from vitzoo.installing import ALL, from_clone
from vitzoo.plugin.info import install_command
from vitzoo.registry.available import available
from vitzoo.registry.listing import Listed, mentions, sort

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry

SHOWN = ("name", "params", "plugin", "summary")
KEYS = (*SHOWN, "namespace")
FIELDS = ("name", "params", "namespace", "summary")  # of conditions


def check_options(others: dict[str, object]) -> None:
    """Refuse the options that need more than is known of plugins that are not installed."""
    for name, value in others.items():
        if value:
            raise InvalidOption(
                "--available goes with patterns, --family, --where, --sort, -q and --json, got "
                f"{name}; leave one of the two out"
            )


def print_available(
    zoo: Registry,
    patterns: Sequence[str],
    families: Sequence[str],
    tests: Sequence[Any],
    keys: Sequence[tuple[str, bool]],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Print the variants of the first-party plugins that are not installed.

    Args:
        zoo: the registry.
        patterns, families: which variants; all if there are none.
        tests: the conditions that they must meet.
        keys: what they are sorted by, see `sort_keys`.
        quiet, as_json: print only names, or JSON.

    Raises:
        InvalidOption: a condition or the order uses a field that is not in `FIELDS`.
        UnknownName: a pattern or a family matches no such variant.
    """
    used = [*(field for one in tests for field in one.fields), *(key for key, _ in keys)]
    for field in used:
        if field not in FIELDS:
            raise InvalidOption(
                f"--available knows only the fields {', '.join(FIELDS)}, got {field}; for all "
                f"fields, install the plugins: {from_clone(*ALL)}"
            )
    every = available(zoo)
    own = [f"{family}/*" for family in families]
    words = not (quiet or as_json)
    missing = [p for p in (*patterns, *own) if every and not _matching(every, p, words=words)]
    if missing:
        raise UnknownName(_no_match(every, missing[0]))
    rows = [
        {key: row[key] for key in KEYS}
        for row in _matching(every, *(patterns or own or "*"), words=words)
        if not families or row["namespace"] in families
    ]
    rows = sort([row for row in rows if all(one.test(row) for one in tests)], keys)
    only, fit = "name" if quiet else "", Fit(("plugin", "params"))
    print_rows(rows, SHOWN, as_json=as_json, only=only, pretty={"params": count}, fit=fit)
    if not every:
        say("vitzoo: all plugins of vitzoo are installed")
    elif rows and on_terminal():
        one = len({row["plugin"] for row in rows}) == 1
        how = install_command(rows[0]["namespace"]) if one else from_clone(*ALL)
        say(f"vitzoo: to install {'this plugin' if one else 'all plugins'}: {how}")


def say_more(zoo: Registry) -> None:
    """Say how many variants are installed, and how many more the other plugins have."""
    if rows := available(zoo):
        number = len({row["plugin"] for row in rows})
        plugins = f"{number} plugins that are" if number > 1 else "1 plugin that is"
        say(
            f"vitzoo: {len(zoo.index.rows())} networks; {len(rows)} more in {plugins} not "
            "installed: vitzoo list --available"
        )


def hint(zoo: Registry, pattern: str) -> str:
    """Return how to list what a pattern or a namespace means in plugins that are not installed."""
    rows = available(zoo)
    for one in (f"{pattern}/*", pattern):
        if number := len(_matching(rows, one)):
            return f"; {number} in plugins that are not installed: vitzoo list --available '{one}'"
    return ""


def _matching(rows: Sequence[Listed], *patterns: str, words: bool = True) -> list[Listed]:
    """Return the rows whose names match; if `words`, also those that mention what is no name."""
    chosen: set[str] = set()
    for one in patterns:
        names = [row["name"] for row in rows if fnmatchcase(row["name"], one)]
        if not names and words and not {"*", "?", "["}.intersection(one):
            names = [row["name"] for row in rows if mentions(row, one)]
        chosen.update(names)
    return [row for row in rows if row["name"] in chosen]


def _no_match(rows: Sequence[Listed], pattern: str) -> str:
    names = [*dict.fromkeys(f"{row['namespace']}/*" for row in rows), *(r["name"] for r in rows)]
    near = did_you_mean(pattern, names)
    return (
        f"no variant of a plugin that is not installed matches {pattern!r}{near}; without "
        "--available, vitzoo list searches the installed ones"
    )
