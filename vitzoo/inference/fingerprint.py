"""Fingerprints: what determines the numbers that a network gives for an image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import PIL
import torch
from PIL import features
from torch import nn

import vitzoo


@dataclass(frozen=True)
class Fingerprint:
    """What determines the numbers of a `Predictor`; equal fingerprints give equal bytes.

    Args:
        weights: SHA-256 of the weights file; of a model object, that of its state dict.
        network: the spec of the network, as plain data.
        preprocessing: how images are prepared, as plain data.
        outputs: names of the outputs.
        labels: SHA-256 of the class names and their number in a row; empty without labels.
        dtype: type of the parameters, such as `float32`.
        chunk: shape (b, c, h, w) of the input of each forward pass.
        versions: of vitzoo, of the libraries that compute, and the kind of processor.
    """

    weights: str
    network: Mapping[str, Any]
    preprocessing: Mapping[str, Any]
    outputs: tuple[str, ...]
    labels: str
    dtype: str
    chunk: tuple[int, ...]
    versions: Mapping[str, str]

    def to_data(self) -> dict[str, Any]:
        """Return the fingerprint as plain data, which JSON can store."""
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return data

    @property
    def sha256(self) -> str:
        """SHA-256 of the data as JSON with sorted keys."""
        return hash_data(self.to_data())


def hash_data(data: object) -> str:
    """Return the SHA-256 of plain data as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def hash_tensors(model: nn.Module) -> str:
    """Return the SHA-256 of a state dict: names, types, shapes and bytes, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        head = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        digest.update(json.dumps(head).encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def versions(device: torch.device) -> dict[str, str]:
    """Return the versions of the libraries that compute, and the kind of processor."""
    found = {
        "vitzoo": vitzoo.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "jpeg": str(features.version("libjpeg_turbo") or features.version("jpg")),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_device_name(device)
    return found
