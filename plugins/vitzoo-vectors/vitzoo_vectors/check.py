"""`check_vectors`: compares the identity of stored vectors, or the vectors, with a network."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vitzoo
from vitzoo import cli
from vitzoo.errors import IntegrityError, InvalidOption, printable, short_repr
from vitzoo_vectors.files import read_file
from vitzoo_vectors.stored import IDENTITY, KEYS, Request, Stored, check_identity
from vitzoo_vectors.stores import address_of, read_store

ROWS = 1000
STATED, NOT_STATED, ANOTHER = "stated", "not stated", "another network"
SAME_NETWORK = "same network, other numerics"
SAME_VECTORS, NOT_APART = "same vectors", "not told apart"  # without an identity
NEAR, FAR = 1e-5, 0.3  # distances: of float32 alone, and beyond all numerics (docs/identity.md)
HALF = 1e-3  # of vectors that are rounded to float16, by at most 2**-11 of each number
MOST_SORTED = 2000  # vectors that are looked for in another order
ALSO = "another output, preprocessing or normalisation counts as another network"


@dataclass(frozen=True)
class Checked:
    """What is known of stored vectors.

    Args:
        place: the file or the collection, without passwords.
        answer: one of the texts of docs/vectors.md.
        stored, now: identities of the vectors, and of the network.
        vectors: number of stored vectors.
        compared: how many were compared with images.
        left_out: how many of those that were read could not be compared.
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
    left_out: int = 0
    distance: float | None = None
    note: str = ""


def check_vectors(
    place: str | os.PathLike[str],
    model: Any = None,
    output: str = "pooled",
    *,
    images: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    column: str = "",
    key: str = "",
    rows: int | None = ROWS,
    normalised: bool = False,
    **options: Any,
) -> Checked:
    """Return whether stored vectors are from a network.

    Args:
        place: file, folder of `vitzoo embed`, or address of a collection, as in docs/vectors.md.
        model: the network, as for `vitzoo.identity`, or the text of its identity. None: only the
            stored identity is read.
        output: the output of the network that is stored.
        images: files of the stored vectors, or folders of them, whose vectors are compared with the
            stored ones, unless another network is stated. They need a model.
        column: name of the column, tensor or vector; by default `output`, or the only one.
        key: name of the column, or the entry of the payload, that names the image of a vector; by
            default the first of key, path, file, filename and id that is there.
        rows: how many vectors are compared, evenly spread over those of the images; None: all.
        normalised: whether the identity is of vectors that were divided by their length.
        options: of `vitzoo.Predictor`, such as `weights`.

    Raises:
        InvalidOption: a value is not possible.
        VitzooError: the place cannot be read, or the network cannot be created.
    """
    images = [images] if isinstance(images, str | os.PathLike) else [*images]
    only_text = isinstance(model, str) and model.startswith("vz1:")
    _check_arguments(place, rows, images, model, {**options} if only_text else None)
    paths = [*dict.fromkeys(cli.image_files(map(Path, images)).paths)] if images else []
    columns = [column] if column else [output, "vector", "embedding"]
    keys = (key,) if key else KEYS
    request = Request(columns, [path.as_posix() for path in paths], rows or 2**62, keys)
    address = address_of(os.fspath(place))
    read = read_store(address, request) if address else read_file(Path(place), request)
    entry, note = _identity(read, output)
    shown = str(address or place)
    found = Checked(shown, NOT_STATED, entry, vectors=read.count, note=note)
    if model is None:
        return replace(found, answer=STATED) if entry else found
    if only_text:
        found = replace(found, now=model)
        return _stated(found, read, None, output) if entry else found
    predictor = vitzoo.Predictor(model, outputs=output, **options)
    found = replace(found, now=vitzoo.identity(predictor, output, normalised=normalised))
    if other := _other_width(read, predictor, output):
        return replace(found, answer=ANOTHER, note="; ".join(filter(None, [found.note, other])))
    if entry:
        found = _stated(found, read, predictor, output)
    elif not paths:
        return replace(found, note=f"{note}; --images compares vectors")
    if not paths or found.answer == ANOTHER:
        return found
    return _compared(found, read, predictor, output, paths)


def _check_arguments(
    place: object,
    rows: int | None,
    images: list[Any],
    model: Any,
    of_text: Mapping[str, Any] | None,
) -> None:
    """Raise InvalidOption for a wrong argument; `of_text` are options beside an identity."""
    if not isinstance(place, str | os.PathLike) or (rows is not None and rows < 1):
        raise InvalidOption(
            f"place must be text or a path, and rows a positive number or None, got "
            f"{short_repr(place)} and {short_repr(rows)}"
        )
    if of_text is not None:
        check_identity(model)
    if images and (model is None or of_text is not None):
        raise InvalidOption(
            f"images (--images) are compared with a network; MODEL is {short_repr(model)}, name one"
        )
    if of_text:
        raise InvalidOption(
            f"an identity has no {', '.join(of_text)}; leave them out, or name the network"
        )


def _stated(found: Checked, stated: Stored, predictor: Any, output: str) -> Checked:
    """Compare the stored identity with that of the network, and the canary if they differ."""
    try:
        answer = vitzoo.require_identity(found.stored, found.now)
    except IntegrityError:
        same = found.stored.split(":")[1] == found.now.split(":")[1]
        return replace(found, answer=ANOTHER, note=ALSO if same else found.note)
    canary = stated.canary.get(output) if predictor and answer == SAME_NETWORK else None
    own = vitzoo.Canary.of(predictor, output) if canary else None
    if own is None:
        return replace(found, answer=answer)
    try:
        other = vitzoo.Canary.from_data(canary)
    except InvalidOption as error:
        return replace(found, answer=answer, note=str(error))
    note = "; ".join(filter(None, [found.note, f"canary: {own.compared(other)}"]))
    return replace(found, answer=answer, distance=own.distance(other), note=note)


