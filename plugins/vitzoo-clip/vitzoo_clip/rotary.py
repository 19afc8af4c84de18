"""Rotary positions with learned angles of the prefix tokens."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitzoo.parts import RotaryPositions

Size = tuple[int, int]


class PrefixRotaryPositions(RotaryPositions):
    """Rotates queries and keys of patches by row and column, of prefix tokens by learned angles.

    Patches are rotated as by `RotaryPositions` with `index` coordinates and the layout `half`.
    All blocks and heads share the angles of a prefix token, as they do those of a patch.

    Shapes: queries and keys (b, heads, p + n, head_dim); tokens and result (b, p + n, d);
    `prefix_angles` (p, head_dim / 2), in radians.

    Args:
        grid_size, num_prefix_tokens, embed_dim, num_heads, temperature: as in `RotaryPositions`;
            so are errors.

    Source: MLCD (arXiv:2407.17331), whose one prefix token is the class token; numbers checked
    against transformers' `MLCDVisionModel`.
    """

    def __init__(
        self,
        *,
        grid_size: Size,
        num_prefix_tokens: int,
        embed_dim: int,
        num_heads: int,
        temperature: float = 10_000.0,
    ) -> None:
        super().__init__(
            grid_size=grid_size,
            num_prefix_tokens=num_prefix_tokens,
            embed_dim=embed_dim,
            num_heads=num_heads,
            temperature=temperature,
            coordinates="index",
        )
        half = self.head_dim // 2
        self.prefix_angles = nn.Parameter(torch.randn(num_prefix_tokens, half) * half**-0.5)

    def rotate(self, x: Tensor, layer: int = 0) -> Tensor:
        """Rotate (b, heads, p + n, head_dim) queries or keys, by the same angles in every block."""
        prefix, patches = super().rotate(x).tensor_split((self.num_prefix_tokens,), dim=2)
        sine, cosine = self.prefix_angles.sin(), self.prefix_angles.cos()  # (p, head_dim / 2)
        first, second = prefix.chunk(2, dim=-1)
        turned = (first * cosine - second * sine, second * cosine + first * sine)
        return torch.cat((torch.cat(turned, dim=-1).to(x.dtype), patches), dim=2)
