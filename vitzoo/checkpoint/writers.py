"""Weights files, written tensor by tensor: safetensors and npz."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from vitzoo.checkpoint.containers import DTYPES
from vitzoo.errors import CheckpointError

NAMES = {dtype: name for name, dtype in DTYPES.items()}
NUMPY_HAS_NOT = (torch.float8_e4m3fn, torch.float8_e5m2)
ALIGNMENT = 8


def write_safetensors(
    file: IO[bytes], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file: wide types first, so that every tensor is aligned."""
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.dtype.itemsize
        shape = list(tensor.shape)
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        file.write(memoryview(_array(tensors[name].flatten().view(torch.uint8))))


def write_npz(file: IO[bytes], tensors: Mapping[str, Tensor]) -> None:
    """Write an npz file as `numpy.savez` does; bfloat16 as two raw bytes, as JAX's reach a file.

    Raises:
        CheckpointError: tensors of a type that NumPy does not have.
    """
    for name, tensor in tensors.items():
        if tensor.dtype in NUMPY_HAS_NOT:
            raise CheckpointError(f"{name!a} is {tensor.dtype}, which an npz file cannot hold")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(tensors):
            member = zipfile.ZipInfo(f"{name}.npy")  # of 1980: the same tensors, the same bytes
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, _array(tensors[name]), allow_pickle=False)


def _array(tensor: Tensor) -> Any:
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view("V2")
    return tensor.numpy()
