"""The image tower of a larger model: its config, and the prefix of its keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from vitzoo.checkpoint.description import Description
from vitzoo.errors import CheckpointError, MissingDependency, PluginError
from vitzoo.formats import Config, Keys
from vitzoo.registry.registry import Registry
from vitzoo.schema.terms import TOWER
from vitzoo.text import escaped

FORMAT = "checkpoint format"
OWN_KEYS = "timm"  # the format that does not rename keys
DEPTH = 4  # of tables in a config


@dataclass(frozen=True)
class Tower:
    """An image tower inside a larger model.

    Args:
        config: of the tower, as if its network were alone.
        formats: names of the checkpoint formats of its network.
    """

    config: Config
    formats: tuple[str, ...]

    def matching(self, zoo: Registry) -> Callable[[Keys], str]:
        """Return a function that returns the format of keys that are those of the tower."""

        def name_of(keys: Keys) -> str:
            return next((n for n in self.formats if zoo.part(FORMAT, n).matches(keys)), "")

        return name_of


def tower_of(stated: Description, zoo: Registry) -> Tower | None:
    """Return the image tower that configs describe; None if they describe a network alone.

    The config of a tower is a table inside that of the larger model, with a `model_type` that a
    format reads.

    Raises:
        CheckpointError: there are several such tables.
    """
    if "tower" not in stated.read:
        stated.read["tower"] = _tower_in(stated.config, zoo)
    found: Tower | None = stated.read["tower"]
    return found


def _tower_in(config: Config, zoo: Registry) -> Tower | None:
    nested = [*_nested(config, "", DEPTH)]
    if not nested or next(readers(config.get("model_type"), zoo), None):
        return None
    found: dict[str, Tower] = {}
    for place, table in nested:
        of_timm = (OWN_KEYS,) if isinstance(table.get("architecture"), str) else ()
        names = of_timm or tuple(readers(table["model_type"], zoo))
        if names and not place.startswith(tuple(f"{outer}." for outer in found)):
            found[place] = Tower({**table, "architectures": [TOWER]}, names)
    if len(found) > 1:
        kinds = dict(nested)
        rows = [f"{escaped(p)} ({escaped(kinds[p]['model_type'])})" for p in found]
        raise CheckpointError(
            f"config.json describes several image towers: {', '.join(rows)}; expected one: write "
            "the tensors of one tower, and its config, to a folder of their own"
        )
    return next(iter(found.values()), None)


def readers(kind: object, zoo: Registry) -> Iterator[str]:
    """Yield the names of the formats that read configs of a model type, those of the core first.

    No plugin is read before a format of the core was asked for the next.
    """
    if not isinstance(kind, str):
        return
    for name in _formats(zoo):
        with suppress(PluginError, MissingDependency):
            if kind in zoo.part(FORMAT, name).configs:
                yield name


def _formats(zoo: Registry) -> Iterator[str]:
    core = zoo.core_parts(FORMAT)  # in the order of the manifest, the usual ones first
    yield from core
    yield from sorted(zoo.parts[FORMAT].keys() - set(core))


def _nested(config: Config, before: str, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tables in a config that state a model type, with their places."""
    for key, table in config.items() if depth else ():
        if isinstance(table, dict):  # as JSON has them; a test for `Mapping` is slow for all labels
            if isinstance(table.get("model_type"), str):
                yield f"{before}{key}", table
            yield from _nested(table, f"{before}{key}.", depth - 1)
