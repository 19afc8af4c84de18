"""Finding the entry points of plugins without importing them.

Each distribution is read independently, so that damaged metadata of one hides no other. Python
also finds distributions in the current directory; `Found.here` marks them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, NamedTuple

from vitzoo.errors import printable

if TYPE_CHECKING:  # importing it takes milliseconds, which names of the core do not need
    from importlib.metadata import Distribution

GROUP = "vitzoo"
COMMANDS = "vitzoo.commands"
MAX_SHOWN = 500  # characters of a name or value in messages


class Found(NamedTuple):
    """An entry point of the group `vitzoo` or `vitzoo.commands`.

    Args:
        namespace: name of the entry point; of a command, the command.
        value: `package:file.toml` or `package.module`; of a command, `package.module:name`.
        distribution, version: the distribution that has the entry point.
        location: metadata folder of the distribution.
        here: whether that folder is in the current directory.
        damage: why the metadata cannot be read; empty if it can.
        group: of the entry point.
        siblings: of a command, the namespaces of the distribution's plugins.
    """

    namespace: str
    value: str
    distribution: str = "unknown"
    version: str = ""
    location: str = ""
    here: bool = False
    damage: str = ""
    group: str = GROUP
    siblings: tuple[str, ...] = ()

    @property
    def owner(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}".strip()


def find_plugins() -> list[Found]:
    """Return the entry points of both groups of all distributions, each distribution once.

    An installed distribution takes precedence over one of the same name in the current directory.
    """
    found: list[Found] = []
    seen: set[str] = set()
    for distribution in _distributions():
        rows, key, here = _look_at(distribution)
        if here or key not in seen:
            found += rows
        if not here:
            seen.add(key)
    return [row for row in found if not (row.here and normal(row.distribution) in seen)]


def may_have_commands() -> bool:
    """Tell whether an installed distribution may have commands, from the bytes of its metadata.

    `vitzoo --help` asks this first, because few users have such a distribution, and importing
    `importlib.metadata` takes more than half as long as the command. An archive may have some.
    """
    from glob import escape, iglob

    for place in map(str, sys.path):
        if os.path.isfile(place):  # noqa: PTH113
            return True
        for file in iglob(f"{escape(place)}/*.*-info/entry_points.txt"):  # noqa: PTH207
            with suppress(OSError), open(file, "rb") as metadata:  # noqa: PTH123
                if f"[{COMMANDS}]".encode() in metadata.read():
                    return True
    return False


def normal(name: str) -> str:
    """Return the normalised name of a distribution, for comparisons."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _distributions() -> Iterator[Distribution]:
    """Yield all distributions; a finder or an entry of `sys.path` that fails hides no others."""
    from importlib.metadata import DistributionFinder

    context = DistributionFinder.Context
    for finder in list(sys.meta_path):
        # the finder of `sys.path` stops at the first entry that is no text
        places = list(sys.path) if finder is PathFinder else [None]
        for place in places:
            with suppress(Exception):
                if find := getattr(finder, "find_distributions", None):
                    yield from find(context() if place is None else context(path=[place]))


def _look_at(distribution: Distribution) -> tuple[list[Found], str, bool]:
    """Return entry points, name, and whether the distribution is in the current directory."""
    place = getattr(distribution, "_path", None)
    folder = str(place).rstrip("/") if place is not None else ""  # in an archive, it ends with "/"
    file = os.path.basename(folder)  # noqa: PTH119
    stem = normal(file.partition("-")[0].removesuffix(".egg-info")) or str(id(distribution))
    here = place is not None and _is_here(folder)
    try:
        entry_points = _entry_points(distribution)
    except Exception as error:  # noqa: BLE001  # undecodable or malformed
        if isinstance(error, UnicodeDecodeError) and not _mentioned(error.object.decode("latin1")):
            return [], stem, here
        damage = f"{folder}/entry_points.txt: {type(error).__name__}: {error}"
        return [Found(stem, "", stem, location=folder, here=here, damage=damage)], stem, here
    name = version = ""
    if entry_points:
        with suppress(Exception):  # missing or damaged METADATA
            header = distribution.metadata
            name, version = header["Name"] or "", header["Version"] or ""
    siblings = tuple(name for name, _, group in entry_points if group == GROUP)
    found = [
        Found(
            printable(namespace, MAX_SHOWN),
            printable(value, MAX_SHOWN),
            distribution=printable(name, MAX_SHOWN) or stem,
            version=printable(version, MAX_SHOWN),
            location=folder,
            here=here,
            group=group,
            siblings=() if group == GROUP else siblings,
        )
        for namespace, value, group in entry_points
    ]
    return found, stem, here


def _entry_points(distribution: Distribution) -> list[tuple[str, str, str]]:
    """Return (name, value, group) of the entry points of both groups.

    Raises:
        ValueError: the file `entry_points.txt` has a malformed line in any group.
        TypeError: the same, as some versions of Python raise it.
    """
    text = distribution.read_text("entry_points.txt") or ""
    if not _mentioned(text):
        return []
    every = distribution.entry_points
    return [(one.name, one.value, one.group) for one in every if one.group in (GROUP, COMMANDS)]


def _mentioned(text: str) -> bool:
    return f"[{GROUP}]" in text or f"[{COMMANDS}]" in text


def _is_here(folder: str) -> bool:
    try:
        return os.path.samefile(os.path.dirname(folder) or ".", ".")  # noqa: PTH120, PTH121
    except OSError:  # the current directory was removed
        return False
