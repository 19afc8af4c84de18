"""Finding the entry points of plugins without importing them.

Each distribution is read independently, so that damaged metadata of one hides no other. Python
also finds distributions in the current directory; `Found.here` marks them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.machinery import PathFinder
from typing import Any, NamedTuple

from vitzoo.errors import printable
from vitzoo.plugin.importing import from_signal, ignoring_errors

GROUP = "vitzoo"
MAX_ENTRY_POINTS = 1024 * 1024  # characters of one entry_points.txt; usual files have some hundred
MAX_SHOWN = 500  # characters of a name or value in messages


class Found(NamedTuple):
    """An entry point of the group `vitzoo`.

    Args:
        namespace: name of the entry point.
        value: `package:file.toml` or `package.module`.
        distribution, version: the distribution that has the entry point.
        location: metadata folder of the distribution.
        here: whether that folder is in the current directory.
        damage: why the metadata cannot be read; empty if it can.
    """

    namespace: str
    value: str
    distribution: str = "unknown"
    version: str = ""
    location: str = ""
    here: bool = False
    damage: str = ""

    @property
    def owner(self) -> str:
        """The distribution and its version, for messages."""
        return f"{self.distribution} {self.version}".strip()


def find_plugins() -> list[Found]:
    """Return the entry points of all distributions, each distribution once.

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


def normal(name: str) -> str:
    """Return the normalised name of a distribution, for comparisons."""
    return re.sub(r"[-_.]+", "-", name).lower()


class _Folder:
    """The metadata folder of a distribution, read as importlib.metadata reads it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read_text(self, file: str) -> str | None:
        """Return the text of a file, None if there is no such file."""
        try:
            with open(os.path.join(self._path, file), "rb") as opened:  # noqa: PTH118, PTH123
                return opened.read().decode()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
            return None


def _distributions() -> Iterator[Any]:
    """Yield all distributions; a finder that fails hides none of the other finders.

    The folders of `sys.path` are searched here: importlib.metadata imports the package `email`,
    which takes longer than the search. It searches archives, and knows what other finders yield.
    """
    for finder in list(sys.meta_path):
        with ignoring_errors():
            find = getattr(finder, "find_distributions", None)
            if find and finder is PathFinder:
                for place in list(sys.path):
                    with ignoring_errors():
                        yield from _installed_in(place)
            elif find:
                from importlib.metadata import DistributionFinder

                yield from find(DistributionFinder.Context())


def _installed_in(place: str) -> Iterator[Any]:
    """Yield the distributions in an entry of `sys.path`."""
    try:
        names = os.listdir(place or ".")  # noqa: PTH208
    except NotADirectoryError:  # a zip archive
        from importlib.metadata import DistributionFinder, MetadataPathFinder

        yield from MetadataPathFinder.find_distributions(DistributionFinder.Context(path=[place]))
        return
    except OSError:
        return
    egg = place.lower().endswith(".egg")
    for name in names:
        low = name.lower()
        if low.endswith((".dist-info", ".egg-info")) or (egg and low == "egg-info"):
            yield _Folder(os.path.join(place, name))  # noqa: PTH118


def _look_at(distribution: Any) -> tuple[list[Found], str, bool]:
    """Return entry points, name, and whether the distribution is in the current directory."""
    place = getattr(distribution, "_path", None)
    folder = str(place).rstrip("/") if place is not None else ""  # in an archive, it ends with "/"
    file = os.path.basename(folder)  # noqa: PTH119
    stem = normal(file.partition("-")[0].removesuffix(".egg-info")) or str(id(distribution))
    here = place is not None and _is_here(folder)
    group, text = f"[{GROUP}]", ""
    try:
        text = distribution.read_text("entry_points.txt") or ""
        if group not in text:
            return [], stem, here
        if len(text) > MAX_ENTRY_POINTS:
            raise ValueError(f"must have at most {MAX_ENTRY_POINTS} characters")  # noqa: TRY301
        entry_points = _entry_points(text)
    except Exception as error:  # undecodable or malformed
        if from_signal(error):
            raise
        if group not in text and group.encode() not in _raw(folder):
            return [], stem, here
        damage = f"{folder}/entry_points.txt: {type(error).__name__}: {error}"
        return [Found(stem, "", stem, location=folder, here=here, damage=damage)], stem, here
    name = version = ""
    with ignoring_errors():  # missing or damaged METADATA
        name, version = _name_and_version(distribution)
    found = [
        Found(
            printable(namespace, MAX_SHOWN),
            printable(value, MAX_SHOWN),
            distribution=printable(name, MAX_SHOWN) or stem,
            version=printable(version, MAX_SHOWN),
            location=folder,
            here=here,
        )
        for namespace, value in entry_points
    ]
    return found, stem, here


def _entry_points(text: str) -> list[tuple[str, str]]:
    """Return (name, value) of the entry points of the group in a file `entry_points.txt`.

    Raises:
        ValueError: a line of any group is malformed.
    """
    found, group = [], ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1]
        elif line and not line.startswith("#") and group:
            name, equals, value = line.partition("=")
            if not equals:
                raise ValueError(f"a line must be 'name = value', got {line[:MAX_SHOWN]!r}")
            if group == GROUP:
                found.append((name.strip(), value.strip()))
    return found


def _name_and_version(distribution: Any) -> tuple[str, str]:
    """Return name and version from the header of METADATA, or of PKG-INFO in older distributions.

    Both are in the file's first lines, before the empty line that ends the header.
    """
    files = ("METADATA", "PKG-INFO", "")  # "": metadata may be one file, as distutils wrote it
    text = next(filter(None, map(distribution.read_text, files)), "")
    header: dict[str, str] = {}
    for line in text.splitlines():
        if not line:
            break
        key, _, value = line.partition(":")
        header.setdefault(key.lower(), value.strip())
    return header.get("name", ""), header.get("version", "")


def _raw(folder: str) -> bytes:
    try:
        with open(f"{folder}/entry_points.txt", "rb") as file:  # noqa: PTH123
            return file.read(MAX_ENTRY_POINTS)
    except OSError:
        return b""


def _is_here(folder: str) -> bool:
    try:
        return _same(os.path.dirname(folder), os.getcwd())  # noqa: PTH109, PTH120
    except OSError:  # the current directory was removed
        return False


@lru_cache(maxsize=64)  # many distributions are in few folders
def _same(folder: str, here: str) -> bool:
    return os.path.realpath(os.path.join(here, folder)) == here  # noqa: PTH118
