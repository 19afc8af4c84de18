"""The helper process that reads Parquet files with pyarrow; `parquet_reader.py` starts it.

pyarrow ends its process for some damaged files, and takes as much memory as a file asks for. A
request is a path, the version of the file, the name of a function below, and its arguments.
"""

from __future__ import annotations

import itertools
import os
import pickle
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from vitzoo.errors import short_repr

MEMORY = 2**30  # bytes beside those of the process when it starts
OUT_OF_MEMORY = 77  # exit code
NO_MEMORY = ("bad_alloc", "not enough memory", "cannot allocate", "allocate memory")
BUFFER = 2**20  # bytes of a file that are read at once
CELLS = 2**20  # bytes of cells in one answer, or one cell
MAX_TEXT = 2**24  # characters of the names of all columns, bytes of a value of the metadata
MAX_TYPE = 200  # characters of a type in messages
PATIENCE = 1.0  # seconds until an answer says that the row is not reached yet


class Column(NamedTuple):
    """A column: whether it has the `bytes` or the `path` of images, and whether it is plain.

    A plain column has no dates and times, which have values that Python cannot represent, and no
    lists; `listed` columns have lists of plain values.
    """

    name: str
    kind: str
    type: str
    plain: bool
    listed: bool = False


class Outline(NamedTuple):
    """What the footer of a file states: of each row group the rows and the bytes."""

    columns: tuple[Column, ...]
    groups: tuple[tuple[int, int], ...]
    rows: int
    metadata: dict[bytes, bytes]


class Rows(NamedTuple):
    """The values of some rows; none if the row is not reached yet."""

    number: int
    values: Any = ()


class Unreadable(NamedTuple):
    """Why a file, the rest of a row group, or one cell cannot be read."""

    reason: str


class Large(NamedTuple):
    """A cell that is too large: its bytes or characters, and its column."""

    size: int
    column: str


class Odd(NamedTuple):
    """A cell that is neither bytes nor text, as messages show it."""

    shown: str


class Nowhere:
    """A file that keeps nothing."""

    def write(self, data: object) -> None:
        """Drop data."""


class File:
    """Reads some columns of a file; rows in ascending order are decoded once.

    Args:
        path: of the file.
    """

    def __init__(self, path: str) -> None:
        from pyarrow import OSFile, parquet

        self.file: Any = parquet.ParquetFile(OSFile(os.fsencode(path)), buffer_size=BUFFER)
        metadata = self.file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self.groups = tuple((group.num_rows, group.total_byte_size) for group in groups)
        self.ends = list(itertools.accumulate(rows for rows, _ in self.groups))
        self.of: tuple[object, ...] = ()
        self.problem: Unreadable | None = None
        self.batches: Iterator[Any] = iter(())
        self.batch: Any = None
        self.start = self.stop = 0  # rows of `batch`

    def outline(self, keys: Iterable[bytes]) -> Outline | Unreadable:
        """Return what the footer states, with these entries of the metadata."""
        schema, metadata = self.file.schema_arrow, self.file.metadata
        if (size := sum(map(len, schema.names))) > MAX_TEXT:
            text = f"the names of its columns have {size} characters, the most is {MAX_TEXT}"
            return Unreadable(text)
        stated = schema.metadata or {}
        kept = {k: stated[k] for k in keys if k in stated and len(stated[k]) <= MAX_TEXT}
        return Outline(tuple(map(_column, schema)), self.groups, metadata.num_rows, kept)

    def cells(
        self, columns: Sequence[str], row: int, stop: int, at_once: int, most: int
    ) -> Rows | Unreadable:
        """Return cells of one column with images, of at most `most` bytes each.

        A cell is its bytes, its text, None, or an instance of the classes above.
        """
        if not isinstance(batch := self._reach(columns, row, at_once), Rows):
            return batch
        if not batch.number:
            return batch
        found, size = [], 0
        column = batch.values.column(columns[0])
        for i in range(min(batch.number, stop - row)):
            found.append(value := _cell(column[i], columns[0], most))
            size += len(value) if isinstance(value, bytes | str) else 0
            if size > CELLS:
                break
        return Rows(len(found), found)

    def check(
        self, columns: Sequence[str], row: int, stop: int, at_once: int, most: int
    ) -> Rows | Unreadable:
        """Read cells of one row group as `cells` does, and answer only how many there are."""
        first, until = row, monotonic() + PATIENCE
        while row < stop and monotonic() < until:
            answer = self.cells(columns, row, stop, at_once, most)
            if not isinstance(answer, Rows):
                return answer
            pickle.dump(answer, Nowhere())  # an answer that is sent takes memory too
            row += answer.number
            del answer  # before the next cell, which may be as large
        return Rows(row - first)

    def texts(
        self, columns: Sequence[str], row: int, stop: int, at_once: int, most: int
    ) -> Rows | Unreadable | Large:
        """Return the values of columns by their names, of at most `most` characters each."""
        batch = self._reach(columns, row, at_once)
        if not isinstance(batch, Rows) or not batch.number:
            return batch
        count = min(batch.number, stop - row)
        values = batch.values.slice(0, count).to_pydict()
        for name, cells in values.items():
            if (longest := _longest(cells)) > most:
                return Large(longest, name)
        return Rows(count, values)

    def vectors(
        self, columns: Sequence[str], row: int, stop: int, at_once: int, width: int
    ) -> Rows | Unreadable:
        """Return hashes, and their vectors (n, `width`), of the rows that have a finite one."""
        batch = self._reach(columns, row, at_once)
        if not isinstance(batch, Rows) or not batch.number:
            return batch
        count = min(batch.number, stop - row)
        return Rows(count, _vectors(batch.values.slice(0, count), columns, width))

    def _reach(self, columns: Sequence[str], row: int, at_once: int) -> Rows | Unreadable:
        """Return the rows of the batch with a row, from it on, or why they cannot be read."""
        group = bisect_right(self.ends, row)
        of = (group, tuple(columns), at_once)
        if of != self.of or row < self.start:
            self.of, self.problem, self.batch = of, None, None
            self.start = self.stop = self.ends[group - 1] if group else 0
            self.batches = self.file.iter_batches(
                at_once, row_groups=[group], columns=list(columns), use_threads=False
            )
        until = monotonic() + PATIENCE
        while self.problem is None and row >= self.stop and monotonic() < until:
            self.problem = self._next()
        if self.problem is not None:
            return self.problem
        if row >= self.stop:
            return Rows(0)
        return Rows(self.stop - row, self.batch.slice(row - self.start))

    def _next(self) -> Unreadable | None:
        """Read the next batch; return why it cannot be read."""
        self.batch, self.start = None, self.stop
        try:
            self.batch = next(self.batches, None)
        except Exception as error:  # noqa: BLE001  # pyarrow raises several kinds
            return unreadable(error)
        if self.batch is None:
            return Unreadable("it ends too early")
        self.stop += self.batch.num_rows
        return None


