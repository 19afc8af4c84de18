"""Images in tar archives and in Parquet files: where each one is, and how to read it in order."""

from __future__ import annotations

import itertools
import os
import tarfile
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from vitzoo.errors import (
    ImageError,
    InvalidOption,
    StoreError,
    VitzooError,
    did_you_mean,
    printable,
)
from vitzoo.files.access import open_regular
from vitzoo.images.decode import SUFFIXES
from vitzoo.inference.embedding import sources
from vitzoo.inference.embedding.sources import Item, as_text
from vitzoo.plugin.requirements import check_extra
from vitzoo.text import listed

MAX_HEADER = 2**20  # bytes of one header of a tar member, long names included
BLOCK = 512
BATCH = 16  # rows of a Parquet file that are in memory at once
USUAL = ("image", "img", "bytes", "path", "file_name")  # columns with images, the first one found


@dataclass(frozen=True)
class TarMembers:
    """Images in a tar archive. A member is (name, position of its bytes, number of bytes).

    A member that is no file, such as a link, has a negative position.
    """

    path: str
    members: Sequence[tuple[str, int, int]]

    @classmethod
    def find(cls, path: str) -> TarMembers:
        """Read the headers of an archive.

        Raises:
            ImageError: it is missing, damaged, truncated or contains no images.
        """
        with _open(path) as file:
            members = tuple(_members(file, printable(path)))
        if not members:
            raise ImageError(f"{printable(path)} contains no images ({', '.join(SUFFIXES)})")
        return cls(path, members)

    def __len__(self) -> int:
        return len(self.members)

    def part(self, start: int, stop: int) -> TarMembers:
        """Return the piece of some of the images."""
        return TarMembers(self.path, self.members[start:stop])

    def items(self) -> Iterator[Item]:
        """Yield the images in order."""
        for key, member in zip(self.names(), self.members, strict=True):
            yield Item(key, partial(_read_member, self.path, *member))

    def names(self) -> Iterator[str]:
        """Yield the path of the archive with the name of each member."""
        path = as_text(self.path)
        return (f"{path}/{name}" for name, _, _ in self.members)

    def identities(self) -> Iterator[str]:
        """Yield the name, the position and the size of each member."""
        for key, (_, start, size) in zip(self.names(), self.members, strict=True):
            yield f"{key} {start} {size}"


@dataclass(frozen=True)
class ParquetRows:
    """Rows of a Parquet file whose column has the bytes or the paths of images."""

    path: str
    column: str
    start: int
    stop: int
    state: str  # what the end of the file says about its row groups

    @classmethod
    def find(cls, path: str, column: str | None) -> ParquetRows:
        """Read the columns and the number of rows.

        Raises:
            MissingDependency: pyarrow is not installed.
            ImageError: the file is missing or damaged, or has no rows.
            InvalidOption: the column does not exist, or has another type.
        """
        with _explained(path), _parquet(path) as file:
            schema, stated = file.schema_arrow, file.metadata.num_rows
            sizes, state = _groups(file.metadata)
        rows = sum(sizes)
        if rows != stated or min(sizes, default=0) < 0:
            raise ImageError(
                f"{printable(path)} is damaged: it states {stated} rows, its row groups have {rows}"
            )
        if not rows:
            raise ImageError(f"{printable(path)} has no rows")
        return cls(path, _column_of(schema, column, printable(path)), 0, rows, state)

    def __len__(self) -> int:
        return self.stop - self.start

    def part(self, start: int, stop: int) -> ParquetRows:
        """Return the piece of some of the rows."""
        first = self.start + start
        last = self.start + stop
        return ParquetRows(self.path, self.column, first, last, self.state)

    def items(self) -> Iterator[Item]:
        """Yield the images in order."""
        folder, shown, cursor, why = str(Path(self.path).parent), printable(self.path), None, ""
        try:
            cursor = _cursor(self.path, self.column)
        except ImageError as error:
            why = str(error)
        if cursor is not None and cursor.state != self.state:
            cursor, why = None, f"{shown} has changed since its rows were counted"
        for row, key in enumerate(self.names(), self.start):
            value, problem = (None, why) if cursor is None else cursor.value(row)
            load = partial(_load_value, value, problem, folder, f"row {row} of {shown}")
            yield Item(key, load)

    def names(self) -> Iterator[str]:
        """Yield the path of the file with the number of each row."""
        path = as_text(self.path)
        return (f"{path}/{row}" for row in range(self.start, self.stop))

    def identities(self) -> Iterator[str]:
        """Yield the file with the state of its row groups, once, and the range of rows."""
        yield f"{as_text(self.path)} {self.column} {self.start} {self.stop} {self.state}"


