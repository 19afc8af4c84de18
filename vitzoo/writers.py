"""Weights files, written tensor by tensor: safetensors and npz."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from vitzoo.container import DTYPES
from vitzoo.errors import CheckpointError, InvalidOption, StoreError, VitzooError

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


def check_target(path: Path, *, force: bool) -> None:
    """Refuse a path that cannot be written, or that would overwrite something.

    Raises:
        InvalidOption: it is there, is a folder, or its folder is not there.
    """
    if path.is_dir():
        raise InvalidOption(f"{path} is a folder; name a file")
    if not force and os.path.lexists(path):
        raise InvalidOption(f"{path} is already there; pass --force (force=True) to replace it")
    if not path.parent.is_dir():
        raise InvalidOption(f"there is no folder {path.parent}; make it first")


@contextlib.contextmanager
def arriving(path: Path, *, force: bool) -> Iterator[Path]:
    """Give a temporary path in the folder of `path`; it takes its place when the block is done.

    Nothing is left of it when the block raises.

    Raises:
        InvalidOption: as `check_target`; also when someone else wrote the path meanwhile.
        StoreError: the disk is full, or the folder is not the user's.
    """
    check_target(path, force=force)
    part = path.with_name(f".{path.name}.{os.getpid()}.{time.time_ns()}")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        check_target(path, force=force)
        part.replace(path)
    except OSError as error:
        if isinstance(error, VitzooError):
            raise
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def _array(tensor: Tensor) -> Any:
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view("V2")
    return tensor.numpy()
