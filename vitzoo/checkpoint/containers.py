"""Safetensors, npz and sharded files as open tensors."""

from __future__ import annotations

import hashlib
import mmap
import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError, StoreError
from vitzoo.files.access import open_regular
from vitzoo.files.npz import Member, read_directory
from vitzoo.files.safetensors import Header, TensorInfo, check_count, read_header
from vitzoo.files.shard_index import read_index

DTYPES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip  # one line a dtype says nothing more


class OpenFile:
    """A file descriptor that is closed when the last user is gone.

    Args:
        fd: of a regular file.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = os.fstat(fd).st_size

    def __del__(self) -> None:
        with suppress(OSError):
            os.close(self.fd)


class Container(Protocol):
    """Tensors on disk. Making one reads and checks names, shapes and types, and no data.

    Args:
        file: descriptor of the file that was named.
        header: names, shapes and types.
    """

    file: OpenFile
    header: Header

    def read(self, *, proven: bool) -> tuple[dict[str, Tensor], str]:
        """Return the tensors by the file's own keys, and the sha256 of the bytes they came from.

        Args:
            proven: the file's bytes were hashed and do not change: they may be mapped, and an
                empty sha256 is returned.

        Raises:
            CheckpointError: the data is not what the header promises.
        """
        ...


def open_own(path: Path) -> OpenFile:
    """Open a file of the user's.

    Raises:
        CheckpointError: it is missing, unreadable or no regular file.
    """
    try:
        fd = open_regular(path, follow=True)
    except StoreError as error:
        raise CheckpointError(str(error)) from error
    if fd is None:
        raise CheckpointError(f"cannot read {path}: there is no such file")
    return OpenFile(fd)


def contents(file: OpenFile, *, proven: bool) -> tuple[Any, str]:
    """Return a writable buffer of a whole file and its sha256.

    A proven file is mapped: nothing is read until it is used, processes share the memory, and
    writing changes a private copy. Another is read into memory, as it may be rewritten in place.
    """
    if proven:
        return mmap.mmap(file.fd, 0, access=mmap.ACCESS_COPY), ""
    data = _read(file)
    return data, hashlib.sha256(data).hexdigest()


def view(data: Any, info: TensorInfo) -> Tensor:
    """Return the tensor that lies in a buffer, without copying it."""
    dtype = DTYPES[info.dtype]
    if info.start == info.end:
        return torch.empty(info.shape, dtype=dtype)
    count = (info.end - info.start) // dtype.itemsize
    return torch.frombuffer(data, dtype=dtype, count=count, offset=info.start).reshape(info.shape)


def _read(file: OpenFile) -> bytearray:
    data = bytearray(file.size)
    target, position = memoryview(data), 0
    while position < len(data):
        count = os.preadv(file.fd, [target[position : position + 2**30]], position)
        if not count:
            raise CheckpointError(f"the file was truncated at byte {position} while it was read")
        position += count
    return data


class SafetensorsFile:
    """A container: one safetensors file.

    Args:
        file: open for reading.
        source: its name for messages.
    """

    def __init__(self, file: OpenFile, source: str) -> None:
        self.file = file
        self.header = read_header(file.fd, source)

    def read(self, *, proven: bool) -> tuple[dict[str, Tensor], str]:
        """Return views of the file's one buffer."""
        data, sha256 = contents(self.file, proven=proven)
        return {name: view(data, info) for name, info in self.header.tensors.items()}, sha256


STEP = 16 * 1024  # compressed bytes at a time; a thousand times as many may come out


class NpzFile:
    """A container: one `.npz` file, as Google publishes its weights.

    Args:
        file: open for reading.
        source: its name for messages.
    """

    def __init__(self, file: OpenFile, source: str) -> None:
        self.file, self.source = file, source
        self.members = read_directory(file.fd, source)
        self.header = Header({name: member.info for name, member in self.members.items()}, {})

    def read(self, *, proven: bool) -> tuple[dict[str, Tensor], str]:
        """Return views of the file's one buffer, and inflated copies of compressed members."""
        data, sha256 = contents(self.file, proven=proven)
        return {
            name: self._tensor(name, member, data, proven=proven)
            for name, member in self.members.items()
        }, sha256

    def _tensor(self, name: str, member: Member, data: Any, *, proven: bool) -> Tensor:
        where = f"{self.source}: tensor {name!a}"
        with memoryview(data)[member.start : member.end] as packed:
            own = inflate(packed, member.size, where) if member.deflated else packed
            if not proven and zlib.crc32(own) != member.crc:
                raise CheckpointError(
                    f"{where}: its bytes have another CRC than the zip names; the file is damaged "
                    "or changed while it was read: fetch it again"
                )
        buffer = own if member.deflated else data
        if not member.fortran:
            return view(buffer, member.info)
        backwards = view(buffer, replace(member.info, shape=member.info.shape[::-1]))
        return backwards.permute(*reversed(range(backwards.dim()))).contiguous()


