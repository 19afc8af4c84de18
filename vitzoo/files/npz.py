"""The directory of NumPy's `.npz` files, read and checked before any data is read; torch-free.

An npz file is a zip of members `<tensor>.npy`, stored or deflated. Each member is a short header (a
Python literal) and the bytes of the tensor. This module accepts the files that `numpy.savez` and
`savez_compressed` write for plain arrays: members of exact sizes, without gap or overlap.
Source: PKWARE's APPNOTE 6.3.10, sections 4.3 and 4.4; `numpy.lib.format`.
"""

from __future__ import annotations

import ast
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from vitzoo.errors import CheckpointError
from vitzoo.files.platform import files as system
from vitzoo.files.safetensors import (
    ITEM_SIZES,
    ZIP_MAGIC,
    TensorInfo,
    check_count,
    check_shape,
    no_pickle,
    place,
)
from vitzoo.text import escaped

MAX_DIRECTORY = 2 * 1024 * 1024
MAX_NPY_HEADER = 1024
MAX_INFLATION = 8  # times the size of the file; compression hardly reduces trained weights
SMALL = 16 * 1024 * 1024  # bytes that a file of any size may inflate to
LOCAL_HEADER = struct.Struct("<4sHHH16xHH")
END = 22  # bytes of the record that ends a zip without comment
DESCRIPTOR = 24  # most bytes after a member with the flag STREAMED
ENCRYPTED, STREAMED, UTF8 = 0x1, 0x8, 0x800
FLAGS = STREAMED | UTF8 | 0x6  # 0x6: compression level
MAGIC = b"\x93NUMPY"
LENGTHS = {(1, 0): 2, (2, 0): 4, (3, 0): 4}  # bytes of the header's length field, by version
DTYPES = {
    "<f4": "F32", "<f2": "F16", "<f8": "F64", "<c8": "C64", "|b1": "BOOL",
    "<i8": "I64", "<i4": "I32", "<i2": "I16", "|i1": "I8",
    "<u8": "U64", "<u4": "U32", "<u2": "U16", "|u1": "U8",
    "|V2": "BF16", "<V2": "BF16",  # NumPy lacks bfloat16; JAX writes it as two raw bytes
}  # fmt: skip  # one line per dtype would be no clearer


@dataclass(frozen=True)
class Member:
    """One tensor of the file.

    Args:
        info: type, shape and position.
        start, end: position of the member in the file, in bytes.
        size: bytes of the inflated member.
        crc: CRC-32 of the inflated member, from the zip directory.
        deflated: whether the member is compressed.
        fortran: whether the array is in column-major order.
    """

    info: TensorInfo
    start: int
    end: int
    size: int
    crc: int
    deflated: bool
    fortran: bool


def read_directory(fd: int, source: str) -> dict[str, Member]:
    """Read the zip directory and the members' headers of the open file `fd`.

    Args:
        fd: file descriptor; its position is not used.
        source: name of the file for messages.

    Raises:
        CheckpointError: it is no npz file, contradicts itself or exceeds a limit; little memory has
            been used.
    """
    entries, data_end = _entries(fd, source)
    for name in (entry.orig_filename for entry in entries):
        if name.endswith("data.pkl") or (name.startswith("archive/") and name[-4:] != ".npy"):
            raise CheckpointError(
                f"{source} is neither safetensors nor .npz (looks like a zip or torch pickle file: "
                f"{no_pickle(source)})"
            )
    check_count(len(entries), source)
    size = os.fstat(fd).st_size
    inflated = sum(entry.file_size for entry in entries if entry.compress_type)
    if inflated > MAX_INFLATION * size + SMALL:
        raise CheckpointError(
            f"{source} has {size} bytes and would inflate to {inflated}, more than "
            f"{MAX_INFLATION} times its size"
        )
    members: dict[str, Member] = {}
    for name, where, entry, start in _places(fd, entries, data_end, source):
        if name in members:
            raise CheckpointError(f"{where}: the zip has two members of this name")
        members[name] = _member(fd, entry, start, where)
    return members


