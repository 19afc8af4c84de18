"""Writers of safetensors and npz files, one tensor at a time."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Collection, Mapping
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from vitzoo.checkpoint.containers import NAMES, is_finite
from vitzoo.errors import CheckpointError
from vitzoo.files.safetensors import MAX_HEADER

IN_NUMPY = NAMES.keys() - {torch.float8_e4m3fn, torch.float8_e5m2}
ALIGNMENT = 8
FOREIGN = {"format": "pt"}  # transformers accepts no safetensors file without this


def check_storable(tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError if a safetensors file cannot store a tensor."""
    _check_values(tensors, NAMES, "a safetensors file")


def all_finite(tensor: Tensor) -> bool:
    """Tell whether no number of a tensor is NaN or infinite, without a mask of its size."""
    return is_finite(_bytes(tensor), NAMES[tensor.dtype])


def write_safetensors(
    file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file with wide types first, so that every tensor is aligned.

    Tensors that share memory are written separately.

    Raises:
        CheckpointError: a tensor has no values, or a type that safetensors does not have; or
            names and metadata are too long for `create`.
    """
    check_storable(tensors)
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
    if len(text) > MAX_HEADER:
        raise CheckpointError(
            f"names and metadata would take {len(text)} bytes, and readers accept {MAX_HEADER}; "
            "shorten the labels"
        )
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        file.write(_bytes(tensors[name]))


def write_npz(file: BinaryIO, tensors: Mapping[str, Tensor]) -> None:
    """Write an npz file as `numpy.savez` does; bfloat16 as two raw bytes, as JAX does.

    Raises:
        CheckpointError: a tensor has no values, or a type that NumPy does not have.
    """
    _check_values(tensors, IN_NUMPY, "an npz file")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(tensors):
            member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, so that the file is reproducible
            tensor = _on_cpu(tensors[name])
            raw = tensor.dtype == torch.bfloat16
            array = tensor.view(torch.uint16).numpy().view("V2") if raw else tensor.numpy()
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)


def _check_values(tensors: Mapping[str, Tensor], dtypes: Collection[torch.dtype], to: str) -> None:
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise CheckpointError(
                f"{name!a} is on the meta device and has no values to write; create the model on "
                "another device"
            )
        if tensor.dtype not in dtypes or tensor.layout is not torch.strided:
            kind = tensor.dtype if tensor.layout is torch.strided else tensor.layout
            raise CheckpointError(
                f"{name!a} is {kind}, which {to} cannot store; convert it to a dense tensor of "
                "another type"
            )


def _bytes(tensor: Tensor) -> memoryview:
    data: memoryview = _on_cpu(tensor).flatten().view(torch.uint8).numpy().data
    return data


def _on_cpu(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()
