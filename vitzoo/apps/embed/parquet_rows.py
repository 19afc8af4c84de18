"""Images in the rows of Parquet files, read in order with limited memory."""

from __future__ import annotations

import itertools
import os
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vitzoo.apps.embed.items import Item, Piece, as_text, check_size, open_archive, read_file
from vitzoo.apps.embed.parquet_pages import Page, pages_of
from vitzoo.errors import (
    ImageError,
    InvalidOption,
    VitzooError,
    did_you_mean,
    printable,
    short_repr,
)
from vitzoo.plugin.requirements import check_extra
from vitzoo.text import listed

BATCH = 16  # rows of a Parquet file that are in memory at once
BUFFER = 2**20  # bytes of a Parquet file that are read at once
MAX_PAGE = 2**27  # bytes of the largest pages of a column, a dictionary twice
LITTLE = 1.25  # times as many bytes as are stored: larger pages are read, too
MAX_VALUES = 2**24  # of a page
USUAL = ("image", "img", "bytes", "path", "file_name")  # columns with images, the first one found


@dataclass(frozen=True)
class ParquetRows(Piece):
    """Rows of a Parquet file whose column has the bytes or the paths of images."""

    entries: range
    column: str
    state: str  # what the end of the file says about its row groups

    @classmethod
    def find(cls, path: str, column: str | None) -> ParquetRows:
        """Read the columns and the number of rows.

        Raises:
            MissingDependency: pyarrow is not installed.
            ImageError: the file is missing or damaged, or has no rows.
            InvalidOption: the column does not exist, or has another type.
        """
        with open_parquet(path) as file:
            schema, stated = file.schema_arrow, file.metadata.num_rows
            sizes, state = _groups(file.metadata)
        rows = sum(sizes)
        if rows != stated or min(sizes, default=0) < 0:
            raise ImageError(
                f"{printable(path)} is damaged: it states {stated} rows, its row groups have {rows}"
            )
        if not rows:
            raise ImageError(f"{printable(path)} has no rows")
        return cls(path, range(rows), _column_of(schema, column, printable(path)), state)

    def items(self) -> Iterator[Item]:
        """Yield the images in order."""
        folder, shown, why = str(Path(self.path).parent), printable(self.path), ""
        try:
            cursor = _cursor(self.path, self.column)
            if cursor.state != self.state:
                why = f"{shown} has changed since its rows were counted"
        except ImageError as error:
            why = str(error)
        for row, key in zip(self.entries, self.names(), strict=True):
            value, problem = (None, why) if why else cursor.value(row)
            load = partial(_load_value, value, problem, folder, f"row {row} of {shown}")
            yield Item(key, load, len(value) if isinstance(value, bytes) else 0)
            del value, load  # while the next cell is read

    def names(self) -> Iterator[str]:
        """Yield the path of the file with the number of each row."""
        path = as_text(self.path)
        return (f"{path}/{row}" for row in self.entries)

    def identities(self) -> Iterator[str]:
        """Yield the file with the state of its row groups, once, and the range of rows."""
        rows = f"{self.entries.start} {self.entries.stop}"
        yield f"{as_text(self.path)} {self.column} {rows} {self.state}"


class _Cursor:
    """Reads the values of one column; rows in ascending order are decoded once."""

    def __init__(self, path: str, column: str) -> None:
        self.path, self.column, self.version = path, column, _version(path)
        with _explained(path):
            self.file = _parquet(path)
            sizes, self.state = _groups(self.file.metadata)
        self.ends = list(itertools.accumulate(sizes))
        self.group, self.problem = -1, ""
        self.batches: Iterator[Any] = iter(())
        self.values: Any = ()
        self.start = self.stop = 0  # rows of `values`

    def value(self, row: int) -> tuple[Any, str]:
        """Return the value of a row, and why it cannot be read, empty if it can."""
        group = bisect_right(self.ends, row)
        try:
            if group != self.group or row < self.start:
                self._open(group)
            while not self.problem and row >= self.stop:
                self.values = ()
                self.values = next(self.batches).column(self.column)
                self.start, self.stop = self.stop, self.stop + len(self.values)
        except Exception as error:  # noqa: BLE001  # pyarrow raises several kinds for damaged data
            reason = printable(" ".join(str(error).split())) or "it ends too early"
            path = printable(self.path)
            self.problem = f"cannot read row group {group} of {path}: {reason}"
        if self.problem:
            return None, self.problem
        try:
            return _inside(self.values[row - self.start].as_py()), ""
        except Exception as error:  # noqa: BLE001  # text that is not UTF-8, or too much memory
            reason = printable(" ".join(str(error).split()))
            return None, f"a cell of row group {group} of {self.path} cannot be read: {reason}"

    def _open(self, group: int) -> None:
        self.group, self.problem = group, ""
        self.start = self.stop = self.ends[group - 1] if group else 0
        self.batches = read_batches(self.path, self.file, [self.column], [group])


def read_batches(
    path: str, file: Any, columns: list[str], groups: Iterable[int], most: int = BATCH
) -> Iterator[Any]:
    """Yield rows of groups, at most `most` at once; raise ImageError for pages too large."""
    for group in groups:
        rows = _rows_at_once(pages_of(path, _version(path), group, columns), most)
        yield from file.iter_batches(rows, row_groups=[group], columns=columns)


