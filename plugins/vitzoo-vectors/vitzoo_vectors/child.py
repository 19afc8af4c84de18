"""The process that reads a file of vectors, with limits of memory and time.

    python -P -m vitzoo_vectors.child KIND MOST COLUMNS FILE...

It writes a line of JSON, and then the vectors as float32.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from vitzoo_vectors.stored import arrays, choose, columns, texts

MEMORY, SECONDS = 2**32, 600  # beside six times the size of the files; of processor time
Found = tuple[dict[str, Any], Any, list[str]]  # what is stated, vectors, keys


def parquet(paths: Sequence[str], wanted: Sequence[str], most: int) -> Found:
    """Read a column of vectors."""
    from pyarrow import Table
    from pyarrow.parquet import ParquetFile

    files = [ParquetFile(path) for path in paths]
    schema, count = files[0].schema_arrow, sum(file.metadata.num_rows for file in files)
    stated = {"metadata": texts(schema.metadata), "count": count}
    if not most or not count:
        return stated, np.zeros((0, 0)), []
    names, batches = columns(schema, wanted), []
    for batch in (one for file in files for one in file.iter_batches(4096, columns=names)):
        batches.append(batch)
        if sum(map(len, batches)) >= most:
            break
    return stated, *arrays(Table.from_batches(batches).select(names)[:most])


def safetensors(paths: Sequence[str], wanted: Sequence[str], most: int) -> Found:
    """Read a tensor (n, d)."""
    from safetensors import safe_open

    with safe_open(paths[0], framework="numpy") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        name = choose((name for name, shape in shapes.items() if len(shape) == 2), wanted)
        count = shapes[name][0]
        stated = {"metadata": file.metadata() or {}, "count": count}
        return stated, file.get_slice(name)[: min(most, count)], []


def npy(paths: Sequence[str], _: Sequence[str], most: int) -> Found:
    """Read an array (n, d)."""
    array = np.load(paths[0], mmap_mode="r", allow_pickle=False)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise ValueError(f"expected floats (n, d), got {array.dtype} {array.shape}")
    return {"count": len(array)}, array[:most], []


def faiss(paths: Sequence[str], _: Sequence[str], most: int) -> Found:
    """Read the vectors of an index that keeps them exactly."""
    import faiss as library

    outer = index = library.read_index(paths[0])  # `outer` owns the memory of what is in it
    if isinstance(outer, library.IndexIDMap):
        index = library.downcast_index(outer.index)
    kind = type(index).__name__
    if most and ("Flat" not in kind or "Refine" in kind):
        raise ValueError(f"an index of the kind {kind} cannot give its vectors back")
    if most and isinstance(index, library.IndexIVF):
        index.make_direct_map()
    return {"count": index.ntotal}, index.reconstruct_n(0, min(most, index.ntotal)), []


def limit(paths: Sequence[str]) -> None:
    """Limit this process; Windows has no such limits."""
    if sys.platform != "win32":
        import resource

        memory = MEMORY + 6 * sum(map(os.path.getsize, paths))
        limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: SECONDS}
        limits |= {resource.RLIMIT_AS: memory} if sys.platform == "linux" else {}
        for kind, value in limits.items():
            resource.setrlimit(kind, (value, value))


def main(kind: str, most: str, wanted: str, *paths: str) -> None:
    """Write what one of the readers finds, or why it cannot."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with the answer
    try:
        limit(paths)
        stated, vectors, keys = globals()[kind](paths, wanted.split(","), int(most))
        array = np.ascontiguousarray(vectors, "<f4")
        stated |= {"shape": array.shape, "keys": keys}
    except Exception as error:  # noqa: BLE001  # of any library
        array = np.zeros(0, "<f4")
        stated = {"error": str(error) or repr(error), "code": getattr(error, "exit_code", 1)}
    out.write(json.dumps(stated).encode() + b"\n")
    out.write(array.data)
    out.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
