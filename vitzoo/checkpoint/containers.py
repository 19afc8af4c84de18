"""Containers of tensors on disk, and the reader of safetensors files."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from vitzoo.checkpoint.contents import OpenFile, Reading, contents
from vitzoo.files.safetensors import Header, TensorInfo, read_header

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
