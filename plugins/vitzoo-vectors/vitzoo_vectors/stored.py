"""What a file or a store says of its vectors, and some of them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitzoo.errors import InvalidOption, MissingDependency, printable

IDENTITY, CANARY = "vitzoo.identity", "vitzoo.canary"  # of metadata
KEYS = ("key", "path", "file", "filename", "id")  # columns that name the image of a vector


@dataclass(frozen=True)
class Stored:
    """What was read.

    Args:
        metadata: of the vectors.
        count: number of vectors.
        vectors: (n, d), the first ones.
        keys: what names the image of each of `vectors`; empty if nothing does.
        canary: of each output, as plain data.
        note: why the metadata do not hold.
    """

    metadata: Mapping[str, Any]
    count: int
    vectors: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    keys: Sequence[str] = ()
    canary: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


def need(module: str, distribution: str, place: str) -> None:
    """Raise MissingDependency unless a module can be imported; nothing is imported."""
    if importlib.util.find_spec(module) is None:
        raise MissingDependency(
            f"{printable(place)} needs {distribution}, which is not installed; install it: "
            f"{sys.executable} -m pip install {distribution}"
        )


def choose(names: Iterable[str], wanted: Sequence[str]) -> str:
    """Return the first wanted name that is there, or the only name."""
    known = list(names)
    there = [name for name in wanted if name in known]
    found = there or (known if len(wanted) > 1 else [])  # a name that the user wrote is there
    if not found or (len(found) > 1 and not there):
        raise InvalidOption(
            f"--column must name the vectors, one of {', '.join(map(printable, known)) or '(none)'}"
            f"; got {wanted[0]!r}"
        )
    return found[0]


def named(table: Mapping[str, Any], otherwise: object) -> str:
    """Return what names the image of a vector, from its payload."""
    return str(next((table[key] for key in KEYS if table.get(key) is not None), otherwise))


def texts(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Return the metadata of an Arrow schema as texts."""
    return {k.decode(): v.decode("utf-8", "replace") for k, v in (metadata or {}).items()}


def columns(schema: Any, wanted: Sequence[str]) -> list[str]:
    """Return the column of vectors of an Arrow schema, and that of keys if there is one."""
    column = choose((one.name for one in schema if "list" in str(one.type)), wanted)
    return [column, *[name for name in KEYS if name in schema.names][:1]]


def arrays(table: Any) -> tuple[NDArray[Any], list[str]]:
    """Return the vectors and keys of an Arrow table of `columns`, without missing vectors."""
    table = table.filter(table[0].is_valid())
    flat = table[0].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    keys = [str(key) for key in table[1].to_pylist()] if table.num_columns > 1 else []
    return flat.reshape(len(table), -1 if len(table) else 0), keys
