"""The size of a weights file that was not seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch


def predicted_size(state: Mapping[str, torch.Tensor]) -> int:
    """Return the bytes of a safetensors file with these tensors, without metadata."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in sorted(state.items()):
        start, end = end, end + tensor.element_size() * tensor.numel()
        dtype = "F32" if tensor.is_floating_point() else "I64"
        header[name] = {"dtype": dtype, "shape": [*tensor.shape], "data_offsets": [start, end]}
    length = len(json.dumps(header, separators=(",", ":")))
    return 8 + length + -length % 8 + end