def inflate(packed: memoryview, size: int, where: str) -> bytearray:
    """Return `size` bytes that were deflated to `packed`; never makes more.

    Raises:
        CheckpointError: they are damaged, or more or fewer.
    """
    target, position = bytearray(size), 0
    machine = zlib.decompressobj(-zlib.MAX_WBITS)
    for start in range(0, len(packed), STEP):
        try:
            piece = machine.decompress(packed[start : start + STEP], size - position + 1)
        except zlib.error as error:
            raise CheckpointError(f"{where}: cannot be inflated: {error}") from error
        if len(piece) > size - position:
            raise CheckpointError(f"{where}: inflates to more than the {size} bytes it claims")
        target[position : position + len(piece)] = piece
        position += len(piece)
        if machine.unused_data or (machine.eof and start + STEP < len(packed)):
            raise CheckpointError(f"{where}: something follows its deflated bytes")
    if position != size or not machine.eof:
        raise CheckpointError(f"{where}: inflates to {position} bytes, it claims {size}")
    return target


class Shards:
    """A container: the safetensors files that an index names, all opened at once.

    The tensors are exactly those of the index, each in the file that it says.

    Args:
        file: the index, open for reading.
        path: where it lies; the shards are beside it.
    """

    def __init__(self, file: OpenFile, path: Path) -> None:
        self.file = file
        weight_map = read_index(file.fd, str(path))
        self.parts: dict[str, SafetensorsFile] = {}
        for name in sorted(set(weight_map.values())):
            self.parts[name] = _open(path, name)
            held = sum(len(part.header.tensors) for part in self.parts.values())
            check_count(held, f"{path} with its shards")
        _check_union(weight_map, self.parts, str(path))
        self.header = Header(
            {name: self.parts[shard].header.tensors[name] for name, shard in weight_map.items()}, {}
        )

    def read(self, *, proven: bool) -> tuple[dict[str, Tensor], str]:
        """Return views of one buffer a shard, and one sha256 for all.

        It is the sha256 of what `sha256sum` prints for the shards in the order of their names.
        Nothing proves several files at once, so all are read and hashed.
        """
        tensors: dict[str, Tensor] = {}
        lines = []
        for name, part in self.parts.items():
            held, digest = part.read(proven=False)
            tensors |= held
            lines.append(f"{digest}  {name}\n")
        in_order = {name: tensors[name] for name in self.header.tensors}
        return in_order, sha256("".join(lines).encode()).hexdigest()


def _open(index: Path, name: str) -> SafetensorsFile:
    path = index.with_name(name)
    try:
        file = open_own(path)
    except CheckpointError as error:
        raise CheckpointError(f"{index} names the shard {name}: {error}") from error
    return SafetensorsFile(file, str(path))


def _check_union(
    weight_map: Mapping[str, str], parts: Mapping[str, SafetensorsFile], source: str
) -> None:
    """Refuse an index that disagrees with its shards: tensors missing, twice, or elsewhere."""
    places: dict[str, list[str]] = {name: [] for name in weight_map}
    for shard, part in parts.items():
        for name in part.header.tensors:
            places.setdefault(name, []).append(shard)
    problems = [
        f"{name!a} is in {' and '.join(found[:3]) or 'no shard'}, "
        + (f"the index says {weight_map[name]}" if name in weight_map else "not in the index")
        for name, found in places.items()
        if found != [weight_map.get(name)]
    ]
    if problems:
        more = f"; and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise CheckpointError(
            f"{source} and its shards disagree: tensor {'; tensor '.join(problems[:10])}{more}"
        )
