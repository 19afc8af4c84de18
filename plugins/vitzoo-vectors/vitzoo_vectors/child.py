"""Reads a file of vectors in a limited process, because its library may end the process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vitzoo_vectors.stored import IDENTITY, Places, Request, Stored, array_of, columns, texts


def parquet(paths: Sequence[str], request: Request) -> Stored:
    """Read a column of vectors."""
    from pyarrow import Table
    from pyarrow.dataset import dataset, field
    from pyarrow.parquet import read_schema

    data = dataset(list(paths), format="parquet")
    metadata = texts(data.schema.metadata)
    for path in paths:
        if texts(read_schema(path).metadata).get(IDENTITY) != metadata.get(IDENTITY):
            raise ValueError(f"{path} states another identity than {paths[0]}")
    column, key = columns(data.schema, request.columns) if request.of_vectors else ("", [])

    def names() -> list[str]:
        return [str(name) for name in data.to_table(columns=key)[0].to_pylist()] if key else []

    def take(places: Places) -> Iterable[NDArray[Any]]:
        some = {"columns": [column]}
        first = data.filter(field(column).is_valid()).head(1, **some)[0].to_pylist()
        width = len(first[0]) if first else 0
        if len(places) < count:
            return [array_of(data.take(places, **some)[0], width)]
        batches = (Table.from_batches([one])[0] for one in data.to_batches(**some) if len(one))
        return (array_of(batch, width) for batch in batches)

    count = data.count_rows()
    return request.read(metadata, count, names, take)


def faiss(paths: Sequence[str], request: Request) -> Stored:
    """Read the vectors of an index that keeps them exactly."""
    import faiss as library

    request.refuse_column()
    outer = index = library.read_index(paths[0])  # `outer` owns the memory of what is in it
    if isinstance(outer, library.IndexIDMap):
        index = library.downcast_index(outer.index)
    kind = type(index).__name__

    def take(places: Places) -> Iterable[NDArray[Any]]:
        if "Flat" not in kind or "Refine" in kind:
            raise ValueError(f"an index of the kind {kind} cannot give its vectors back")
        if isinstance(index, library.IndexIVF):
            index.make_direct_map()
        return [index.reconstruct_batch(places)]

    return request.read({}, index.ntotal, list, take)


def read(source: BinaryIO, target: BinaryIO, kind: str) -> None:
    """Write what one of the readers reads: a line of JSON, and the vectors as float32.

    Args:
        source: the paths and the fields of `Request`, as JSON.
        target: an empty file.
        kind: name of the reader.
    """
    paths, request = json.load(source)
    stored = {"parquet": parquet, "faiss": faiss}[kind](paths, Request(**request))
    stated = [dict(stored.metadata), stored.count, stored.images, stored.named]
    target.write(json.dumps(stated).encode() + b"\n")
    parts = stored.vectors if stored.images else ()
    target.writelines(np.ascontiguousarray(part, "<f4").data for part in parts)
