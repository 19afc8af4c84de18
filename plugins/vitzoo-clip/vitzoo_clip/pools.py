"""The pool of AIMv2: one learned query attends to all tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.errors import InvalidOption


class QueryPool(nn.Module):
    """Lets one learned vector attend to all tokens, as their query, and projects the result.

    Unlike in `vitzoo.parts.AttentionPool`, the query has no projection, and no MLP follows.

    Shapes: (b, p + n, d) to (b, d).

    Args:
        embed_dim: width d.
        num_heads: number of attention heads.
        bias: whether keys and values have a bias.

    Raises:
        InvalidOption: num_heads does not divide d, or bias is no boolean.

    Source: `Aimv2AttentionPoolingHead` of transformers.

    >>> QueryPool(embed_dim=8, num_heads=2)(torch.ones(1, 6, 8), 0, (2, 3)).shape
    torch.Size([1, 8])
    """

    norm_first = True

    def __init__(self, *, embed_dim: int, num_heads: int, bias: bool = False) -> None:
        super().__init__()
        if not isinstance(bias, bool):
            raise InvalidOption(f"bias must be true or false, got {bias!r}")
        if type(num_heads) is not int or num_heads < 1 or embed_dim % num_heads:
            raise InvalidOption(
                f"num_heads of the pool must divide embed_dim {embed_dim}, got {num_heads!r}"
            )
        self.num_heads = num_heads
        self.latent = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.kv = nn.Linear(embed_dim, 2 * embed_dim, bias=bias)
        self.proj = nn.Linear(embed_dim, embed_dim)
        if not self.latent.is_meta:
            nn.init.normal_(self.latent, std=0.02)

    def forward(self, tokens: Tensor, num_prefix_tokens: int, grid_size: tuple[int, int]) -> Tensor:
        k, v = self.kv(tokens).chunk(2, dim=-1)  # (b, p + n, d) each
        q = self.latent.expand(tokens.shape[0], -1, -1)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        x = F.scaled_dot_product_attention(q, k, v)  # (b, heads, 1, d / heads)
        pooled: Tensor = self.proj(x.flatten(1))
        return pooled

    def _heads(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        return x.reshape(b, n, self.num_heads, d // self.num_heads).transpose(1, 2)
