"""Interpolation of learned position embeddings to another grid of patches."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitzoo.errors import InvalidOption, did_you_mean

RESAMPLING = {  # the comment names the library that uses the method
    "bicubic_antialias": {"mode": "bicubic", "antialias": True, "align_corners": False},  # timm
    "bicubic": {"mode": "bicubic", "align_corners": False},  # transformers
    "bicubic_offset": {"mode": "bicubic", "align_corners": False},  # Meta's DINO and DINOv2
    "bicubic_corners": {"mode": "bicubic", "align_corners": True},  # torchvision
    "bilinear": {"mode": "bilinear", "align_corners": False},
    # SigLIP 2 NaFlex and TIPSv2:
    "bilinear_antialias": {"mode": "bilinear", "antialias": True, "align_corners": False},
    "nearest": {},  # transformers' Idefics2, Idefics3 and SmolVLM
    "zoom": {"mode": "bilinear", "align_corners": True},  # scipy.ndimage.zoom of order 1: Google
}
OFFSET = 0.1  # Meta's code adds this to the new grid before it divides by the old one


def check_method(method: str) -> str:
    """Return `method`; raise InvalidOption unless it is a name of `RESAMPLING`."""
    if not isinstance(method, str) or method not in RESAMPLING:
        known = f"; known: {', '.join(RESAMPLING)}"
        near = did_you_mean(method, RESAMPLING) if isinstance(method, str) else ""
        raise InvalidOption(f"unknown method of interpolation resample = {method!r}{near or known}")
    return method


def same_grid(old: tuple[int, int], new: tuple[int, int]) -> bool:
    """Return whether two grids are equal.

    While a compiler records operations for all sizes, this is False unless it is known to hold for
    each of them. Interpolation to the grid of a table returns the table, so that no branch is
    needed.
    """
    if not torch.compiler.is_compiling():
        return old == new
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return all(statically_known_true(a == b) for a, b in zip(old, new, strict=True))


def unless_same(moved: Tensor, table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Return a table that was interpolated, or the table itself where the grids are equal.

    This is for methods that change a table at its own grid; `same_grid` returns the usual case.
    """
    if not torch.compiler.is_compiling():
        return moved
    sides = [torch.scalar_tensor(b) == a for a, b in zip(old, new, strict=True)]
    rows = torch.arange(moved.shape[1], device=table.device).clamp(max=table.shape[1] - 1)
    return torch.where(torch.stack(sides).all().to(table.device), table[:, rows], moved)


def resample_grid(
    table: Tensor, old: tuple[int, int], new: tuple[int, int], method: str = "bicubic_antialias"
) -> Tensor:
    """Interpolate the patch rows of an (l, p + n, d) table to another grid, in float32.

    The last n = h * w rows belong to the patches of the old grid; the p rows before them are kept.
    `old` and `new` are grids (h, w) in patches; `method` is a name of `RESAMPLING`.
    """
    prefix = table.shape[1] - old[0] * old[1]
    kept, grid = table[:, :prefix], table[:, prefix:]
    grid = grid.reshape(-1, *old, table.shape[2]).permute(0, 3, 1, 2).float()  # (l, d, h, w)
    if new[1] == 1:  # torch's antialiasing would repeat the first row in a grid of one column
        grid = _interpolate(grid.transpose(2, 3), new[::-1], method).transpose(2, 3)
    else:
        grid = _interpolate(grid, new, method)  # (l, d, h', w')
    grid = grid.permute(0, 2, 3, 1).flatten(1, 2)  # (l, n', d)
    return torch.cat((kept, grid.to(table.dtype)), dim=1)


def _interpolate(grid: Tensor, size: tuple[int, int], method: str) -> Tensor:
    options: dict[str, Any] = RESAMPLING[method]
    if method == "nearest":
        rows, columns = map(_nearest, grid.shape[2:], size)
        return grid[:, :, rows.to(grid.device)][..., columns.to(grid.device)]
    if method == "bicubic_antialias" and torch.compiler.is_compiling() and grid.requires_grad:
        # torch cannot compile the gradient for sizes that change: two products with its weights
        sides = zip(grid.shape[2:], size, strict=True)
        ones = [(torch.eye(old, device=grid.device)[None, None], (new, old)) for old, new in sides]
        rows, columns = (F.interpolate(one, size=to, **options)[0, 0] for one, to in ones)
        return rows @ grid @ columns.T
    if method != "bicubic_offset":
        return F.interpolate(grid, size=size, **options)
    if torch.compiler.is_compiling():  # which fixes a scale, and with it the size
        rows, columns = _offset_weights(grid, size)
        return rows @ grid @ columns.T
    scale = [(n + OFFSET) / o for n, o in zip(size, grid.shape[2:], strict=True)]
    return F.interpolate(grid, scale_factor=scale, **options)


def _offset_weights(grid: Tensor, size: tuple[int, int]) -> list[Tensor]:
    """Return the weights of `bicubic_offset` for rows and columns, (new, old) each.

    They are those of torch's bicubic interpolation with a = -0.75. For the same size, without
    offset, they are exactly 0 and 1.
    """
    sides = list(zip(grid.shape[2:], size, strict=True))
    steps = [torch.arange(new, dtype=torch.float32, device=grid.device) for _, new in sides]
    differs = torch.stack(
        [torch.scalar_tensor(new, device=grid.device) != old for old, new in sides]
    ).any()
    found = []
    for (old, new), places in zip(sides, steps, strict=True):
        scale = old / (new + OFFSET * differs)
        source = (places + 0.5) * scale - 0.5
        first = source.floor()
        weights = grid.new_zeros(new, old)
        for tap in range(-1, 3):
            distance = (source - first - tap).abs()
            near = ((1.25 * distance - 2.25) * distance) * distance + 1
            far = ((-0.75 * distance + 3.75) * distance - 6) * distance + 3
            index = (first.long() + tap).clamp(0, old - 1)[:, None]
            value = torch.where(distance <= 1, near, far)[:, None]
            weights = weights.scatter_add(1, index, value.to(weights.dtype))
        found.append(weights)
    return found


def _nearest(old: int, new: int) -> Tensor:
    """Return the old row of each new one, with the float32 steps of transformers."""
    starts = torch.arange(1 / old, 1.0, 1 / old, device="cpu")  # of all old rows but the first
    step = 1 / torch.tensor(new, dtype=torch.float32, device="cpu")
    steps = torch.arange(new, dtype=torch.float32, device="cpu") * step
    return torch.bucketize(steps.clamp(max=1 - 1e-6), starts, right=True)