def _identity(read: Stored, output: str) -> tuple[str, str]:
    """Return the identity that is stored for an output, and what to note of it."""
    entry: Any = read.metadata.get(IDENTITY)
    if isinstance(entry, str) and entry.lstrip().startswith("{"):  # of a Parquet file of `embed`
        with suppress(ValueError, RecursionError):
            entry = json.loads(entry)
    if isinstance(entry, Mapping) and output not in entry:
        listed = ", ".join(map(printable, entry)) or "no output"
        return "", read.note or f"{IDENTITY} is there of {listed}, not of {output!r}"
    entry = entry.get(output) if isinstance(entry, Mapping) else entry
    if entry is None:
        return "", read.note or f"the metadata have no {IDENTITY} of the output {output!r}"
    try:
        check_identity(entry)
    except InvalidOption as error:
        return "", str(error)
    return str(entry), read.note


def _other_width(read: Stored, predictor: Any, output: str) -> str:
    """Return what is wrong with the length of the stored vectors; empty if nothing is."""
    width = read.width or read.vectors.shape[1]
    new = width
    with suppress(InvalidOption):  # it depends on the native size
        new = math.prod(predictor.shapes[output]) if width else 0
    if width == new:
        return ""
    return (
        f"a stored vector has {width} numbers, {output!r} of the network has {new}; --output and "
        "--column name others"
    )


def _left_out(read: Stored, images: int) -> str:
    """Return which vectors belong to no image; empty if all do."""
    if not read.count:
        return "there are no vectors"
    if read.named and read.belonging < read.count:
        left = f"{read.count - read.belonging} of {read.count} vectors"
        return f"{left} name no image, or several, by {', '.join(KEYS)} or --key"
    if not read.named and not read.images:
        return (
            f"there are {read.count} vectors and {images} images; without names they belong "
            "together by order, which needs as many of both"
        )
    return ""


def _compared(
    found: Checked, read: Stored, predictor: Any, output: str, images: Sequence[Path]
) -> Checked:
    """Compare stored vectors with those of their images."""
    notes = [note for note in (found.note, _left_out(read, len(images))) if note]
    if not read.images:
        return replace(found, note="; ".join(notes))
    paths = [images[number] for number in read.images]
    ordered = not read.named and len(paths) == read.count <= MOST_SORTED
    every, same_set = _measured(read.vectors, predictor.rows(paths), output, ordered=ordered)
    whole = np.isfinite(read.vectors).all(axis=1) & bool(read.vectors.shape[1])
    for what, some in (
        ("stored vectors are missing or not finite", ~whole),
        ("images cannot be read, or have no finite vector", whole & ~np.isfinite(every)),
    ):
        if some.any():
            first = printable(paths[int(some.argmax())])
            notes.append(f"{some.sum()} of {len(paths)} {what}, such as {first}")
    distances = every[np.isfinite(every)]
    found = replace(found, compared=len(distances), left_out=len(every) - len(distances))
    if not len(distances):
        return replace(found, note="; ".join(notes))
    far, largest = int((distances > FAR).sum()), float(distances.max())
    stated, half = found.answer != NOT_STATED, _is_half(read.vectors[whole])
    near = FAR if found.answer == SAME_NETWORK else HALF if stated and half else NEAR
    if largest <= near:
        answer = found.answer if stated else SAME_VECTORS
        notes += ["the vectors are in another order than the images"] * same_set
    else:
        answer = NOT_APART if 2 * far <= len(distances) else ANOTHER
        cause = f"float32 alone causes at most {NEAR:g}"
        if half:
            cause = f"float16, in which they are stored, causes at most {HALF:g}"
        if far:
            cause = f"{far} of the vectors are farther than {FAR}, as of another network"
        notes.append(cause)
        notes += ["without names they belong to the images in their order"] * (
            bool(far) and not read.named
        )
    return replace(found, answer=answer, distance=largest, note="; ".join(notes))


def _is_half(vectors: NDArray[Any]) -> bool:
    """Tell whether float16 holds all numbers exactly."""
    with np.errstate(over="ignore"):
        return bool((vectors.astype(np.float16) == vectors).all())


def _measured(
    stored: NDArray[Any], rows: Iterable[Any], output: str, *, ordered: bool
) -> tuple[NDArray[np.float64], bool]:
    """Return the distance of each vector, and whether they are the same ones in another order.

    Args:
        stored: (n, d) vectors.
        rows: results of a Predictor.
        output: of it.
        ordered: whether to look for another order.
    """
    distances, units = [], []
    for vector, row in zip(stored, rows, strict=True):
        new = np.empty(0) if row.error else row.outputs[output].ravel()
        comparable = new.shape == vector.shape and len(vector) > 0
        new = new if comparable else np.full_like(vector, np.nan)
        distances.append(np.linalg.norm(_unit(vector) - _unit(new)) if comparable else np.nan)
        units += [_unit(new)] if ordered else []
    found = np.array(distances)
    good = np.isfinite(found)
    if not ordered or not good.any() or found[good].max() <= FAR:
        return found, False
    one, two = np.array(units)[good], np.array([*map(_unit, stored)])
    squares = np.maximum(2 - 2 * (one @ two.T), 0)
    nearest = np.sqrt(squares.min(axis=1))
    same = nearest.max() <= NEAR and (squares.min(axis=0) <= NEAR**2).sum() >= good.sum()
    if same:
        found[good] = nearest
    return found, bool(same)


def _unit(vector: NDArray[Any]) -> NDArray[np.float64]:
    """Return a vector divided by its length."""
    exact = vector.astype(np.float64)
    return exact / max(float(np.linalg.norm(exact)), 1e-300)
