"""Interpolation of relative position tables for another grid, as in several libraries."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

Size = tuple[int, int]
GROWTH = (1.01, 1.5)  # of the gaps between the old distances, least and most
PRECISION = 1e-6  # of the growth
METHODS = (
    "geometric",  # timm
    "geometric_cubic",  # BEiT's own code
    "bilinear",  # transformers
    "bicubic",
)


def resample_distances(table: Tensor, old: Size, new: Size, method: str) -> Tensor:
    """Resample (l, rows, heads) numbers of distances from an (h, w) grid to another, in fp32.

    `geometric` spreads the old distances over the new range with gaps that grow by a constant
    factor from the middle outwards, so that near neighbours keep their numbers. It interpolates
    linearly between them, `geometric_cubic` with a cubic spline. The other methods stretch the old
    distances evenly.

    Args:
        table: a number for each distance, row by row.
        old, new: (h, w) in patches.
        method: one of `METHODS`.

    Source: `run_class_finetuning.py` of BEiT; timm's `resize_rel_pos_bias_table`; transformers'
    `BeitRelativePositionBias`.
    """
    (h, w), (height, width) = (tuple(2 * side - 1 for side in grid) for grid in (old, new))
    grid = table.reshape(table.shape[0], h, w, -1).permute(0, 3, 1, 2).float()  # (l, heads, h, w)
    if method.startswith("geometric"):
        cubic = method == "geometric_cubic"
        rows = geometric_weights(h, height, cubic=cubic).to(table.device)  # (height, h)
        columns = geometric_weights(w, width, cubic=cubic).to(table.device)  # (width, w)
        grid = rows @ grid @ columns.T
    else:
        grid = F.interpolate(grid, size=(height, width), mode=method, align_corners=False)
    return grid.permute(0, 2, 3, 1).flatten(1, 2).to(table.dtype)


def geometric_weights(old: int, new: int, *, cubic: bool = False) -> Tensor:
    """Return the (new, old) matrix that interpolates numbers of old distances at the new ones.

    Beyond the outermost old distance, its number is used. With fewer than four distances, the
    interpolation is linear.
    """
    points = _spread(old, new // 2)
    places = torch.arange(new, dtype=torch.float64, device="cpu") - new // 2
    places = places.clamp(points[0], points[-1])
    if old == 1:
        return torch.ones(new, 1, device="cpu")
    right = (points < places[:, None]).sum(1).clamp(1, old - 1)  # ONNX has no searchsorted
    curve = _second_derivatives(points) if cubic and old > 3 else None
    gap = points[right] - points[right - 1]
    ahead, behind = points[right] - places, places - points[right - 1]
    one = torch.eye(old, dtype=torch.float64, device="cpu")
    before, after = one[right - 1], one[right]
    weights = before * (ahead / gap)[:, None] + after * (behind / gap)[:, None]
    if curve is not None:
        bend = ((ahead**3 / gap - ahead * gap) / 6)[:, None] * (before @ curve)
        weights = weights + bend + ((behind**3 / gap - behind * gap) / 6)[:, None] * (after @ curve)
    return weights.float()


def _spread(old: int, reach: int) -> Tensor:
    """Return the places of the old distances: 0, and gaps that grow to `reach` on both sides."""
    count = old // 2
    growth = (_traced_growth if torch.compiler.is_compiling() else _growth)(count, reach)
    gaps = growth ** torch.arange(count, dtype=torch.float64, device="cpu")
    side = gaps.cumsum(0)
    return torch.cat((-side.flip(0), torch.zeros(1, dtype=torch.float64, device="cpu"), side))


def _growth(count: int, reach: int) -> float:
    """Return the growth of `count` gaps, the first of 1, whose sum is nearest to `reach`."""
    low, high = GROWTH
    while high - low > PRECISION:
        growth = (low + high) / 2
        if (1 - growth**count) / (1 - growth) > reach:
            high = growth
        else:
            low = growth
    return growth


def _traced_growth(count: int, reach: int) -> Tensor:
    """Return `_growth` without a branch, so that a compiler records it for every `reach`."""
    low, high = (torch.scalar_tensor(x, dtype=torch.float64, device="cpu") for x in GROWTH)
    width = GROWTH[1] - GROWTH[0]
    while width > PRECISION:
        growth, width = (low + high) / 2, width / 2
        beyond = (1 - growth**count) / (1 - growth) > reach
        low, high = torch.where(beyond, low, growth), torch.where(beyond, growth, high)
    return growth


def _second_derivatives(points: Tensor) -> Tensor:
    """Return the matrix from values to second derivatives of their cubic spline, not-a-knot."""
    count, gaps = len(points), points.diff()
    left = torch.zeros(count, count, dtype=torch.float64, device="cpu")
    right = torch.zeros_like(left)
    inner = torch.arange(1, count - 1, device="cpu")
    left[inner, inner - 1], left[inner, inner + 1] = gaps[:-1] / 6, gaps[1:] / 6
    left[inner, inner] = (gaps[:-1] + gaps[1:]) / 3
    right[inner, inner - 1], right[inner, inner + 1] = 1 / gaps[:-1], 1 / gaps[1:]
    right[inner, inner] = -1 / gaps[:-1] - 1 / gaps[1:]
    for row, at in ((0, 0), (count - 1, count - 3)):  # the third derivative is continuous there
        one, two = gaps[at], gaps[at + 1]
        left[row, at : at + 3] = torch.stack((1 / one, -1 / one - 1 / two, 1 / two))
    return torch.linalg.solve(left, right)
