"""Windows: the division of a grid of patches for the attention."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Windows(NamedTuple):
    """Square windows of the patches of a grid; the windows at its right and lower edge are filled.

    Args:
        size: patches per side of a window.
        grid: (h, w) in patches.
        prefix: number p of prefix tokens, which belong to no window.

    Source: arXiv:2203.16527, section 3 (ViTDet); filled as in detectron2.
    """

    size: int
    grid: tuple[int, int]
    prefix: int

    @property
    def counts(self) -> tuple[int, int]:
        """Number of windows (down, across)."""
        rows, columns = self.grid
        return (rows + self.size - 1) // self.size, (columns + self.size - 1) // self.size

    @property
    def filled(self) -> tuple[int, int]:
        """Number of rows and columns that the grid lacks."""
        (down, across), (rows, columns) = self.counts, self.grid
        return down * self.size - rows, across * self.size - columns

    def divide(self, x: Tensor, fill: Tensor | None) -> Tensor:
        """Map tokens (b, heads, p + n, c) to those of windows, (b * windows, heads, size ** 2, c).

        `fill` is the token of positions outside of the grid, (1, heads, 1, c).
        """
        b, heads, _, c = x.shape
        (rows, columns), (down, across), size = self.grid, self.counts, self.size
        x = x[:, :, self.prefix :].reshape(b, heads, rows, columns, c)
        if fill is not None:  # at both edges at once, so that compilers need one case
            below, right = self.filled
            x = F.pad(x, (0, 0, 0, right, 0, below))
            inside = torch.arange(down * size, device=x.device)[:, None, None] < rows
            inside = inside & (torch.arange(across * size, device=x.device)[:, None] < columns)
            x = torch.where(inside, x, fill[:, :, None])
        x = x.reshape(b, heads, down, size, across, size, c).permute(0, 2, 4, 1, 3, 5, 6)
        return x.reshape(b * down * across, heads, size * size, c)

    def with_prefix(self, x: Tensor, patches: Tensor) -> Tensor:
        """Return the `patches` of windows after the prefix tokens of x, (b, heads, p + n, c)."""
        if not self.prefix:
            return patches
        count = self.counts[0] * self.counts[1]
        first = x[:, None, :, : self.prefix].expand(-1, count, -1, -1, -1)
        return torch.cat((first.flatten(0, 1), patches), dim=2)

    def join(self, x: Tensor, b: int) -> Tensor:
        """Map the tokens of windows, (b * windows, size ** 2, d), to (b, n, d)."""
        (down, across), size, (rows, columns) = self.counts, self.size, self.grid
        x = x.reshape(b, down, across, size, size, x.shape[-1]).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(b, down * size, across * size, x.shape[-1])
        return x[:, :rows, :columns].flatten(1, 2)

    def spread(self, x: Tensor, first: Tensor) -> Tensor:
        """Return the attention of all tokens, (b, heads, p + n, p + n), zero outside the windows.

        Args:
            x: of the patches of windows to prefix tokens and patches of their window,
                (b * windows, heads, size ** 2, p + size ** 2).
            first: of the prefix tokens, (b, heads, p, p + n).
        """
        b, heads, p, length = first.shape
        n, area = length - p, self.size**2
        numbers = torch.arange(n, device=x.device)[None, None, :, None]
        outside = numbers.new_full((1, 1, 1, 1), n)
        place = p + self._replace(prefix=0).divide(numbers, outside)[:, 0, :, 0]  # (windows, area)
        prefix = torch.arange(p, device=x.device).expand(len(place), p)
        keys = torch.cat((prefix, place), dim=1)  # (windows, p + area)
        found = x.new_zeros(b, heads, length + 1, length + 1)  # the last ones are outside the grid
        maps = x.reshape(b, -1, heads, area, p + area).transpose(1, 2)
        found[:, :, place[:, :, None], keys[:, None]] = maps
        found[:, :, :p, :length] = first
        return found[:, :, :length, :length]
