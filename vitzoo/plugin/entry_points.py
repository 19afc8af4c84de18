"""Finding the entry points of plugins without importing them.

Each distribution is read independently, so that damaged metadata of one hides no other. Python
also finds distributions in the current directory; `Found.here` marks them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path

from vitzoo.errors import printable
from vitzoo.plugin.importing import from_signal, ignoring_errors

GROUP = "vitzoo"
MAX_ENTRY_POINTS = 1024 * 1024  # characters of one entry_points.txt; usual files have some hundred
MAX_SHOWN = 500  # characters of a name or value in messages


@dataclass(frozen=True)
class Found:
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


def _distributions() -> Iterator[Distribution]:
    """Yield all distributions; a finder that fails hides none of the other finders."""
    for finder in list(sys.meta_path):
        with ignoring_errors():
            find = getattr(finder, "find_distributions", None)
            yield from find(DistributionFinder.Context()) if find else ()


def _look_at(distribution: Distribution) -> tuple[list[Found], str, bool]:
    """Return entry points, name, and whether the distribution is in the current directory."""
    place = getattr(distribution, "_path", None)
    folder = Path(str(place)) if place is not None else Path()
    stem = normal(folder.name.partition("-")[0].removesuffix(".egg-info")) or str(id(distribution))
    here = place is not None and _is_here(folder)
    group, text = f"[{GROUP}]", ""
    try:
        text = distribution.read_text("entry_points.txt") or ""
        if group not in text:
            return [], stem, here
        if len(text) > MAX_ENTRY_POINTS:
            raise ValueError(f"must have at most {MAX_ENTRY_POINTS} characters")  # noqa: TRY301
        entry_points = [e for e in distribution.entry_points if e.group == GROUP]
    except Exception as error:  # undecodable or malformed
        if from_signal(error):
            raise
        if group not in text and group.encode() not in _raw(folder):
            return [], stem, here
        damage = f"{folder / 'entry_points.txt'}: {type(error).__name__}: {error}"
        location = str(folder)
        return [Found(stem, "", stem, location=location, here=here, damage=damage)], stem, here
    name = version = ""
    with ignoring_errors():  # missing or damaged METADATA
        name, version = distribution.metadata["Name"] or "", distribution.version or ""
    found = [
        Found(
            printable(entry_point.name, MAX_SHOWN),
            printable(entry_point.value, MAX_SHOWN),
            distribution=printable(name, MAX_SHOWN) or stem,
            version=printable(version, MAX_SHOWN),
            location=str(folder),
            here=here,
        )
        for entry_point in entry_points
    ]
    return found, stem, here


def _raw(folder: Path) -> bytes:
    try:
        with (folder / "entry_points.txt").open("rb") as file:
            return file.read(MAX_ENTRY_POINTS)
    except OSError:
        return b""


def _is_here(folder: Path) -> bool:
    try:
        return _same(str(folder.parent), str(Path.cwd()))
    except OSError:  # the current directory was removed
        return False


@lru_cache(maxsize=64)  # many distributions are in few folders
def _same(folder: str, here: str) -> bool:
    return Path(here, folder).resolve() == Path(here)