class _Window(io.FileIO):
    """A file for `zipfile`, with reads of bounded size."""

    def read(self, count: int | None = -1, /) -> bytes:
        rest = os.fstat(self.fileno()).st_size - self.tell()
        size = rest if count is None or count < 0 else min(rest, count)
        if size > MAX_DIRECTORY:
            raise zipfile.BadZipFile(f"it is longer than {MAX_DIRECTORY} bytes")
        return super().read(size)


def _entries(fd: int, source: str) -> tuple[list[zipfile.ZipInfo], int]:
    """Return the entries of the zip in the order of their data, and the end of the data."""
    size = os.fstat(fd).st_size
    end = system.pread(fd, END, max(size - END, 0))
    if not (end.startswith(b"PK\x05\x06") and end.endswith(b"\0\0")):
        raise CheckpointError(
            f"{source} is truncated (looks like a zip, .npz or torch pickle file without its end), "
            "or other bytes were appended"
        )
    try:
        with zipfile.ZipFile(_Window(fd, closefd=False)) as archive:
            entries, data_end = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError, struct.error) as error:
        raise CheckpointError(f"{source} is no .npz file: its zip directory: {error}") from error
    return sorted(entries, key=lambda entry: entry.header_offset), data_end


def _places(
    fd: int, entries: list[zipfile.ZipInfo], data_end: int, source: str
) -> Iterator[tuple[str, str, zipfile.ZipInfo, int]]:
    """Yield tensor name, its name in messages, entry and first byte; refuse gaps and overlaps."""
    position, slack = 0, 0
    for entry in entries:
        name = _tensor_name(entry.orig_filename, source)
        where = place(name, source)
        if not 0 <= entry.header_offset - position <= slack:
            raise CheckpointError(
                f"{where}: starts at byte {entry.header_offset}, expected {position}; members of "
                "the zip may not overlap or leave gaps"
            )
        start = _data_start(fd, entry, where)
        position = start + entry.compress_size
        slack = DESCRIPTOR if entry.flag_bits & STREAMED else 0
        if position > data_end:
            raise CheckpointError(
                f"{where}: ends at byte {position}, but the directory starts at {data_end}"
            )
        yield name, where, entry, start
    if data_end - position > slack:
        raise CheckpointError(
            f"{source}: its members end at byte {position}, its directory starts at {data_end}"
        )


def _tensor_name(file: str, source: str) -> str:
    parts = file.removesuffix(".npy").split("/")
    if not file.endswith(".npy") or any(part in ("", ".", "..") for part in parts) or "\\" in file:
        raise CheckpointError(
            f"{source} is no .npz file: expected members with names such as head/bias.npy, got "
            f"{file[:256]!a}"
        )
    return file.removesuffix(".npy")


def _data_start(fd: int, entry: zipfile.ZipInfo, where: str) -> int:
    """Compare an entry with the header before its data; return the first byte of the data."""
    if entry.flag_bits & ENCRYPTED:
        raise CheckpointError(f"{where}: is encrypted")
    stored, known = entry.compress_type == zipfile.ZIP_STORED, entry.flag_bits & ~FLAGS == 0
    if not known or not (stored or entry.compress_type == zipfile.ZIP_DEFLATED):
        raise CheckpointError(
            f"{where}: is compressed with method {entry.compress_type}, flags "
            f"{entry.flag_bits:#x}; expected stored or deflated, as numpy.savez and "
            "savez_compressed write"
        )
    if stored and entry.compress_size != entry.file_size:
        raise CheckpointError(
            f"{where}: is stored in {entry.compress_size} bytes, the zip says {entry.file_size}"
        )
    data = system.pread(fd, LOCAL_HEADER.size, entry.header_offset)
    if len(data) == LOCAL_HEADER.size:
        magic, _, flags, method, name_length, extra = LOCAL_HEADER.unpack(data)
        start = entry.header_offset + LOCAL_HEADER.size
        name = system.pread(fd, name_length, start)
        own = entry.orig_filename.encode("utf-8" if entry.flag_bits & UTF8 else "cp437")
        expected = (ZIP_MAGIC[0], entry.flag_bits, entry.compress_type, own)
        if (magic, flags, method, name) == expected:
            return start + name_length + extra
    raise CheckpointError(
        f"{where}: directory and header of the zip disagree at byte {entry.header_offset}"
    )


