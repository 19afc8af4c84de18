"""What every kind of weights file offers: a header to check first, then its tensors."""

from __future__ import annotations

import hashlib
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError, StoreError
from vitzoo.files.access import open_regular
from vitzoo.files.safetensors import Header, TensorInfo

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
