"""What is read of stored vectors: what is said of them, and those of some images."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vitzoo
from vitzoo.errors import (
    IntegrityError,
    InvalidOption,
    MissingDependency,
    StoreError,
    printable,
    short_repr,
)

ANY = f"vz1:any:{'a' * 26}:{'a' * 26}"
IDENTITY, CANARY = "vitzoo.identity", "vitzoo.canary"  # of metadata
KEYS = ("key", "path", "file", "filename", "id")  # columns that name the image of a vector
Places = NDArray[np.int64]


@dataclass(frozen=True)
class Stored:
    """What was read.

    Args:
        metadata: of the vectors.
        count: number of vectors.
        vectors: (n, d), those of images.
        images: number of the image of each of `vectors`.
        canary: of each output, as plain data.
        note: why the metadata do not hold.
        named: whether names say which image a vector is of.
        belonging: number of vectors that belong to one image.
        width: numbers of a vector, 0 if it is not known.
    """

    metadata: Mapping[str, Any]
    count: int
    vectors: NDArray[Any] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    images: Sequence[int] = ()
    canary: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    named: bool = False
    belonging: int = 0
    width: int = 0


@dataclass(frozen=True)
class Request:
    """What to read.

    Args:
        columns: names of the column of vectors; the first one that is there counts.
        images: paths of the images whose vectors are read; without them, only the metadata are.
        most: number of vectors that are read, evenly spread over those of the images.
        keys: names of the column, or of the payload, with names of images; the first one counts.
    """

    columns: Sequence[str]
    images: Sequence[str] = ()
    most: int = 0
    keys: Sequence[str] = KEYS

    @property
    def of_vectors(self) -> bool:
        """Tell whether vectors are read, or the user names their column."""
        return bool(self.images) or len(self.columns) == 1

    def refuse_column(self) -> None:
        """Raise InvalidOption if the user names a column where there is none."""
        if len(self.columns) == 1:
            raise InvalidOption(
                f"--column is {printable(self.columns[0])}, but PLACE has no columns; leave it out"
            )

    def refuse_key(self) -> None:
        """Raise InvalidOption if the user names what names images, where nothing does."""
        if len(self.keys) == 1:
            raise InvalidOption(
                f"--key is {short_repr(self.keys[0])}, but PLACE has no names; leave it out, so "
                "that images belong to vectors by order"
            )

    def choose(self, names: Iterable[str], *, must: bool = False) -> str:
        """Return the first wanted name that is there, or the only name.

        If several are there, it is empty, unless vectors are read or it is a `must`.
        """
        known = list(names)
        there = [name for name in self.columns if name in known]
        asked = len(self.columns) == 1
        if there or (len(known) == 1 and not asked):
            return (there or known)[0]
        if not known:
            raise InvalidOption(
                "PLACE has no vectors: expected a column of lists, or a tensor (n, d) of floats; "
                "name another place"
            )
        if not (must or self.of_vectors):
            return ""
        raise InvalidOption(
            f"--column must name the vectors, one of {', '.join(map(printable, known))}; got "
            f"{short_repr(self.columns[0]) if asked else 'none'}"
        )

    def key(self, names: Iterable[str]) -> str:
        """Return the column that names images; empty if there is none.

        Raises:
            InvalidOption: the user names another one.
        """
        known = list(names)
        found = next((name for name in self.keys if name in known), "")
        if not found and len(self.keys) == 1:
            raise InvalidOption(
                f"--key must name the images, one of {', '.join(map(printable, known))}; got "
                f"{short_repr(self.keys[0])}"
            )
        return found

    def named(self, table: Mapping[str, Any] | None, otherwise: object) -> str:
        """Return what names the image of a vector, from its payload."""
        known = table or {}
        return str(next((known[key] for key in self.keys if known.get(key) is not None), otherwise))

    def read(
        self,
        metadata: Mapping[str, Any],
        count: int,
        names: Callable[[], Sequence[str]],
        take: Callable[[Places], Any],
        *,
        width: int,
    ) -> Stored:
        """Return what is read of a file or a collection.

        Args:
            metadata, count: as for `Stored`.
            names: returns what names the image of each vector; nothing if nothing does.
            take: returns the vectors (n, d) at sorted places; in `child`, parts of them.
            width: d, 0 if it is not known.
        """
        found = Stored(metadata, count, width=width)
        if not self.images:
            return found
        known = names()
        places, images = self._pairs(known, count)
        found = replace(found, named=bool(known), belonging=len(places))
        if not len(places):
            return found
        some = np.linspace(0, len(places) - 1, min(self.most, len(places))).round().astype(int)
        return replace(found, vectors=take(places[some]), images=images[some].tolist())

    def _pairs(self, names: Sequence[str], count: int) -> tuple[Places, Places]:
        """Return places of vectors and the numbers of their images.

        They belong together by name, or by order if nothing names the vectors.
        """
        places = images = np.arange(count if count == len(self.images) else 0)
        if names:
            images_of: dict[str, list[int]] = {}  # by the name of the file
            for number, path in enumerate(self.images):
                images_of.setdefault(_parts(path)[-1], []).append(number)
            found = [self._image(images_of, _parts(name)) for name in names]
            longest: dict[int, int] = {}  # of an image: the most folders in a name of it
            for number, length in found:
                longest[number] = max(length, longest.get(number, 0))
            there = [n >= 0 and length == longest[n] for n, length in found]
            places, images = np.flatnonzero(there), np.array([n for n, _ in found])[there]
        return places, images

    def _image(self, images_of: Mapping[str, list[int]], name: list[str]) -> tuple[int, int]:
        """Return the image with the longest end of a name, and that length; -1 if several have."""
        there = images_of.get(name[-1], [])
        lengths = [_common(_parts(self.images[number]), name) for number in there]
        longest = max(lengths, default=0)
        return (there[lengths.index(longest)] if lengths.count(longest) == 1 else -1), longest


def _parts(path: str) -> list[str]:
    return path.replace("\\", "/").split("/")


def _common(one: Sequence[str], two: Sequence[str]) -> int:
    """Return how many parts are the same at the ends of two paths."""
    if one == two:
        return len(one)
    pairs = zip(reversed(one), reversed(two), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(two)))


def check_identity(entry: object) -> None:
    """Raise InvalidOption unless a value is the text of an identity."""
    with suppress(IntegrityError):  # of another network
        vitzoo.require_identity(str(entry) if isinstance(entry, str) else repr(entry), ANY)


def need(module: str, distribution: str, place: str) -> None:
    """Raise MissingDependency unless a module can be imported; nothing is imported."""
    if importlib.util.find_spec(module) is None:
        raise MissingDependency(
            f"{printable(place)} needs {distribution}, which is not installed; install it: "
            f"{sys.executable} -m pip install {distribution}"
        )


def is_there(path: Path) -> bool:
    """Tell whether there is a file or a folder.

    Raises:
        StoreError: its folder cannot be read.
    """
    try:
        path.stat()
    except PermissionError as error:
        raise StoreError(
            f"cannot read {printable(path)}: {error.strerror}; change the rights"
        ) from error
    except (OSError, ValueError):  # such as a long name
        return False
    return True


def texts(metadata: Mapping[bytes, bytes] | None) -> dict[str, str]:
    """Return the metadata of an Arrow schema as texts."""
    pairs = (metadata or {}).items()
    return {k.decode("utf-8", "replace"): v.decode("utf-8", "replace") for k, v in pairs}


def columns(schema: Any, request: Request) -> tuple[str, str, int]:
    """Return the column of vectors of an Arrow schema, that of keys, and the length of a vector.

    What is not there, or not known, is empty and 0.
    """
    lists = {one.name: one.type for one in schema if "list" in str(one.type)}
    column = request.choose(lists)
    return column, request.key(schema.names), getattr(lists.get(column), "list_size", 0)


def array_of(column: Any, width: int = 0) -> NDArray[np.float32]:
    """Return the vectors of an Arrow column as (n, d), missing ones as NaN.

    Args:
        column: of lists.
        width: d, 0 if it is not known.

    Raises:
        ValueError: they have several lengths.
    """
    from pyarrow import compute

    there = column.is_valid().to_numpy()
    width = getattr(column.type, "list_size", width)
    if there.any():
        lengths = compute.min_max(compute.list_value_length(column)).as_py()
        width = width or lengths["min"]
        if {*lengths.values()} != {width}:
            raise ValueError(f"its vectors have {width} and {[*lengths.values()]} numbers")
    flat = [one.flatten().to_numpy(zero_copy_only=False) for one in column.drop_null().chunks]
    empty = np.zeros(0, np.float32)
    vectors = np.concatenate([empty, *flat], dtype=np.float32).reshape(there.sum(), width)
    if there.all():
        return vectors
    found = np.full((len(there), width), np.nan, np.float32)
    found[there] = vectors
    return found
