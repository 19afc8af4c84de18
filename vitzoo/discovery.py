"""Finding the entry points of plugins, without importing anything of theirs.

Every distribution is looked at by itself: one with damaged metadata hides no other. Distributions
that lie in the current directory, which Python puts on its path for `python -m` and for an
interpreter, are found too, but whoever uses them says whether they were wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path

GROUP = "vitzoo"
MAX_ENTRY_POINTS = 1024 * 1024  # characters of one entry_points.txt; real ones have some hundred


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
    for distribution in distributions():
        rows, key, here = _look_at(distribution)
        if here or key not in seen:
            found += rows
        if not here:
            seen.add(key)
    return [row for row in found if not (row.here and normal(row.distribution) in seen)]


def normal(name: str) -> str:
    """Return a distribution's name in the form in which two of them are compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _look_at(distribution: Distribution) -> tuple[list[Found], str, bool]:
    """Return the entry points of a distribution, its name, and whether it lies right here."""
    place = getattr(distribution, "_path", None)
    folder = Path(str(place)) if place is not None else Path()
    stem = normal(folder.name.partition("-")[0].removesuffix(".egg-info"))
    try:
        text = distribution.read_text("entry_points.txt") or ""
    except (OSError, ValueError) as error:
        return [_damaged(stem, folder, error)] if b"vitzoo" in _raw(folder) else [], stem, False
    if f"[{GROUP}]" not in text.replace(" ", "")[:MAX_ENTRY_POINTS]:
        return [], stem, False
    here = _is_here(folder)
    try:
        entry_points = [e for e in distribution.entry_points if e.group == GROUP]
    except Exception as error:  # noqa: BLE001  # whatever somebody's text does to the parser
        return [_damaged(stem, folder, error)], stem, here
    return list(_rows(distribution, entry_points, stem, folder, here)), stem, here


def _rows(
    distribution: Distribution,
    entry_points: list[EntryPoint],
    stem: str,
    folder: Path,
    here: bool,
) -> Iterator[Found]:
    try:
        name, version = distribution.metadata["Name"] or "", distribution.version or ""
    except Exception:  # noqa: BLE001  # no metadata beside the entry points
        name, version = "", ""
    for entry_point in entry_points:
        yield Found(
            entry_point.name,
            entry_point.value,
            distribution=name or stem or "unknown",
            version=version,
            location=str(folder),
            here=here,
        )


def _damaged(stem: str, folder: Path, error: Exception) -> Found:
    reason = f"{folder / 'entry_points.txt'}: {type(error).__name__}: {error}"
    return Found(stem, "", distribution=stem, location=str(folder), damage=reason)


def _raw(folder: Path) -> bytes:
    try:
        with (folder / "entry_points.txt").open("rb") as file:
            return file.read(MAX_ENTRY_POINTS)
    except OSError:
        return b""


def _is_here(folder: Path) -> bool:
    try:
        return folder.parent.resolve() == Path.cwd()
    except OSError:  # the current directory is gone
        return False