class _HeaderReader:
    """The file of an archive, from which `tarfile` reads headers of limited size, and no data."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self._read = file.seek, file.tell, file.read

    def read(self, size: int) -> bytes:
        if size > MAX_HEADER:
            raise tarfile.ReadError(f"a header of {size} bytes, the most is {MAX_HEADER}")
        return self._read(size)


def _open(path: str) -> BinaryIO:
    try:
        fd = open_regular(Path(path), follow=True)
    except StoreError as error:
        raise ImageError(str(error)) from error
    if fd is None:
        raise ImageError(f"there is no file {printable(path)}")
    return os.fdopen(fd, "rb")


def _members(file: BinaryIO, name: str) -> Iterator[tuple[str, int, int]]:
    reader: Any = _HeaderReader(file)
    try:
        opened: Any = tarfile.TarFile(fileobj=reader, mode="r", encoding="utf-8")
        with opened as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # it would remember every member
                if not member.isdir() and member.name.lower().endswith(SUFFIXES):
                    plain = member.isreg() and not member.issparse()
                    yield member.name, member.offset_data if plain else -1, member.size
            end: int = archive.offset  # position after the last member
    except (tarfile.TarError, OSError, ValueError, RecursionError, OverflowError) as error:
        raise ImageError(
            f"cannot read the archive {name}: {printable(str(error))}; expected an uncompressed tar"
        ) from error
    file.seek(end)
    if file.read(BLOCK) != bytes(BLOCK):
        raise ImageError(
            f"the archive {name} is damaged or truncated at byte {end}: neither a member nor the "
            "end of the archive follows; write it again"
        )


def _read_member(path: str, name: str, start: int, size: int) -> bytes:
    shown = printable(f"{path}/{name}")
    if start < 0:
        raise ImageError(f"{shown} is a link, a device or sparse, expected a file")
    if size > sources.MAX_IMAGE:
        raise ImageError(f"{shown} has {size} bytes, the most that is read is {sources.MAX_IMAGE}")
    try:
        with _open(path) as file:
            data = os.pread(file.fileno(), size, start)
    except OSError as error:
        raise ImageError(f"cannot read {shown}: {error.strerror}") from error
    if len(data) != size:
        raise ImageError(f"{shown} ends after {len(data)} of {size} bytes")
    return data


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
                batch = next(self.batches)
                self.values = batch.column(0)
                self.start, self.stop = self.stop, self.stop + batch.num_rows
            return (None, self.problem) if self.problem else (self._at(row), "")
        except Exception as error:  # noqa: BLE001  # pyarrow raises several kinds for damaged data
            reason = printable(" ".join(str(error).split())) or "it ends too early"
            path = printable(self.path)
            self.problem = f"cannot read row group {group} of {path}: {reason}"
            return None, self.problem

    def _open(self, group: int) -> None:
        self.group, self.problem = group, ""
        self.start = self.stop = self.ends[group - 1] if group else 0
        self.batches = self.file.iter_batches(BATCH, row_groups=[group], columns=[self.column])

    def _at(self, row: int) -> Any:
        return self.values[row - self.start].as_py()


_open_in = (
    threading.local()
)  # the cursor of each thread, which the next part of the file goes on with


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
    from pyarrow import parquet

    _open(path).close()  # a missing file or a pipe has a clear message
    return parquet.ParquetFile(path)


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
        names = {field.name for field in of}
        return "bytes" if names and names <= {"bytes", "path"} else ""
    if any(is_kind(of) for is_kind in (types.is_binary, types.is_large_binary)):
        return "bytes"
    return "path" if types.is_string(of) or types.is_large_string(of) else ""


def _load_value(value: Any, problem: str, folder: str, where: str) -> bytes:
    if problem:
        raise ImageError(problem)
    if isinstance(value, dict):
        found = value.get("bytes")
        value = value.get("path") if found is None else found
    if value is None:
        raise ImageError(f"{where} has no image: the cell is null")
    if isinstance(value, str):
        return sources.read_file(os.path.join(folder, value))  # noqa: PTH118  # as `Files`
    if not value:
        raise ImageError(f"{where} has no image: the cell is empty")
    if len(value) > sources.MAX_IMAGE:
        raise ImageError(
            f"{where} has {len(value)} bytes, the most that is read is {sources.MAX_IMAGE}"
        )
    return bytes(value)
