"""One NumPy `.npz` file."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitzoo.container import OpenFile, contents, view
from vitzoo.errors import CheckpointError
from vitzoo.files.npz import Member, read_directory
from vitzoo.files.safetensors import Header

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
