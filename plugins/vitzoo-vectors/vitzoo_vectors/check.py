"""`check_vectors`: compares the identity of stored vectors, or the vectors, with a network."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import vitzoo
from vitzoo.errors import IntegrityError, InvalidOption
from vitzoo_vectors.files import read_file
from vitzoo_vectors.stored import IDENTITY, Request, Stored
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
        rows: how many vectors are compared, evenly spread over those of the images; None: all.
        normalised: whether the identity is of vectors that were divided by their length.
        options: of `vitzoo.Predictor`, such as `weights`.

    Raises:
        VitzooError: the place cannot be read, or the network cannot be created.
    """
    place, columns = os.fspath(place), [column] if column else [output, "vector", "embedding"]
    address = address_of(place)
    read = partial(read_store, address) if address else partial(read_file, Path(place))
    stated = read(Request(columns))
    entry, note = _identity(stated, output)
    found = Checked(str(address or place), NOT_STATED, entry, vectors=stated.count, note=note)
    if model is None:
        return replace(found, answer=STATED) if entry else found
    predictor = vitzoo.Predictor(model, outputs=output, **options)
    found = replace(found, now=vitzoo.identity(predictor, output, normalised=normalised))
    if not entry and not images:
        return replace(found, note=f"{note}; --images compares vectors")
    if not entry:
        stored = read(Request(columns, [path.as_posix() for path in images], rows or 2**62))
        return _compared(found, stored, predictor, output, images)
    try:
        answer = vitzoo.require_identity(entry, found.now)
    except IntegrityError:
        return replace(found, answer=ANOTHER)
    canary = stated.canary.get(output) if answer == SAME_NETWORK else None
    own = vitzoo.Canary.of(predictor, output) if canary else None
    if own is None:
        return replace(found, answer=answer)
    try:
        other = vitzoo.Canary.from_data(canary)
    except InvalidOption as error:
        return replace(found, answer=answer, note=str(error))
    note = f"canary: {own.compared(other)}"
    return replace(found, answer=answer, distance=own.distance(other), note=note)


def _identity(read: Stored, output: str) -> tuple[str, str]:
    """Return the identity that is stored for an output, or why there is none."""
    entry: Any = read.metadata.get(IDENTITY)
    if isinstance(entry, str) and entry.startswith("{"):  # of a Parquet file of `embed`
        with suppress(ValueError, RecursionError):
            entry = json.loads(entry)
    entry = entry.get(output) if isinstance(entry, Mapping) else entry
    if entry is None:
        return "", read.note or f"the metadata have no {IDENTITY} of the output {output!r}"
    try:
        vitzoo.require_identity(entry, entry)
    except InvalidOption as error:
        return "", str(error)
    return str(entry), ""


def _compared(
    found: Checked, read: Stored, predictor: Any, output: str, images: Sequence[Path]
) -> Checked:
    """Compare stored vectors with those of their images."""
    rows = predictor.rows([images[number] for number in read.images])
    pairs = zip(read.vectors, rows, strict=True)
    every = [_distance(vector, row.outputs[output]) for vector, row in pairs if not row.error]
    distances = [distance for distance in every if np.isfinite(distance)]
    if not distances:
        reason = "no image of a stored vector, by name or by order, can be read"
        return replace(found, note=f"{found.note}; {reason}")
    largest, answer = max(distances), NOT_APART
    far = sum(distance > FAR for distance in distances)
    if largest <= NEAR:
        answer = SAME_VECTORS
    elif 2 * far > len(distances):
        answer = ANOTHER
    left = len(read.images) - len(distances)
    notes = [found.note, *[f"{far} of the vectors are farther than {FAR}"] * bool(far)]
    notes += [f"{left} images cannot be read, or have no finite vector"] * bool(left)
    note = "; ".join(notes)
    return replace(found, answer=answer, compared=len(distances), distance=largest, note=note)


def _distance(stored: Any, new: Any) -> float:
    """Return the distance of two vectors, each divided by its length."""
    one, two = (vitzoo.Canary(np.array([v.ravel()]), "float32") for v in (stored, new))
    return one.distance(two)
