"""Readers of safetensors, npz and sharded files."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from vitzoo.checkpoint.contents import OpenFile, Reading, contents, is_finite, open_own
from vitzoo.errors import CheckpointError
from vitzoo.files.npz import Member, read_directory
from vitzoo.files.safetensors import Header, TensorInfo, check_count, read_header
from vitzoo.files.shard_index import read_index

DTYPES = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


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


def view(data: Any, info: TensorInfo) -> Tensor:
    """Return a tensor in a buffer, without a copy."""
    dtype = DTYPES[info.dtype]
    if info.start == info.end:
        return torch.empty(info.shape, dtype=dtype)
    count = (info.end - info.start) // dtype.itemsize
    return torch.frombuffer(data, dtype=dtype, count=count, offset=info.start).reshape(info.shape)


class SafetensorsFile:
    """One safetensors file; `source` is its name for messages."""

    def __init__(self, file: OpenFile, source: str) -> None:
        self.file = file
        self.header = read_header(file.fd, source)

    def read(self, reading: Reading) -> Tensors:
        """Return views of one buffer."""
        infos = self.header.tensors
        found = contents(self.file, reading, infos.values())
        found.keep(finite=found.finite)
        tensors = {name: view(found.data, info) for name, info in infos.items()}
        return Tensors(tensors, found.sha256, found.finite, found.stamped)


STEP = 16 * 1024  # compressed bytes at a time; they may inflate a thousandfold


class NpzFile:
    """One `.npz` file, as Google publishes its weights; `source` is its name for messages."""

    def __init__(self, file: OpenFile, source: str) -> None:
        self.file, self.source = file, source
        self.members = read_directory(file.fd, source)
        self.header = Header({name: member.info for name, member in self.members.items()}, {})

    def read(self, reading: Reading) -> Tensors:
        """Return views of one buffer, and inflated copies of compressed members."""
        stored = [member.info for member in self.members.values() if not member.deflated]
        if reading.mapped and not stored and not reading.verified:
            raise CheckpointError(
                f"{self.source}: all its tensors are compressed, so mmap=True cannot map them; "
                "leave mmap out, or write the file as safetensors with vitzoo convert"
            )
        found = contents(self.file, reading, stored)
        finite, checked = found.finite, reading.verified or found.stamped
        tensors = {}
        for name, member in self.members.items():
            buffer = self._buffer(name, member, found.data, checked=checked)
            tensors[name] = _array(buffer, member)
            if member.deflated and not checked:
                numbers = memoryview(buffer)[member.info.start : member.info.end]
                finite = finite and is_finite(numbers, member.info.dtype)
        found.keep(finite=finite)
        return Tensors(tensors, found.sha256, finite, found.stamped)

    def _buffer(self, name: str, member: Member, data: Any, *, checked: bool) -> Any:
        """Return the buffer with a member, inflated if necessary; check its CRC."""
        where = f"{self.source}: tensor {name!a}"
        with memoryview(data)[member.start : member.end] as packed:
            own = inflate(packed, member.size, where) if member.deflated else packed
            if not checked and zlib.crc32(own) != member.crc:
                raise CheckpointError(
                    f"{where}: its bytes have another CRC than the zip directory states; the file "
                    "is damaged or changed while it was read: fetch it again"
                )
        return own if member.deflated else data


def _array(buffer: Any, member: Member) -> Tensor:
    if not member.fortran:
        return view(buffer, member.info)
    backwards = view(buffer, replace(member.info, shape=member.info.shape[::-1]))
    return backwards.permute(*reversed(range(backwards.dim()))).contiguous()


def inflate(packed: memoryview, size: int, where: str) -> bytearray:
    """Inflate `packed` to exactly `size` bytes, or raise CheckpointError; never allocate more."""
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
            raise CheckpointError(f"{where}: its deflated bytes are followed by other bytes")
    if position != size or not machine.eof:
        raise CheckpointError(f"{where}: inflates to {position} bytes, it claims {size}")
    return target


class Shards:
    """The safetensors files that an index names, all open at once.

    Args:
        file: the index, open for reading.
        path: of the index; the shards are beside it.
    """

    def __init__(self, file: OpenFile, path: Path) -> None:
        self.file = file
        weight_map = read_index(file.fd, str(path))
        self.parts: dict[str, SafetensorsFile] = {}
        for name in sorted(set(weight_map.values())):
            self.parts[name] = _open(path, name)
            count = sum(len(part.header.tensors) for part in self.parts.values())
            check_count(count, f"{path} with its shards")
        _check_union(weight_map, self.parts, str(path))
        self.header = Header(
            {name: self.parts[shard].header.tensors[name] for name, shard in weight_map.items()}, {}
        )

    def read(self, reading: Reading) -> Tensors:
        """Return views of one buffer for each shard, and one sha256.

        It is the sha256 of what `sha256sum` prints for the shards in the order of their names.
        """
        found = {name: part.read(reading) for name, part in self.parts.items()}
        lines = "".join(f"{shard.sha256}  {name}\n" for name, shard in found.items())
        tensors = {name: t for shard in found.values() for name, t in shard.tensors.items()}
        return Tensors(
            {name: tensors[name] for name in self.header.tensors},
            hashlib.sha256(lines.encode()).hexdigest(),
            all(shard.finite for shard in found.values()),
            any(shard.stamped for shard in found.values()),
        )


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
