"""The size of a weights file that was not seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

# Buffers that timm stored until 2023, and its files of that time have; by class of the network.
STORED = {
    "Beit": ("relative_position_index",),
    "SwinTransformer": ("attn_mask", "relative_position_index"),
    "SwinTransformerV2": ("attn_mask",),
}


def published(network: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that the published file of a network of timm has."""
    stored = STORED.get(type(network).__name__, ())
    buffers = {n: t for n, t in network.named_buffers() if n.rpartition(".")[2] in stored}
    return network.state_dict() | buffers


def predicted_size(state: Mapping[str, torch.Tensor]) -> int:
    """Return the bytes of a safetensors file with these tensors, without metadata."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in sorted(state.items(), key=lambda pair: (-pair[1].element_size(), pair[0])):
        start, end = end, end + tensor.element_size() * tensor.numel()
        dtype = "F32" if tensor.is_floating_point() else "I64"
        header[name] = {"dtype": dtype, "shape": [*tensor.shape], "data_offsets": [start, end]}
    length = len(json.dumps(header, separators=(",", ":")))
    return 8 + length + -length % 8 + end
