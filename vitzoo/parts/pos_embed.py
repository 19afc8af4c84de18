"""Position embeddings: tell each token where in the image it stands."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts.init import normal_


class LearnedPositions(nn.Module):
    """One learned vector per token, prefix tokens included, added once ("1-D" in the paper).

    Shapes: tokens and result (b, p + n, d), table (1, p + n, d).

    Args:
        grid_size: (h, w) patches.
        num_prefix_tokens: p, tokens before the patches.
        embed_dim: d.

    Source: arXiv:2010.11929, section 3.1; initialised as `vit_jax/models_vit.py`; resampled as
    timm's `resample_abs_pos_embed` (bicubic, antialiased, in fp32).
    """

    def __init__(
        self, *, grid_size: tuple[int, int], num_prefix_tokens: int, embed_dim: int
    ) -> None:
        super().__init__()
        self.grid_size = grid_size
        self.num_prefix_tokens = num_prefix_tokens
        self.embed_dim = embed_dim

    def initial_table(self) -> Tensor:
        """Return a (1, p + n, d) table drawn from a normal of standard deviation 0.02."""
        tokens = self.num_prefix_tokens + self.grid_size[0] * self.grid_size[1]
        table = torch.empty(1, tokens, self.embed_dim)
        normal_(table, std=0.02)
        return table

    def resample(self, table: Tensor | None, grid_size: tuple[int, int]) -> Tensor | None:
        """Move to another grid; returns the table for it, (1, p + n', d)."""
        old, self.grid_size = self.grid_size, grid_size
        if table is None or old == grid_size:
            return table
        return resample_grid(table, old, grid_size)

    def forward(self, tokens: Tensor, table: Tensor) -> Tensor:
        """Add the table to (b, p + n, d) tokens."""
        return tokens + table


class SinCos2dPositions(nn.Module):
    """Fixed sines and cosines of column and row, added to the patch tokens only.

    A quarter of the width each holds sin(x w), cos(x w), sin(y w), cos(y w), the frequencies w
    falling geometrically from 1 to 1 / temperature. Prefix tokens get nothing.

    Shapes: tokens and result (b, p + n, d).

    Args:
        grid_size: (h, w) patches.
        num_prefix_tokens: p, tokens before the patches.
        embed_dim: d, a multiple of 4, at least 8.
        temperature: ratio of the highest to the lowest frequency.

    Source: MoCo v3 (arXiv:2104.02057); numbers follow `posemb_sincos_2d` of big_vision.
    """

    table: Tensor

    def __init__(
        self,
        *,
        grid_size: tuple[int, int],
        num_prefix_tokens: int,
        embed_dim: int,
        temperature: float = 10_000.0,
    ) -> None:
        super().__init__()
        if embed_dim % 4 or embed_dim < 8:
            raise InvalidOption(
                f"sincos_2d needs an embed_dim that is a multiple of 4 and at least 8, "
                f"got {embed_dim}"
            )
        if not isinstance(temperature, int | float) or not 1 < temperature < float("inf"):
            raise InvalidOption(f"temperature must be a number above 1, got {temperature!r}")
        self.num_prefix_tokens = num_prefix_tokens
        self.embed_dim = embed_dim
        self.temperature = temperature
        self.register_buffer("table", self._table(grid_size), persistent=False)

    def initial_table(self) -> None:
        """Return None: nothing is learned."""

    def resample(self, table: Tensor | None, grid_size: tuple[int, int]) -> None:
        """Compute the sines and cosines of another grid."""
        self.table = self._table(grid_size).to(self.table)

    def forward(self, tokens: Tensor, table: Tensor | None = None) -> Tensor:
        """Add the positions to the patch tokens of (b, p + n, d)."""
        prefix, patches = tokens.tensor_split((self.num_prefix_tokens,), dim=1)
        return torch.cat((prefix, patches + self.table), dim=1)

    def _table(self, grid_size: tuple[int, int]) -> Tensor:
        # On the CPU even inside `torch.device("meta")`: what is computed cannot be loaded later.
        quarter = self.embed_dim // 4
        steps = torch.arange(quarter, dtype=torch.float64, device="cpu") / (quarter - 1)
        frequency = self.temperature**-steps  # (d / 4,)
        y, x = (torch.arange(n, dtype=torch.float64, device="cpu") for n in grid_size)
        y = torch.outer(y.repeat_interleave(grid_size[1]), frequency)  # (n, d / 4)
        x = torch.outer(x.repeat(grid_size[0]), frequency)  # (n, d / 4)
        return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), dim=1).float()[None]  # (1, n, d)


class NoPositions(nn.Module):
    """Leaves tokens as they are: the encoder sees a bag of patches.

    Shapes: tokens and result (b, p + n, d).

    Args:
        grid_size, num_prefix_tokens, embed_dim: not used.

    Source: arXiv:2010.11929, table 8, row "No Pos. Emb.".
    """

    def __init__(
        self, *, grid_size: tuple[int, int], num_prefix_tokens: int, embed_dim: int
    ) -> None:
        super().__init__()

    def initial_table(self) -> None:
        """Return None: nothing is learned."""

    def resample(self, table: Tensor | None, grid_size: tuple[int, int]) -> None:
        """Do nothing."""

    def forward(self, tokens: Tensor, table: Tensor | None = None) -> Tensor:
        """Return the tokens."""
        return tokens


def resample_grid(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Resample the patch part of a (1, p + n, d) table from an (h, w) grid to another.

    The first tokens, those beyond the old grid's, are kept. Bicubic, antialiased, in fp32.
    """
    prefix = table.shape[1] - old[0] * old[1]
    kept, grid = table[:, :prefix], table[:, prefix:]
    grid = grid.reshape(1, *old, -1).permute(0, 3, 1, 2).float()  # (1, d, h, w)
    grid = F.interpolate(grid, size=new, mode="bicubic", antialias=True, align_corners=False)
    grid = grid.permute(0, 2, 3, 1).reshape(1, new[0] * new[1], -1)  # (1, n', d)
    return torch.cat((kept, grid.to(table.dtype)), dim=1)
