"""The header of a safetensors file, read and checked before any data is read; torch-free.

A safetensors file is the length of its header (8 bytes, little-endian), the header as JSON, and the
data of the tensors. This module accepts fewer files than the safetensors library: published Vision
Transformers have headers of about 50 KB with a few hundred tensors.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePath

from vitzoo.errors import CheckpointError
from vitzoo.files.platform import files as system
from vitzoo.files.strict_json import strict_json

MAX_HEADER = 8 * 1024 * 1024
MAX_TENSORS = 20_000
MAX_RANK = 8
MAX_NAME = 256
ITEM_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "C64": 8,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip  # one line per dtype would be no clearer
COLUMNS = {"dtype", "shape", "data_offsets"}
POINTER = b"version https://git-lfs"
LOOKS = {
    b"PK\x03\x04": "a zip or torch pickle file",
    b"\x80": "a pickle file",
    b"<": "an HTML page",
    POINTER: "a Git LFS pointer",
    b"\x93NUMPY": "a NumPy file",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "a gzip file",
    b"{": "a JSON text",
}
ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")  # the second begins an empty zip
PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
PICKLE_SHARD = re.compile(r"(.+)-\d+-of-(?!0*1\.)\d+(\.[a-z]+)")
PICKLE_INDEX = re.compile(r"(.+)\.(?:bin|pt|pth|ckpt)\.index\.json")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor in a header.

    Args:
        dtype: name of the type in safetensors, such as `F32`.
        shape: of the tensor.
        start, end: position in the file in bytes; of a compressed tensor, in the inflated bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Header:
    """The tensors of a file by name, and its metadata."""

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]


def read_header(fd: int, source: str) -> Header:
    """Read the header of the open file `fd`.

    Args:
        fd: file descriptor; its position is not used.
        source: name of the file for messages.

    Raises:
        CheckpointError: the file is not safetensors, or its header is inconsistent or exceeds a
            limit; little memory has been used.
    """
    size = os.fstat(fd).st_size
    start = system.pread(fd, 64, 0)
    length = int.from_bytes(start[:8], "little")
    if len(start) < 8 or start[8:9] != b"{" or length > size - 8:
        raise CheckpointError(f"{source} is not safetensors{looks_like(start, source)}")
    if length > MAX_HEADER:
        raise CheckpointError(
            f"{source}: its header has {length} bytes, more than the {MAX_HEADER} accepted"
        )
    try:
        table = strict_json(system.pread(fd, length, 8))
    except ValueError as error:
        raise CheckpointError(f"{source} is not safetensors: its header: {error}") from error
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise CheckpointError(f"{source}: __metadata__ must be a table of strings")
    check_count(len(table), source)
    data_start = 8 + length
    tensors = {name: _info(name, row, data_start, source) for name, row in table.items()}
    _check_coverage(tensors, data_start, size, source)
    return Header(tensors, metadata)


def _info(name: str, row: object, data_start: int, source: str) -> TensorInfo:
    where = place(name, source)
    if not isinstance(row, dict) or row.keys() != COLUMNS:
        raise CheckpointError(f"{where}: expected dtype, shape and data_offsets")
    dtype, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_SIZES:
        raise CheckpointError(f"{where}: unknown dtype {ascii(dtype)[:60]}")
    check_shape(shape, where)
    if not _whole(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{where}: data_offsets must be two whole numbers")
    begin, end = offsets
    size = prod(shape) * ITEM_SIZES[dtype]
    if end - begin != size:
        raise CheckpointError(
            f"{where}: {tuple(shape)} of {dtype} is {size} bytes, data_offsets span {end - begin}"
        )
    return TensorInfo(dtype, tuple(shape), data_start + begin, data_start + end)


def check_count(tensors: int, source: str) -> None:
    """Refuse a file with more tensors than any network has."""
    if tensors > MAX_TENSORS:
        raise CheckpointError(
            f"{source} has {tensors} tensors, more than the {MAX_TENSORS} accepted"
        )


def place(name: str, source: str) -> str:
    """Return file and tensor for messages; refuse an unprintable or long name."""
    where = f"{source}: tensor {name[:MAX_NAME]!a}"
    if not name.isprintable() or len(name) > MAX_NAME:
        raise CheckpointError(f"{where}: a name must have at most {MAX_NAME} printable characters")
    return where


def check_shape(shape: object, where: str) -> None:
    """Refuse a shape that is malformed, or whose product or strides exceed 64 bits."""
    sides = shape if isinstance(shape, list | tuple) else ()
    if not _whole(shape) or len(sides) > MAX_RANK or prod(filter(None, sides)) >= 2**53:
        raise CheckpointError(
            f"{where}: shape must be at most {MAX_RANK} whole numbers with a product below 2**53, "
            f"got {ascii(shape)[:60]}"
        )


def _whole(values: object) -> bool:
    if not isinstance(values, list | tuple):
        return False
    for value in values:  # noqa: SIM110  # a generator takes longer than all other checks of a row
        if type(value) is not int or not 0 <= value < 2**53:
            return False
    return True


def _check_coverage(
    tensors: Mapping[str, TensorInfo], data_start: int, size: int, source: str
) -> None:
    position = data_start
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].end)):
        if info.start != position:
            raise CheckpointError(
                f"{source}: tensor {name!a} starts at byte {info.start}, expected {position}"
            )
        position = info.end
    if position != size:
        raise CheckpointError(
            f"{source} has {size} bytes, its header describes {position}; the file is truncated, "
            "or other bytes were appended"
        )


def is_json(start: bytes) -> bool:
    """Tell whether a file with these first bytes is a JSON table, but not a safetensors file."""
    return start.lstrip(b"\t\n\r ").startswith(b"{") and b"\0" not in start[:8]


def looks_like(start: bytes, source: str) -> str:
    """Return the likely kind of a file with these first bytes, in brackets; empty if unknown."""
    if not start:
        return " (empty file)"
    text = start.lstrip(b"\t\n\r ")
    named = "a pickle file" if source.endswith(PICKLES) else ""
    what = next((what for magic, what in LOOKS.items() if text.startswith(magic)), named)
    fix = f": {no_pickle(source)}" if "pickle" in what else ""
    if text.startswith(POINTER) and os.path.isfile(source):  # noqa: PTH113  # False for an address
        fix = f": {_no_pointer(source)}"
    return f" (looks like {what}{fix})" if what else ""


def _no_pointer(path: str) -> str:
    """Return how to get the weights in place of a pointer that Git LFS has left."""
    folder = shlex.quote(str(Path(path).absolute().parent))
    return (
        f"`git -C {folder} lfs pull` replaces it by the weights; or load the repository from the "
        "Hub, hf://OWNER/NAME"
    )


def whole_pickle(file: str) -> str:
    """Return the index of pickles for one of them, which alone is no network; else the file."""
    folder, slash, name = file.rpartition("/" if "/" in file else os.sep)
    match = PICKLE_SHARD.fullmatch(name)
    whole = match is not None and match[2] in PICKLES
    return f"{folder}{slash}{match[1]}{match[2]}.index.json" if match and whole else file


def no_pickle(source: str) -> str:
    """Return why vitzoo does not load a pickle, and the command that converts one."""
    file = whole_pickle(source.partition(" (a shard of ")[0])
    path = PurePath(file.rpartition("/")[2] if file.startswith("hf://") else file)
    index = PICKLE_INDEX.fullmatch(path.name)
    stem = index[1] if index else path.stem
    stem += "-tensors" if path.suffix == ".safetensors" else ""
    target = str(path.with_name(f"{stem}.safetensors"))
    return (
        "a pickle can run code, so vitzoo never loads one; convert it: `vitzoo convert "
        f"{shlex.quote(file)} {shlex.quote(target)} --from-pickle`"
    )
