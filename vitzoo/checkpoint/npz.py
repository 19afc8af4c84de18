"""Reader of npz files."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitzoo.checkpoint.containers import OpenFile, Reading, Tensors, contents, is_finite, views
from vitzoo.errors import CheckpointError
from vitzoo.files.npz import Member, read_directory
from vitzoo.files.safetensors import Header

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
        found = contents(self.file, replace(reading, keys=None), stored)
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
        return views(buffer, {"": member.info})[""]
    turned = replace(member.info, shape=member.info.shape[::-1])
    backwards = views(buffer, {"": turned})[""]
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