def _member(fd: int, entry: zipfile.ZipInfo, start: int, where: str) -> Member:
    deflated = entry.compress_type == zipfile.ZIP_DEFLATED
    wanted = len(MAGIC) + 2 + 4 + MAX_NPY_HEADER
    begin = system.pread(fd, min(4 * wanted if deflated else wanted, entry.compress_size), start)
    if deflated:
        try:
            begin = zlib.decompressobj(-zlib.MAX_WBITS).decompress(begin, wanted)
        except zlib.error as error:
            raise CheckpointError(f"{where}: cannot be inflated: {error}") from error
    dtype, shape, fortran, length = _npy_header(begin, where)
    expected = length + prod(shape) * ITEM_SIZES[dtype]
    if entry.file_size != expected:
        raise CheckpointError(
            f"{where}: {shape} of {dtype} is {expected} bytes with its header, the zip says "
            f"{entry.file_size}"
        )
    first = length + (0 if deflated else start)
    info = TensorInfo(dtype, shape, first, first + entry.file_size - length)
    end = start + entry.compress_size
    return Member(info, start, end, entry.file_size, entry.CRC, deflated, fortran)


def _npy_header(begin: bytes, where: str) -> tuple[str, tuple[int, ...], bool, int]:
    """Return type, shape, whether the order is column-major, and the bytes of the header."""
    width = LENGTHS.get((begin[6], begin[7])) if begin[:6] == MAGIC and len(begin) > 7 else None
    if width is None:
        raise CheckpointError(f"{where}: is no .npy array of a known version (1, 2 or 3)")
    length = int.from_bytes(begin[8 : 8 + width], "little")
    text = begin[8 + width : 8 + width + length]
    if length > MAX_NPY_HEADER or len(text) < length:
        raise CheckpointError(
            f"{where}: its header has {length} bytes, of which {len(text)} are in the file; at "
            f"most {MAX_NPY_HEADER} are accepted"
        )
    try:
        table = ast.literal_eval(text.decode().strip())  # literals only; runs no code
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        reason = escaped(str(error))[:80]
        raise CheckpointError(f"{where}: its header is no table of literals: {reason}") from error
    if not isinstance(table, dict) or set(table) != {"descr", "fortran_order", "shape"}:
        raise CheckpointError(f"{where}: its header must name descr, fortran_order and shape")
    shape, fortran = table["shape"], table["fortran_order"]
    if not isinstance(shape, tuple) or not isinstance(fortran, bool):
        raise CheckpointError(f"{where}: shape must be a tuple, and fortran_order True or False")
    check_shape(shape, where)
    return _dtype(table["descr"], where), shape, fortran, 8 + width + length


def _dtype(descr: object, where: str) -> str:
    if isinstance(descr, str) and descr in DTYPES:
        return DTYPES[descr]
    if isinstance(descr, str) and descr.lstrip("|<>=") == "O":
        raise CheckpointError(
            f"{where}: is an array of Python objects, which is stored as a pickle; a pickle can "
            "run code, so vitzoo never loads one; expected an array of numbers: write the file "
            "again with arrays of numbers"
        )
    raise CheckpointError(
        f"{where}: dtype {ascii(descr)[:60]} is not supported; save little-endian numbers, such "
        "as '<f4'"
    )
