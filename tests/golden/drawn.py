"""Tensors and images that are the same on every machine: drawn by NumPy from the tensor's name."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

STEM = re.compile(
    "cls_token|cls$|class_token|pos|embed|conv_proj|reg_token|dist_token|distillation_token"
)  # small: the norm's eps shows


def draw(name: str, shape: Sequence[int]) -> Tensor:
    """Return a tensor by its name: gains near 1, biases small, matrices that keep the scale."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(tuple(shape))
    gain = len(shape) == 1 and name.endswith(("weight", "scale"))
    if gain:
        values = 1 + 0.2 * values
    elif len(shape) == 1:
        values *= 0.1
    else:
        values *= np.prod(shape) ** -0.25 * 2
    if STEM.search(name) and not gain:
        values *= 0.02
    return torch.from_numpy(values.astype(np.float32))


def tensors(shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Return tensors by name."""
    return {name: draw(name, shape) for name, shape in shapes.items()}


def images(size: int | Sequence[int], count: int = 2) -> Tensor:
    """Return (b, 3, h, w) inputs."""
    height, width = (size, size) if isinstance(size, int) else size
    return (
        draw("images", (count, 3, height, width)) / draw("images", (count, 3, height, width)).std()
    )


def network(family: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a family's network, without the facts of its weights."""
    return {**common, **family.get("spec", {})}
