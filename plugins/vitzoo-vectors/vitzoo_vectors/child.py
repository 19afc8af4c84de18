"""Reads a file of vectors in a limited process, because its library may end the process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vitzoo_vectors.stored import IDENTITY, Places, Request, Stored, array_of, columns, texts

ROWS = 4096  # of a batch
STATED = ("metadata", "count", "images", "named", "belonging", "width")


def parquet(paths: Sequence[str], request: Request) -> Stored:
    """Read a column of vectors."""
    from pyarrow import Table
    from pyarrow.parquet import ParquetFile  # pyarrow.dataset imports pandas

    files = [ParquetFile(path) for path in paths]
    schema = files[0].schema_arrow
    metadata = texts(schema.metadata)
    for path, file in zip(paths, files, strict=True):
        if texts(file.schema_arrow.metadata).get(IDENTITY) != metadata.get(IDENTITY):
            raise ValueError(f"{path} states another identity than {paths[0]}")
    column, key, width = columns(schema, request)

    def parts(name: str, size: int) -> Iterator[Any]:
        for file in files:
            for batch in file.iter_batches(size, columns=[name]):
                yield Table.from_batches([batch])[name]

    def names() -> list[str]:
        return [str(name) for part in parts(key, ROWS) for name in part.to_pylist()] if key else []

    def take(places: Places) -> Iterator[NDArray[Any]]:
        start = 0
        for part in parts(column, ROWS):
            here = slice(*np.searchsorted(places, [start, start + len(part)]))
            offsets = places[here] - start
            yield array_of(part if len(offsets) == len(part) else part.take(offsets), width)
            start += len(part)

    if column and not width:
        some = (part.drop_null() for part in parts(column, 1))
        width = next((len(part[0].as_py()) for part in some if len(part)), 0)
    count = sum(file.metadata.num_rows for file in files)
    return request.read(metadata, count, names, take, width=width)


def faiss(paths: Sequence[str], request: Request) -> Stored:
    """Read the vectors of an index that keeps them exactly."""
    import faiss as library

    request.refuse_column()
    request.refuse_key()
    outer = index = library.read_index(paths[0])  # `outer` owns the memory of what is in it
    if isinstance(outer, library.IndexIDMap):
        index = library.downcast_index(outer.index)
    kind = type(index).__name__

    def take(places: Places) -> list[NDArray[Any]]:
        if "Flat" not in kind or "Refine" in kind:
            raise ValueError(f"an index of the kind {kind} cannot give its exact vectors back")
        if isinstance(index, library.IndexIVF):
            index.make_direct_map()
        return [index.reconstruct_batch(places)]

    return request.read({}, index.ntotal, list, take, width=index.d)


def read(source: BinaryIO, target: BinaryIO, kind: str) -> None:
    """Write what one of the readers reads: a line of JSON, and the vectors as float32.

    Args:
        source: the paths and the fields of `Request`, as JSON.
        target: an empty file.
        kind: name of the reader.
    """
    paths, request = json.load(source)
    stored = {"parquet": parquet, "faiss": faiss}[kind](paths, Request(**request))
    stated = {name: getattr(stored, name) for name in STATED}
    target.write(json.dumps(stated).encode() + b"\n")
    parts = stored.vectors if stored.images else ()
    target.writelines(np.ascontiguousarray(part, "<f4").data for part in parts)
