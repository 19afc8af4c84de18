"""Images in the rows of Parquet files, read in order with limited memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from vitzoo.apps.embed import items
from vitzoo.apps.embed.items import Item, Piece, as_text, read_file
from vitzoo.apps.embed.parquet_helper import Column, Large, Odd, Unreadable
from vitzoo.apps.embed.parquet_reader import COSTLY, ParquetFile, parquet_file
from vitzoo.errors import ImageError, InvalidOption, did_you_mean, printable
from vitzoo.text import listed

BATCH = 16  # rows of a Parquet file that are in memory at once
MAX_ROWS = 2**30  # of a Parquet file, whose footer may state any number
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
        file = parquet_file(path)
        if not 0 < (count := file.outline.rows) <= MAX_ROWS:
            most = f"{count} rows, the most is {MAX_ROWS}; write several files"
            raise ImageError(f"{printable(path)} has {most if count else 'no rows'}")
        found = _column_of(file.columns, column, printable(path))
        return cls(path, range(count), found, _state(file))

    def items(self) -> Iterator[Item]:
        """Yield the images in order."""
        folder, shown = str(Path(self.path).parent), printable(self.path)
        values = self._values()
        for row, key in zip(self.entries, self.names(), strict=True):
            value = next(values)
            load = partial(_load_value, value, folder, f"row {row} of {shown}")
            yield Item(key, load, len(value) if isinstance(value, bytes) else 0)
            del value, load  # while the next cell is read

    def _values(self) -> Iterator[Any]:
        """Yield what the helper process says about each row."""
        why = ""
        try:
            file = parquet_file(self.path)
            if _state(file) != self.state:
                why = f"{printable(self.path)} has changed since its rows were counted"
        except ImageError as error:
            why = str(error)
        if why:
            yield from (ImageError(why) for _ in self.entries)
        else:
            yield from _cells(file, self.column, self.entries)

    def names(self) -> Iterator[str]:
        """Yield the path of the file with the number of each row."""
        path = as_text(self.path)
        return (f"{path}/{row}" for row in self.entries)

    def identities(self) -> Iterator[str]:
        """Yield the file with the state of its row groups, once, and the range of rows."""
        rows = f"{self.entries.start} {self.entries.stop}"
        yield f"{as_text(self.path)} {self.column} {rows} {self.state}"


def _cells(file: ParquetFile, column: str, rows: range) -> Iterator[Any]:
    """Yield cells of a column, or the ImageError of each that cannot be read."""
    row, shown = rows.start, printable(file.path)
    while row < rows.stop:
        group = file.group_of(row)
        stop = min(file.ends[group], rows.stop)
        file.check([column], group, BATCH, items.MAX_IMAGE)
        for answer in file.rows("cells", [column], range(row, stop), BATCH, items.MAX_IMAGE):
            if isinstance(answer, Unreadable):
                problem = _problem(answer, group, shown)
                yield from (ImageError(problem) for _ in range(row, stop))
                break
            row += answer.number
            values = answer.values[::-1]
            answer.values.clear()
            while values:  # a large one is in memory once
                yield _or_error(values.pop(), f"a cell of row group {group} of {shown}")
        row = stop


def _or_error(value: Any, where: str) -> Any:
    if isinstance(value, Unreadable):
        return ImageError(f"{where} cannot be read: {printable(value.reason)}")
    return value


def _problem(answer: Unreadable, group: int, shown: str) -> str:
    """Return the error of all rows of a row group that are left."""
    fix = "; write smaller row groups, pages or images" if answer.reason == COSTLY else ""
    return f"cannot read row group {group} of {shown}: {printable(answer.reason)}{fix}"


def read_batches(
    path: str, columns: Sequence[str], rows: int, at_once: int, most: int
) -> Iterator[dict[str, list[Any]]]:
    """Yield the values of columns by their names, of the first rows of a file.

    Args:
        path: of the file.
        columns: names of columns, or of fields of structs.
        rows: their number.
        at_once: number of rows in memory.
        most: characters of a cell.

    Raises:
        ImageError: the file is damaged, or needs too much memory.
        InvalidOption: a cell is longer.
    """
    for answer in read_rows(parquet_file(path), "texts", columns, rows, at_once, most):
        if isinstance(answer, Large):
            raise InvalidOption(
                f"{printable(path)}: a cell of the column {answer.column!r} has {answer.size} "
                f"characters, the most is {most}; name another column"
            )
        yield answer.values


def read_rows(
    file: ParquetFile, name: str, columns: Sequence[str], rows: int, at_once: int, option: int
) -> Iterator[Any]:
    """Yield the answers of a function of the helper process for the first rows of a file.

    Raises:
        ImageError: some rows cannot be read.
    """
    for answer in file.rows(name, columns, range(rows), at_once, option):
        if isinstance(answer, Unreadable):
            raise file.unreadable(printable(answer.reason))
        yield answer


def read_cell(path: str, column: str, row: int) -> bytes:
    """Return the bytes of the image in a row; raise ImageError if that is not possible."""
    (value,) = _cells(parquet_file(path), column, range(row, row + 1))
    return _load_value(value, str(Path(path).parent), f"row {row + 1} of {printable(path)}")


def _state(file: ParquetFile) -> str:
    """Return a text that changes with the row groups of a file."""
    return " ".join(f"{rows}:{size}" for rows, size in file.outline.groups)


def _column_of(columns: Sequence[Column], column: str | None, name: str) -> str:
    """Return the column with the images: the one asked for, or the only one possible."""
    kinds = {one.name: one.kind for one in columns}
    counts = Counter(one.name for one in columns)
    if twice := next((one for one, count in counts.items() if kinds[one] and count > 1), ""):
        raise InvalidOption(f"{name} has {counts[twice]} columns {twice!r}; keep one")
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


def _load_value(value: Any, folder: str, where: str) -> bytes:
    if isinstance(value, ImageError):
        raise value
    if value is None:
        raise ImageError(f"{where} has no image: the cell is null")
    if isinstance(value, str):
        return read_file(os.path.join(folder, value))  # noqa: PTH118  # as `Files`
    if isinstance(value, Large):
        items.check_size(where, value.size)
    if isinstance(value, Odd):
        raise ImageError(f"{where} has {value.shown}, expected the bytes of an image")
    if not value:
        raise ImageError(f"{where} has no image: the cell is empty")
    found: bytes = value
    return found