def _rows_at_once(chunks: Iterable[list[Page]], most: int) -> int:
    """Return how many rows of a group to read at once; raise ImageError for pages too large.

    pyarrow decompresses a page as a whole, each row can repeat its largest value, and it copies the
    values of a dictionary. A large page of bytes that compress little, such as images, is read: it
    takes a part of the memory that the file takes on disk.
    """
    every = kept = values = 0
    for pages in chunks:
        largest = 0, 0
        for size, stored, count in pages:
            values = max(values, count)
            if count:
                largest = max(largest, (size, stored))
            else:  # a dictionary
                every, kept = every + 2 * size, kept + 2 * stored
        every, kept = every + largest[0], kept + largest[1]
    if every > max(MAX_PAGE, LITTLE * kept) or values > MAX_VALUES:
        raise ImageError(
            f"a row needs pages of {every} bytes ({kept} are stored) and {values} values, the most "
            f"is {MAX_PAGE} bytes and {MAX_VALUES} values; write smaller pages or images"
        )
    return max(min(most, 2 * max(MAX_PAGE, every) // max(every, 1)), 1)


# the cursor of each thread, which the next part of the file goes on with
_open_in = threading.local()


def _cursor(path: str, column: str) -> _Cursor:
    found: _Cursor | None = getattr(_open_in, "cursor", None)
    now = path, column, _version(path)
    if found is None or (found.path, found.column, found.version) != now:
        found = _open_in.cursor = _Cursor(path, column)
    return found


def read_cell(path: str, column: str, row: int) -> bytes:
    """Return the bytes of the image in a row; raise ImageError if that is not possible."""
    value, problem = _cursor(path, column).value(row)
    where = f"row {row + 1} of {printable(path)}"
    return _load_value(value, problem, str(Path(path).parent), where)


def _version(path: str) -> tuple[int, ...]:
    """Return what changes when a file is replaced; nothing if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  # as `Files`
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _groups(metadata: Any) -> tuple[list[int], str]:
    """Return the number of rows of each row group, and a text that changes with them."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    state = " ".join(f"{group.num_rows}:{group.total_byte_size}" for group in groups)
    return [group.num_rows for group in groups], state


def _parquet(path: str) -> Any:
    check_extra("parquet", "a Parquet file")
    from pyarrow import OSFile, parquet

    open_archive(path).close()  # a missing file or a pipe has a clear message
    return parquet.ParquetFile(OSFile(os.fsencode(path)), buffer_size=BUFFER)  # any bytes as name


@contextmanager
def open_parquet(path: str) -> Iterator[Any]:
    """Open a Parquet file for `with`; every error of pyarrow becomes an ImageError."""
    with _explained(path), _parquet(path) as file:
        yield file


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except VitzooError:
        raise
    except Exception as error:  # pyarrow raises several kinds for damaged data
        reason = printable(" ".join(str(error).split()))
        raise ImageError(f"cannot read the Parquet file {printable(path)}: {reason}") from error


def _column_of(schema: Any, column: str | None, name: str) -> str:
    """Return the column with the images: the one asked for, or the only one possible."""
    kinds = {field.name: kind_of(field.type) for field in schema}
    if twice := next((one for one in kinds if kinds[one] and schema.names.count(one) > 1), ""):
        raise InvalidOption(f"{name} has {schema.names.count(twice)} columns {twice!r}; keep one")
    if column is not None and not kinds.get(column):
        found = (
            "has no images" if column in kinds else f"does not exist{did_you_mean(column, kinds)}"
        )
        raise InvalidOption(f"{name}: the column {column!r} {found}; {_choice(kinds)}")
    images = [one for one, kind in kinds.items() if kind == "bytes"]
    paths = [one for one in USUAL if kinds.get(one) == "path"]
    if column is None and len(images) != 1 and (images or not paths):
        count = "several columns" if images else "no column"
        raise InvalidOption(f"{name} has {count} with images; {_choice(kinds)}")
    return column or [*images, *paths][0]


def _choice(kinds: Mapping[str, str]) -> str:
    possible = [one for one, kind in kinds.items() if kind]
    if not possible:
        return "expected a column with the bytes or the paths of images"
    return f"pass --column (column=) with one of: {listed(possible)}"


def kind_of(of: Any) -> str:
    """Return `bytes` or `path` for a column that can have images."""
    from pyarrow import types

    if types.is_dictionary(of):
        of = of.value_type
    if types.is_struct(of):  # an image of Hugging Face's datasets
        names = {"" if types.is_nested(field.type) else field.name for field in of}
        return "bytes" if names and names <= {"bytes", "path"} else ""
    if any(is_kind(of) for is_kind in (types.is_binary, types.is_large_binary)):
        return "bytes"
    return "path" if types.is_string(of) or types.is_large_string(of) else ""


def _inside(value: Any) -> Any:
    """Return the bytes or the path of an image of Hugging Face's datasets."""
    if isinstance(value, dict):
        found = value.get("bytes")
        return value.get("path") if found is None else found
    return value


def _load_value(value: Any, problem: str, folder: str, where: str) -> bytes:
    if problem:
        raise ImageError(problem)
    if value is None:
        raise ImageError(f"{where} has no image: the cell is null")
    if isinstance(value, str):
        return read_file(os.path.join(folder, value))  # noqa: PTH118  # as `Files`
    if not isinstance(value, bytes):
        raise ImageError(f"{where} has {short_repr(value)}, expected the bytes of an image")
    if not value:
        raise ImageError(f"{where} has no image: the cell is empty")
    check_size(where, len(value))
    return value
