"""The pages of a Parquet file, as its footer and the headers of the pages state them.

pyarrow ends the process when it is asked for a column chunk with wrong size statistics.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from vitzoo.apps.embed.items import open_archive
from vitzoo.errors import ImageError
from vitzoo.files.platform import files as system

USUAL_PAGE_HEADER, MAX_PAGE_HEADER = 2**15, 2**24  # bytes
PADDING = 100  # bytes by which old versions of parquet-mr state too small columns
DICTIONARY = 2  # a type of page
DELTA_BYTE_ARRAY = 7  # an encoding: each value may repeat the one before
MAX_VARINT = 10  # bytes of a number
END = 8  # bytes after the footer: its length, and PAR1
TRUE, FALSE, BYTE, INT16, INT32, INT64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
FIXED = {TRUE: 1, FALSE: 1, BYTE: 1, DOUBLE: 8}  # bytes of elements of a list
Page = tuple[int, int, int]
Fields = dict[tuple[int, int], Any]  # by number and type


def pages_of(
    path: str, version: tuple[int, ...], group: int, columns: Iterable[str]
) -> list[list[Page]]:
    """Return the pages of each chunk of a row group whose column is in one of `columns`.

    A page is its bytes, its stored bytes, and its number of values, 0 for a dictionary.

    Args:
        path: of the file.
        version: changes when the file is replaced.
        group: number of the row group.
        columns: names of columns of the table.

    Raises:
        ImageError: the footer, or the header of a page, is damaged.
    """
    names = tuple(f"{column}." for column in columns)
    try:
        chunks = _row_groups(path, version)[group]
        with open_archive(path) as file:
            return [
                list(_pages(file.fileno(), chunk))
                for chunk in chunks
                if (b".".join(chunk[3, LIST]).decode() + ".").startswith(names)
            ]
    except (IndexError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ImageError("its footer or the header of a page is damaged") from error


@lru_cache(maxsize=1)
def _row_groups(path: str, _: tuple[int, ...]) -> list[list[Fields]]:
    """Return the metadata of the column chunks of each row group."""
    with open_archive(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(system.pread(file.fileno(), 4, size - END), "little")
        footer = system.pread(file.fileno(), length, size - END - length)
    return [
        [chunk[3, STRUCT] for chunk in group[1, LIST]] for group in _struct(footer, 0)[0][4, LIST]
    ]


def _pages(fd: int, chunk: Fields) -> Iterator[Page]:
    """Yield the pages of a column chunk. One whose values repeat each other counts twice."""
    at, dictionary = chunk[9, INT64], chunk.get((11, INT64))
    if dictionary and 0 < dictionary < at:
        at = dictionary
    stop = at + chunk[7, INT64] if chunk[5, INT64] else at  # as pyarrow does
    while at < stop:
        try:
            header, size = _struct(system.pread(fd, USUAL_PAGE_HEADER, at), 0)
        except IndexError:  # it has long statistics
            header, size = _struct(system.pread(fd, MAX_PAGE_HEADER, at), 0)
        at += size + header[3, INT32]
        if at > stop + PADDING:
            raise ImageError("a page ends after its column")
        first, second = (header.get((n, STRUCT), {}) for n in (5, 8))  # data pages 1 and 2
        counts = [page.get((1, INT32), 0) for page in (first, second)]
        values = 0 if header.get((1, INT32)) == DICTIONARY else max(counts)
        times = 1 + (DELTA_BYTE_ARRAY in (first.get((2, INT32)), second.get((4, INT32))))
        stored = header[3, INT32]
        yield times * max(header[2, INT32], stored), times * stored, values


def _struct(data: bytes, at: int) -> tuple[Fields, int]:
    """Return the fields of a struct in Thrift's compact form, and where it ends.

    A field of a wrong type has no effect, as in pyarrow. Truth values are left out.
    """
    found: Fields = {}
    number = 0
    while head := data[at]:
        step, kind, at = head >> 4, head & 15, at + 1
        if step:
            number += step
        else:
            number, at = _varint(data, at)
            number >>= 1
        if kind not in (TRUE, FALSE):
            found[number, kind], at = _value(data, at, kind)
    return found, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    """Return a value, and where it ends. Numbers are not negative."""
    if kind == STRUCT:
        return _struct(data, at)
    if kind in FIXED:
        return None, at + FIXED[kind]
    if kind in (LIST, SET):
        return _list(data, at)
    value, at = _varint(data, at)
    if kind == BINARY:
        return data[at : at + value], at + value
    if kind not in (INT16, INT32, INT64):
        raise ImageError(f"its footer or the header of a page has a field of type {kind}")
    return value >> 1, at


def _list(data: bytes, at: int) -> tuple[list[Any], int]:
    count, kind = data[at] >> 4, data[at] & 15
    at += 1
    if count == 15:
        count, at = _varint(data, at)
    found = []
    for _ in range(count):
        if at >= len(data):
            raise IndexError(at)
        value, at = _value(data, at, kind)
        found.append(value)
    return found, at


def _varint(data: bytes, start: int) -> tuple[int, int]:
    value = 0
    for at in range(start, start + MAX_VARINT):
        value |= (data[at] & 127) << 7 * (at - start)
        if data[at] < 128:
            return value, at + 1
    raise ImageError("its footer or the header of a page has a number of more than 64 bits")
