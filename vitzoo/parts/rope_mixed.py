"""Rotary positions whose directions and frequencies are learned, per block and head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts.pos_embed import LearnedPositions, Size
from vitzoo.parts.rope import check_head_dim, check_temperature, turn


class MixedRotaryPositions(nn.Module):
    """Rotates the patch tokens' queries and keys by learned mixtures of column and row.

    Pair i of a head turns by `column * freqs[0, layer, head, i] + row * freqs[1, layer, head, i]`,
    pairs being neighbours. Each head starts from two orthogonal directions, drawn at random, with
    frequencies `temperature ** (-i / quarter)`. Prefix tokens are not turned.

    Shapes: queries and keys (b, heads, p + n, head_dim); tokens and result (b, p + n, d); `freqs`
    (2, depth, heads, head_dim / 2).

    Args:
        grid_size: (h, w) patches.
        num_prefix_tokens: p, tokens before the patches.
        embed_dim: d.
        num_heads: heads; head_dim = d / heads is a multiple of 4.
        depth: number of blocks.
        temperature: ratio of the highest frequency to the one that would follow the lowest, at
            the start.
        absolute: whether a learned table is added to the patch tokens at the stem too.
        resample: how that table follows another grid.

    Raises:
        InvalidOption: head_dim is no multiple of 4, or an option has another value.

    Source: arXiv:2403.13298, section 3.2 (RoPE-Mixed); numbers checked against timm's
    `RotaryEmbeddingMixed`.
    """

    row: Tensor
    column: Tensor

    def __init__(
        self,
        *,
        grid_size: Size,
        num_prefix_tokens: int,
        embed_dim: int,
        num_heads: int,
        depth: int,
        temperature: float = 10.0,
        absolute: bool = False,
        resample: str = "bicubic_antialias",
    ) -> None:
        super().__init__()
        head_dim = check_head_dim("rope_mixed", embed_dim, num_heads)
        check_temperature(temperature)
        if not isinstance(absolute, bool):
            raise InvalidOption(f"absolute must be true or false, got {absolute!r}")
        self.num_prefix_tokens = num_prefix_tokens
        self.learned = LearnedPositions(
            num_prefix_tokens=num_prefix_tokens,
            embed_dim=embed_dim,
            prefix=False,
            resample=resample,
        )
        self.absolute = absolute
        self.freqs = nn.Parameter(_directions(depth, num_heads, head_dim, temperature))
        for name, values in zip(("row", "column"), _places(grid_size), strict=True):
            self.register_buffer(name, values, persistent=False)

    def initial_table(self, grid_size: Size) -> Tensor | None:
        """Return the learned table to start from, None where there is none."""
        return self.learned.initial_table(grid_size) if self.absolute else None

    def resample(self, table: Tensor | None, old: Size, new: Size) -> Tensor | None:
        """Return the learned table for another grid."""
        return table if table is None else self.learned.resample(table, old, new)

    def to_grid(self, grid_size: Size) -> None:
        """Number the rows and columns of another grid."""
        row, column = _places(grid_size)
        self.row, self.column = row.to(self.row), column.to(self.column)

    def forward(self, tokens: Tensor, table: Tensor | None = None, layer: int = 0) -> Tensor:
        """Add the learned table, if there is one, to the (b, p + n, d) tokens."""
        return tokens if table is None else self.learned(tokens, table, layer)

    def rotate(self, x: Tensor, layer: int = 0) -> Tensor:
        """Turn the (b, heads, p + n, head_dim) queries or keys of block `layer`."""
        across, down = self.freqs[:, layer, :, None]  # (heads, 1, head_dim / 2) each
        angles = self.column[:, None] * across + self.row[:, None] * down
        angles = angles.repeat_interleave(2, dim=-1)  # (heads, n, head_dim)
        return turn(x, angles.sin(), angles.cos(), self.num_prefix_tokens, "interleaved")


def _directions(depth: int, num_heads: int, head_dim: int, temperature: float) -> Tensor:
    quarter = head_dim // 4
    frequency = temperature ** -(torch.arange(quarter) / quarter)  # (head_dim / 4,)
    angle = 2 * math.pi * torch.rand(depth, num_heads, 1)
    across = torch.cat((angle.cos() * frequency, -angle.sin() * frequency), dim=-1)
    down = torch.cat((angle.sin() * frequency, angle.cos() * frequency), dim=-1)
    return torch.stack((across, down))  # (2, depth, heads, head_dim / 2)


def _places(grid_size: Size) -> tuple[Tensor, Tensor]:
    # On the CPU even inside `torch.device("meta")`: what is computed cannot be loaded later.
    y, x = (torch.arange(length, dtype=torch.float32, device="cpu") for length in grid_size)
    return y.repeat_interleave(grid_size[1]), x.repeat(grid_size[0])  # (n,) each
