"""Finding the entry points of plugins, without importing anything of theirs.

Every distribution is looked at by itself: one with damaged metadata hides no other. Distributions
that lie in the current directory, which Python puts on its path for `python -m` and for an
interpreter, are found too, but whoever uses them says whether they were wanted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, DistributionFinder, EntryPoint
from pathlib import Path

from vitzoo.errors import printable

GROUP = "vitzoo"
MAX_ENTRY_POINTS = 1024 * 1024  # characters of one entry_points.txt; real ones have some hundred
MAX_SHOWN = 500  # characters of a name or value, far more than real ones have


@dataclass(frozen=True)
class Found:
    """An entry point of the group `vitzoo`.

    Args:
        namespace: its name.
        value: `package:file.toml` or `package.module`.
        distribution, version: it came with.
        location: the distribution's metadata folder.
        here: whether that lies in the current directory.
        damage: why its metadata cannot be read, empty where it can.
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
    """Return the entry points of all distributions on the path, each distribution once.

    One that lies in the current directory does not stand in the way of an installed one of its
    name.
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
    """Return a distribution's name in the form in which two of them are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _distributions() -> Iterator[Distribution]:
    """Yield what is installed; somebody's import hook that fails at it hides nothing of others."""
    for finder in list(sys.meta_path):
        with suppress(Exception):
            find = getattr(finder, "find_distributions", None)
            yield from find(DistributionFinder.Context()) if find else ()


def _look_at(distribution: Distribution) -> tuple[list[Found], str, bool]:
    """Return the entry points of a distribution, its name, and whether it lies right here."""
    place = getattr(distribution, "_path", None)
    folder = Path(str(place)) if place is not None else Path()
    stem = normal(folder.name.partition("-")[0].removesuffix(".egg-info")) or str(id(distribution))
    here = place is not None and _is_here(folder)
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except Exception as error:  # noqa: BLE001  # undecodable, or in an archive that is none
        ours = f"[{GROUP}]".encode() in _raw(folder)
        return [_damaged(stem, folder, here, error)] if ours else [], stem, here
    if f"[{GROUP}]" not in text:
        return [], stem, here
    try:
        if len(text) > MAX_ENTRY_POINTS:
            raise ValueError(f"larger than the {MAX_ENTRY_POINTS} characters accepted")  # noqa: TRY301
        entry_points = [e for e in distribution.entry_points if e.group == GROUP]
    except Exception as error:  # noqa: BLE001  # whatever somebody's text does to the parser
        return [_damaged(stem, folder, here, error)], stem, here
    return list(_rows(distribution, entry_points, stem, folder, here)), stem, here


def _rows(
    distribution: Distribution,
    entry_points: list[EntryPoint],
    stem: str,
    folder: Path,
    here: bool,
) -> Iterator[Found]:
    name = version = ""
    with suppress(Exception):  # no metadata beside the entry points, or none that can be read
        name, version = distribution.metadata["Name"] or "", distribution.version or ""
    for entry_point in entry_points:
        yield Found(
            printable(entry_point.name, MAX_SHOWN),
            printable(entry_point.value, MAX_SHOWN),
            distribution=printable(name, MAX_SHOWN) or stem or "unknown",
            version=printable(version, MAX_SHOWN),
            location=str(folder),
            here=here,
        )


def _damaged(stem: str, folder: Path, here: bool, error: Exception) -> Found:
    reason = f"{folder / 'entry_points.txt'}: {type(error).__name__}: {error}"
    return Found(stem, "", distribution=stem, location=str(folder), here=here, damage=reason)


def _raw(folder: Path) -> bytes:
    try:
        with (folder / "entry_points.txt").open("rb") as file:
            return file.read(MAX_ENTRY_POINTS)
    except OSError:
        return b""


def _is_here(folder: Path) -> bool:
    try:
        return _same(str(folder.parent), str(Path.cwd()))
    except OSError:  # the current directory is gone
        return False


@lru_cache(maxsize=64)  # many distributions lie in few folders
def _same(folder: str, here: str) -> bool:
    return Path(here, folder).resolve() == Path(here)
