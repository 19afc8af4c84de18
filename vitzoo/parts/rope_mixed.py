"""Rotary positions whose directions and frequencies are learned, for each block and head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitzoo.parts.pos_embed import Size
from vitzoo.parts.rope import RotaryBase, rotate_pairs


class MixedRotaryPositions(RotaryBase):
    """Rotates queries and keys of the patch tokens by learned mixtures of column and row.

    Pair i of neighbouring numbers of a head is rotated by the angle
    `column * freqs[0, layer, head, i] + row * freqs[1, layer, head, i]`. The initial directions of
    each head are two orthogonal ones, drawn at random. The initial frequencies are
    `temperature ** (-i / q)`, q = head_dim / 4. Prefix tokens are not rotated.

    Shapes: queries and keys (b, heads, p + n, head_dim); tokens and result (b, p + n, d); `freqs`
    (2, depth, heads, head_dim / 2).

    Args:
        grid_size, num_prefix_tokens, embed_dim, num_heads: as in `RotaryPositions`; so are errors.
        depth: number of blocks.
        temperature: initial ratio of the highest frequency to the one below the lowest.
        absolute: whether a learned table is added to the patch tokens at the stem.
        resample: interpolation of that table to another grid.

    Source: arXiv:2403.13298, section 3.2 (RoPE-Mixed); compared with timm's
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
        super().__init__(
            "rope_mixed",
            num_prefix_tokens=num_prefix_tokens,
            embed_dim=embed_dim,
            num_heads=num_heads,
            temperature=temperature,
            absolute=absolute,
            prefix=False,
            resample=resample,
        )
        self.freqs = nn.Parameter(_directions(depth, num_heads, self.head_dim, temperature))
        for name, values in zip(("row", "column"), _indices(grid_size), strict=True):
            self.register_buffer(name, values, persistent=False)

    def to_grid(self, grid_size: Size) -> None:
        row, column = _indices(grid_size)
        self.row, self.column = row.to(self.row), column.to(self.column)

    def rotate(self, x: Tensor, layer: int = 0) -> Tensor:
        """Rotate the (b, heads, p + n, head_dim) queries or keys of block `layer`."""
        across, down = self.freqs[:, layer, :, None]  # (heads, 1, head_dim / 2) each
        angles = self.column[:, None] * across + self.row[:, None] * down
        angles = angles.repeat_interleave(2, dim=-1)  # (heads, n, head_dim)
        return rotate_pairs(x, angles.sin(), angles.cos(), self.num_prefix_tokens, "interleaved")


def _directions(depth: int, num_heads: int, head_dim: int, temperature: float) -> Tensor:
    quarter = head_dim // 4
    frequency = temperature ** -(torch.arange(quarter) / quarter)  # (head_dim / 4,)
    angle = 2 * math.pi * torch.rand(depth, num_heads, 1)
    across = torch.cat((angle.cos() * frequency, -angle.sin() * frequency), dim=-1)
    down = torch.cat((angle.sin() * frequency, angle.cos() * frequency), dim=-1)
    return torch.stack((across, down))  # (2, depth, heads, head_dim / 2)


def _indices(grid_size: Size) -> tuple[Tensor, Tensor]:
    # On the CPU even inside `torch.device("meta")`: computed indices are in no checkpoint.
    y, x = (torch.arange(length, dtype=torch.float32, device="cpu") for length in grid_size)
    return y.repeat_interleave(grid_size[1]), x.repeat(grid_size[0])  # (n,) each
