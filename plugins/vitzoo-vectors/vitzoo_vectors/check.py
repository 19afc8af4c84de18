"""`check_vectors`: compares the identity of stored vectors, or the vectors, with a network."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vitzoo
from vitzoo.errors import IntegrityError, InvalidOption
from vitzoo_vectors.files import read_file
from vitzoo_vectors.stored import IDENTITY, Stored
from vitzoo_vectors.stores import address_of, read_store

ROWS = 1000
STATED, NOT_STATED, ANOTHER = "stated", "not stated", "another network"
SAME_NETWORK = "same network, other numerics"
SAME_VECTORS, NOT_APART = "same vectors", "not told apart"  # without an identity
NEAR, FAR = 1e-5, 0.3  # distances: of float32 alone, and beyond all numerics (docs/identity.md)


@dataclass(frozen=True)
class Checked:
    """What is known of stored vectors.

    Args:
        place: the file or the collection, without passwords.
        answer: one of the texts of docs/vectors.md.
        stored, now: identities of the vectors, and of the network.
        vectors: number of stored vectors.
        compared: how many were compared with images.
        distance: the largest distance of two vectors, divided by their lengths: of the canary, or
            of those compared; None without them.
        note: why there is no better answer.
    """

    place: str
    answer: str
    stored: str = ""
    now: str = ""
    vectors: int = 0
    compared: int = 0
    distance: float | None = None
    note: str = ""


def check_vectors(
    place: str | os.PathLike[str],
    model: Any = None,
    output: str = "pooled",
    *,
    images: Sequence[Path] = (),
    column: str = "",
    rows: int | None = ROWS,
    normalised: bool = False,
    **options: Any,
) -> Checked:
    """Return whether stored vectors are from a network.

    Args:
        place: file, folder of `vitzoo embed`, or address of a collection, as in docs/vectors.md.
        model: the network, as for `vitzoo.identity`. None: only the stored identity is read.
        output: the output of the network that is stored.
        images: files of the stored vectors. If no identity is stored, their vectors are compared.
        column: name of the column, tensor or vector; by default `output`, or the only one.
        rows: how many vectors are compared, None for all.
        normalised: whether the identity is of vectors that were divided by their length.
        options: of `vitzoo.Predictor`, such as `weights`.

    Raises:
        VitzooError: the place cannot be read, or the network cannot be created.
    """
    place, wanted = os.fspath(place), [column] if column else [output, "vector", "embedding"]
    most = (rows or 2**62) if images and model is not None else 0
    address = address_of(place)
    read = read_store(address, wanted, most) if address else read_file(Path(place), wanted, most)
    entry, note = _identity(read, output)
    found = Checked(str(address or place), NOT_STATED, entry, vectors=read.count, note=note)
    if model is None:
        return replace(found, answer=STATED) if entry else found
    predictor = vitzoo.Predictor(model, outputs=output, **options)
    now = vitzoo.identity(predictor, output, normalised=normalised)
    if not entry:
        return replace(found, now=now, **_compared(read, predictor, output, images, note))
    distance: float | None = None
    try:
        answer = vitzoo.require_identity(entry, now)
    except IntegrityError:
        return replace(found, now=now, answer=ANOTHER)
    has_canary = answer == SAME_NETWORK and output in read.canary
    if has_canary and (canary := vitzoo.Canary.of(predictor, output)):
        distance = canary.distance(vitzoo.Canary.from_data(read.canary[output]))
    return replace(found, now=now, answer=answer, distance=distance)


def _identity(read: Stored, output: str) -> tuple[str, str]:
    """Return the identity that is stored for an output, or why there is none."""
    entry: Any = read.metadata.get(IDENTITY)
    try:
        if isinstance(entry, str) and entry.startswith("{"):  # of a Parquet file of `embed`
            entry = json.loads(entry)
        entry = entry.get(output) if isinstance(entry, Mapping) else entry
        if entry is None:
            return "", read.note or f"the metadata have no {IDENTITY} of the output {output!r}"
        vitzoo.require_identity(entry, entry)
    except (InvalidOption, ValueError, TypeError) as error:
        return "", str(error)
    return str(entry), ""


def _compared(
    read: Stored, predictor: Any, output: str, images: Sequence[Path], note: str
) -> dict[str, Any]:
    """Compare stored vectors with those of their images; return fields of `Checked`."""
    if not images:
        return {"note": f"{note}; --images compares vectors"}
    pairs = _pairs(read, images)
    every = list(predictor.rows([path for _, path in pairs]))
    good = [i for i, row in enumerate(every) if not row.error]
    if not good:
        return {"note": f"{note}; no image of a stored vector, by name or by order, can be read"}
    new = np.stack([every[i].outputs[output].ravel() for i in good])
    distances = _distances(read.vectors[[pairs[i][0] for i in good]], new)
    largest, answer = float(distances.max()), NOT_APART
    if largest <= NEAR:
        answer = SAME_VECTORS
    elif np.median(distances) > FAR:
        answer = ANOTHER
    return {"answer": answer, "compared": len(good), "distance": largest}


def _pairs(read: Stored, images: Sequence[Path]) -> list[tuple[int, Path]]:
    """Return rows and their images: by name, or by order if nothing names them."""
    if not read.keys:
        return list(enumerate(images[: len(read.vectors)])) if read.count == len(images) else []
    ends: dict[str, Path | None] = {}
    for path in images:
        ends |= {end: None if end in ends else path for end in _ends(path)}  # None: of several
    found = (next(filter(None, map(ends.get, _ends(PurePath(key)))), None) for key in read.keys)
    return [(row, path) for row, path in enumerate(found) if path]


def _ends(path: PurePath) -> Iterable[str]:
    """Yield a path and its ends, the longest one first."""
    return ("/".join(path.parts[i:]) for i in range(len(path.parts)))


def _distances(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.float64]:
    """Return the distance of the rows of two arrays, each divided by its length, in float64."""
    if first.shape != second.shape:
        return np.full(len(first), 2.0)
    pairs = ((first, second), (first, first), (second, second))
    products, *squares = (np.einsum("ij,ij->i", *pair, dtype=np.float64) for pair in pairs)
    cosines = products / np.sqrt(np.maximum(squares[0] * squares[1], 1e-300))
    return np.asarray(np.sqrt(np.maximum(2 - 2 * cosines, 0)))
