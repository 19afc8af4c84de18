"""Tensors on disk: their bytes, read or mapped, hashed and searched for NaN; safetensors files."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vitzoo import settings
from vitzoo.errors import CheckpointError
from vitzoo.files.access import open_regular
from vitzoo.files.platform import files as system
from vitzoo.files.platform.files import State
from vitzoo.files.safetensors import Header, TensorInfo, read_header
from vitzoo.log import log
from vitzoo.progress import bar
from vitzoo.store.stamp import Stamp, Stamps

DTYPES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}
NOT_MAPPED = {errno.ENODEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EACCES}
Piece = tuple[int, int, str]  # start, end, and type of numbers; empty for other bytes
CHUNK = 4 * 1024 * 1024  # stays in the cache between reading, hashing and the search
BITS = {  # integers of the same width, and the bits of infinity or, where there is none, of NaN
    "F64": ("i8", 0x7FF0_0000_0000_0000), "F32": ("i4", 0x7F80_0000), "F16": ("i2", 0x7C00),
    "BF16": ("i2", 0x7F80), "F8_E5M2": ("i1", 0x7C), "F8_E4M3": ("i1", 0x7F),
}  # fmt: skip


class OpenFile:
    """A file descriptor of a regular file; it is closed with the last reference.

    Args:
        fd: the descriptor.
        own: the path of a file of the user's own, which may change; empty for a registered file.
    """

    def __init__(self, fd: int, own: str = "") -> None:
        self.fd, self.own = fd, own
        self.opened = os.fstat(fd)
        self.size = self.opened.st_size

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.fd)

    def state(self) -> State:
        """Return what changes when the file is written to."""
        return system.state(self.fd)

    def check(self) -> None:
        """Raise CheckpointError if a file of the user's own was written to since it was opened."""
        now = os.fstat(self.fd)
        same = now.st_size == self.size
        if self.own and not (same and now.st_mtime_ns == self.opened.st_mtime_ns):
            how = "its time did" if same else f"from {self.size} to {now.st_size} bytes"
            raise CheckpointError(
                f"{self.own} changed while it was read ({how}); load it again when the program "
                "that writes it has finished"
            )


@dataclass(frozen=True)
class Reading:
    """How a file is read.

    Args:
        mapped: map the file: processes share the memory, and writing changes a private copy. A
            change of the file may change what is mapped. By default it is read into memory.
        verified: its bytes were hashed and cannot change; they are not hashed again.
        stamps: a file of the user's own that has not changed since it was hashed is not hashed
            again.
        keys: only tensors with these keys are read into memory; None: all.
    """

    mapped: bool = False
    verified: bool = False
    stamps: bool = False
    keys: frozenset[str] | None = None


VERIFIED = Reading(mapped=True, verified=True)


@dataclass(frozen=True)
class Contents:
    """The bytes of a file, in a writable buffer.

    Args:
        data: the buffer.
        start: position in the file of its first byte.
        sha256: of the bytes, empty if they were verified before.
        finite: whether the floating-point numbers are known to be finite.
        stamped: whether `sha256` and `finite` are from a stamp.
        new_stamp: the stamp to write when the bytes have been checked.
    """

    data: Any
    start: int = 0
    sha256: str = ""
    finite: bool = False
    stamped: bool = False
    new_stamp: Stamp | None = None

    def keep(self, *, finite: bool) -> None:
        """Write the stamp of the file, if it may have one."""
        if self.new_stamp:
            Stamps(settings.home()).write(replace(self.new_stamp, finite=finite), own=True)


def open_own(path: Path) -> OpenFile:
    """Open an unregistered file; raise CheckpointError if it is missing or no regular file."""
    fd = open_regular(path, follow=True, kind=CheckpointError)
    if fd is None:
        raise CheckpointError(f"cannot read {path}: there is no such file")
    file = OpenFile(fd, str(path))
    try:
        system.pread(fd, 1, 0)
    except OSError as error:  # a damaged disk, or /proc/self/mem
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    return file


def contents(file: OpenFile, reading: Reading, numbers: Iterable[TensorInfo]) -> Contents:
    """Return the bytes of a whole file, or those of some tensors.

    Args:
        file: the open file.
        reading: how to read it.
        numbers: the tensors whose numbers are searched for NaN and infinity.

    Raises:
        CheckpointError: the file changed since it was opened, or is larger than the memory.
    """
    state, now = file.state(), time.time_ns()
    pieces = [*_pieces(numbers, file.size)]
    data = _mapped(file) if reading.mapped else None
    reading = replace(reading, mapped=data is not None)
    kept = [piece for piece in pieces if piece[2] or reading.mapped or reading.keys is None]
    start, end = (kept[0][0], kept[-1][1]) if kept and not reading.mapped else (0, 1)
    if data is None:
        data = _memory(end - start)
    if reading.verified:
        if not reading.mapped:
            _fill_kept(file, memoryview(data), kept)
        return Contents(data, start)
    stamped = bool(file.own) and reading.stamps
    stamp = Stamps(settings.home()).find(state) if stamped else None
    if stamp:
        if not reading.mapped:
            _fill_kept(file, memoryview(data), kept)
        file.check()
        if stamp.fits(file.state()):
            return Contents(data, start, stamp.sha256, stamp.finite, stamped=True)
    sha256, finite = _read(file, data, pieces, kept, fill=not reading.mapped)
    file.check()
    new = Stamp.of(state, sha256, now)
    keep = stamped and new.fits(file.state())
    return Contents(data, start, sha256, finite, new_stamp=new if keep else None)


