"""Interpolation of learned position embeddings to another grid, as each family of weights does."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitzoo.errors import InvalidOption, did_you_mean

# What each family does when images have another size than in training.
RESAMPLING = {
    "bicubic_antialias": {"mode": "bicubic", "antialias": True, "align_corners": False},  # timm
    "bicubic": {"mode": "bicubic", "align_corners": False},  # transformers
    "bicubic_offset": {"mode": "bicubic", "align_corners": False},  # DINO's and DINOv2's own code
    "bicubic_corners": {"mode": "bicubic", "align_corners": True},  # torchvision
    "bilinear": {"mode": "bilinear", "align_corners": False},
    "zoom": {"mode": "bilinear", "align_corners": True},  # scipy.ndimage.zoom of order 1: Google
}


# Patches that Meta's code adds to the new grid before it divides by the old: its samples lie at
# the steps of that slightly larger grid.
OFFSET = 0.1


def check_method(method: str) -> str:
    """Return the name of a way to resample, or raise InvalidOption."""
    if not isinstance(method, str) or method not in RESAMPLING:
        known = f"; known: {', '.join(RESAMPLING)}"
        near = did_you_mean(method, RESAMPLING) if isinstance(method, str) else ""
        raise InvalidOption(f"unknown way to resample positions {method!r}{near or known}")
    return method


def resample_grid(
    table: Tensor,
    old: tuple[int, int],
    new: tuple[int, int],
    method: str = "bicubic_antialias",
) -> Tensor:
    """Resample the patch part of an (l, p + n, d) table from an (h, w) grid to another, in fp32.

    The first tokens, those beyond the old grid's, are kept.

    Args:
        table: one table, or one per layer.
        old, new: (h, w) in patches.
        method: a name of `RESAMPLING`.
    """
    prefix = table.shape[1] - old[0] * old[1]
    kept, grid = table[:, :prefix], table[:, prefix:]
    grid = grid.reshape(-1, *old, table.shape[2]).permute(0, 3, 1, 2).float()  # (l, d, h, w)
    if new[1] == 1:  # torch's antialiased pass over rows repeats the first for a single column
        grid = _interpolate(grid.transpose(2, 3), new[::-1], method).transpose(2, 3)
    else:
        grid = _interpolate(grid, new, method)  # (l, d, h', w')
    grid = grid.permute(0, 2, 3, 1).flatten(1, 2)  # (l, n', d)
    return torch.cat((kept, grid.to(table.dtype)), dim=1)


def _interpolate(grid: Tensor, size: tuple[int, int], method: str) -> Tensor:
    options: dict[str, Any] = RESAMPLING[method]
    if method != "bicubic_offset":
        return F.interpolate(grid, size=size, **options)
    scale = [(n + OFFSET) / o for n, o in zip(size, grid.shape[2:], strict=True)]
    return F.interpolate(grid, scale_factor=scale, **options)