def unreadable(error: Exception) -> Unreadable:
    """Return why pyarrow could not read; end this process if it had too little memory."""
    reason = " ".join(str(error).split())
    if isinstance(error, MemoryError) or any(text in reason.lower() for text in NO_MEMORY):
        os._exit(OUT_OF_MEMORY)
    return Unreadable(reason or type(error).__name__)


def kind_of(of: Any) -> str:
    """Return `bytes` or `path` for the type of a column that can have images."""
    from pyarrow import types

    if types.is_dictionary(of):
        of = of.value_type
    if types.is_struct(of):  # an image of Hugging Face's datasets
        names = {"" if types.is_nested(field.type) else field.name for field in of}
        return "bytes" if names and names <= {"bytes", "path"} else ""
    if any(is_kind(of) for is_kind in (types.is_binary, types.is_large_binary)):
        return "bytes"
    return "path" if types.is_string(of) or types.is_large_string(of) else ""


def _column(field: Any) -> Column:
    from pyarrow import types

    def plain(*inner: Any) -> bool:
        return not any(types.is_temporal(one) or types.is_nested(one) for one in inner)

    of = field.type
    simple = plain(*(one.type for one in of)) if types.is_struct(of) else plain(of)
    listed = (types.is_list(of) or types.is_large_list(of)) and plain(of.value_type)
    return Column(field.name, kind_of(of), str(of)[:MAX_TYPE], simple, listed)


def _cell(scalar: Any, column: str, most: int) -> bytes | str | Large | Odd | Unreadable | None:
    try:
        value = scalar.as_py()
    except Exception as error:  # noqa: BLE001  # text that is not UTF-8
        return unreadable(error)
    if isinstance(value, dict):  # an image of Hugging Face's datasets
        found = value.get("bytes")
        value = value.get("path") if found is None else found
    if isinstance(value, bytes) and len(value) > most:
        return Large(len(value), column)
    return value if value is None or isinstance(value, bytes | str) else Odd(short_repr(value))


def _longest(cells: Iterable[Any]) -> int:
    """Return the most characters or bytes of a text in cells, or in structs and lists in them."""
    inside = (
        one.values() if isinstance(one, dict) else one if isinstance(one, list) else [one]
        for one in cells
    )
    return max((len(x) for cell in inside for x in cell if isinstance(x, str | bytes)), default=0)


def _vectors(table: Any, columns: Sequence[str], width: int) -> tuple[list[str], Any]:
    """Return hashes and vectors; raise an error for numbers of another type or count."""
    import numpy as np

    key, name = columns
    table = table.filter(table[name].is_valid())
    flat = table[name].flatten().to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):  # what is not finite is left out
        vectors = flat.astype(np.float32, copy=False).reshape(len(table), width)
    whole = np.isfinite(vectors).all(axis=1)  # `embed` writes NaN for images with an error
    hashes = np.array(table[key].cast("string").to_pylist(), dtype=object)
    return hashes[whole].tolist(), vectors[whole]


def main() -> None:
    """Answer the requests of the process that started this one, until that process ends."""
    from vitzoo.apps.embed.processes import channel
    from vitzoo.files.platform.processes import limit, watch_memory

    receive, send = channel()
    import pyarrow as pa
    from pyarrow import parquet as parquet  # before the memory is measured

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    limit(MEMORY)
    watch_memory(MEMORY, OUT_OF_MEMORY)
    send(None)
    with suppress(EOFError):
        try:
            _serve(receive, send)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
    os._exit(0)  # within its limit, pyarrow may not end in order


def _serve(receive: Callable[[], Any], send: Callable[[object], None]) -> None:
    opened: tuple[object, ...] = ()
    while True:
        path, version, name, arguments = receive()
        try:
            if opened[:2] != (path, version):
                opened = ()
                opened = path, version, File(path)
            file: Any = opened[2]
            send(getattr(file, name)(*arguments))
        except EOFError:
            raise
        except Exception as error:  # noqa: BLE001  # pyarrow raises several kinds
            send(unreadable(error))