def _mapped(file: OpenFile) -> Any:
    """Map a file; return None where the disk has no such mappings: the file is read instead."""
    try:
        data = system.mapped(file.fd)
    except OSError as error:
        if error.errno not in NOT_MAPPED:
            raise
        log.info("%s is read into memory: its disk maps no files", file.own or "a weights file")
        return None
    if len(data) != file.size:
        file.check()
    return data


def _memory(size: int) -> Any:
    """Return a buffer of zeros, whose pages the kernel makes when they are first written."""
    memory = system.physical_memory()
    if size > memory:
        raise CheckpointError(
            f"the file has {size} bytes, and this machine only {memory} bytes of memory; use "
            "a machine with more"
        )
    return system.memory(size)


def _fill_kept(file: OpenFile, view: memoryview, kept: Sequence[Piece]) -> None:
    """Read pieces in two threads: most of the time is that of making the buffer's pages."""
    with ThreadPoolExecutor(2) as pool:
        parts = ((view[start - kept[0][0] : end - kept[0][0]], start) for start, end, _ in kept)
        for done in [pool.submit(_fill, file, part, start) for part, start in parts]:
            done.result()


def _fill(file: OpenFile, target: memoryview, position: int) -> None:
    """Read bytes at a position until a part of the buffer is full."""
    while target:
        count = system.preadv(file.fd, [target], position)
        if not count:
            raise CheckpointError(f"the file was truncated at byte {position} while it was read")
        target, position = target[count:], position + count


def _read(
    file: OpenFile, data: Any, pieces: Sequence[Piece], kept: Sequence[Piece], *, fill: bool
) -> tuple[str, bool]:
    """Read a file in pieces; return its sha256, and whether its numbers are finite.

    One thread reads a piece and searches it while another one hashes the pieces before it. Of the
    pieces that are not kept, at most two are in memory.
    """
    digest, finite, view = hashlib.sha256(), True, memoryview(data)
    starts, first = {start for start, _, _ in kept}, kept[0][0] if kept else 0
    passing = Future[None]()
    passing.set_result(None)
    name = Path(file.own).name or "weights"
    with bar(name, in_bytes=True) as note, ThreadPoolExecutor(1) as hashing:
        for start, end, dtype in pieces:
            keep = start in starts
            piece = (
                view[start - first : end - first] if keep else memoryview(bytearray(end - start))
            )
            if fill:
                _fill(file, piece, start)
            hashed = hashing.submit(digest.update, piece)
            if not keep:
                passing.result()
                passing = hashed
            finite = finite and is_finite(piece, dtype)
            note(end, file.size)
    return digest.hexdigest(), finite


def _pieces(numbers: Iterable[TensorInfo], size: int) -> Iterator[Piece]:
    """Yield start, end and number type of all pieces of a file; no number is in two pieces."""
    spans = [(0, 0, "")]
    for info in sorted(numbers, key=lambda info: info.start):
        start, end, dtype = spans[-1]
        if (info.start, info.dtype) == (end, dtype):
            spans[-1] = (start, info.end, dtype)
        else:
            spans += [(end, info.start, ""), (info.start, info.end, info.dtype)]
    for start, end, dtype in (*spans, (spans[-1][1], size, "")):
        for position in range(start, end, CHUNK):
            yield position, min(end, position + CHUNK), dtype


def is_finite(data: memoryview, dtype: str) -> bool:
    """Tell whether no number of a buffer is NaN or infinite; True for integers.

    As integers, the bits of the numbers of one sign are in the order of their magnitude, and those
    of infinity and NaN are the greatest. The search takes no memory, and nothing can overflow.
    """
    if dtype not in BITS or not data:
        return True
    kind, infinity = BITS[dtype]
    signed = np.frombuffer(data, f"<{kind}")
    unsigned = signed.view(f"<u{signed.itemsize}")
    sign = 1 << (8 * signed.itemsize - 1)
    return int(signed.max()) < infinity and int(unsigned.max()) < infinity + sign


class Tensors(NamedTuple):
    """The tensors of a file.

    Args:
        tensors: by the keys of the file.
        sha256: of the file, empty if its bytes were verified before.
        finite: whether all its floating-point numbers are known to be finite.
        stamped: whether `sha256` and `finite` are from the stamp of an unchanged file.
    """

    tensors: dict[str, Tensor]
    sha256: str
    finite: bool = False
    stamped: bool = False


class Container(Protocol):
    """Tensors on disk: the open file, and a checked header of names, shapes and types."""

    file: OpenFile
    header: Header

    def read(self, reading: Reading) -> Tensors:
        """Return the tensors.

        Raises:
            CheckpointError: the data does not match the header, or changed since it was opened.
        """
        ...


def views(data: Any, infos: Mapping[str, TensorInfo], start: int = 0) -> dict[str, Tensor]:
    """Return the tensors in a buffer without a copy; `start` is the position of its first byte."""
    found: dict[str, Tensor] = {}
    for name, info in infos.items():
        dtype = DTYPES[info.dtype]
        count = (info.end - info.start) // dtype.itemsize
        if count:
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=info.start - start)
            found[name] = flat.reshape(info.shape)
        else:
            found[name] = torch.empty(info.shape, dtype=dtype)
    return found


class SafetensorsFile:
    """One safetensors file; `source` is its name for messages."""

    def __init__(self, file: OpenFile, source: str) -> None:
        self.file = file
        self.header = read_header(file.fd, source)

    def read(self, reading: Reading) -> Tensors:
        """Return views of one buffer."""
        every = self.header.tensors
        keys = every.keys() if reading.keys is None else reading.keys
        infos = {name: info for name, info in every.items() if name in keys}
        found = contents(self.file, reading, infos.values())
        found.keep(finite=found.finite and len(infos) == len(every))
        return Tensors(
            views(found.data, infos, found.start), found.sha256, found.finite, found.stamped
        )
