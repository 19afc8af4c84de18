"""Multi-head self-attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from vitzoo.errors import InvalidOption
from vitzoo.parts.init import layer, xavier_uniform_
from vitzoo.parts.packed import Packed
from vitzoo.parts.windows import Windows

Rotate = Callable[[Tensor], Tensor] | None
"""Rotates queries or keys, (b, heads, n, head_dim), by the positions of their tokens."""

Bias = Tensor | Callable[[Tensor], Tensor] | None
"""Is added to the scaled query-key products: (heads, n, n), or a function that maps the scaled
queries (b, heads, t, head_dim) of the first t tokens to (b, heads, t, n), where b, heads and t may
be 1."""

LONG = 512
"""Number of queries from which torch's attention in float32 on CPUs takes copies of keys and values
faster: it reads them once for each block of queries."""


class AllHeadsNorm(nn.RMSNorm):
    """RMS norm of queries or keys over the channels of all heads together.

    Shapes: (b, heads, n, head_dim) to the same.

    Source: `InternVLVisionAttention` of transformers.
    """

    def forward(self, x: Tensor) -> Tensor:
        b, heads, n, width = x.shape
        x = super().forward(x.transpose(1, 2).flatten(2))  # (b, n, d)
        return x.reshape(b, n, heads, width).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention with one fused query-key-value projection.

    Shapes: (b, n, d) to (b, n, d).

    Args:
        embed_dim: width d.
        num_heads: number of heads; each has the width d / num_heads.
        qkv_bias: whether queries, keys and values have a bias; `"qv"`: queries and values only.
        qk_scale: factor of the query-key products, `head_dim ** -0.5` if None.
        attention_dropout: dropout rate of the attention probabilities.
        dropout: dropout rate after the output projection.
        q_norm, k_norm: norms of queries and keys, (b, heads, n, head_dim).
        norm: norm over d before the output projection.
        proj_bias: whether the output projection has a bias.

    Attributes:
        fused_attn: whether one fused operation computes the attention. If False, `attn_drop` gets
            the probabilities (b, heads, n, n), so that a hook of it sees them, as in timm.

    Raises:
        InvalidOption: num_heads does not divide embed_dim.

    Source: arXiv:2010.11929, appendix A; compared with `timm.layers.Attention` and `EvaAttention`.
    """

    fused_attn = True

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        qkv_bias: bool | str = True,
        qk_scale: float | None = None,
        attention_dropout: float = 0.0,
        dropout: float = 0.0,
        q_norm: nn.Module | None = None,
        k_norm: nn.Module | None = None,
        norm: nn.Module | None = None,
        proj_bias: bool = True,
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise InvalidOption(
                f"num_heads must divide embed_dim: {embed_dim} is not a multiple of {num_heads}"
            )
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scale = self.head_dim**-0.5 if qk_scale is None else qk_scale
        self.qkv = layer(nn.Linear, embed_dim, 3 * embed_dim, bias=qkv_bias is True)
        some = qkv_bias == "qv"
        self.q_bias = nn.Parameter(torch.zeros(embed_dim)) if some else None
        self.v_bias = nn.Parameter(torch.zeros(embed_dim)) if some else None
        self.q_norm = q_norm or nn.Identity()
        self.k_norm = k_norm or nn.Identity()
        self.norm = norm or nn.Identity()
        self.attn_drop = nn.Dropout(attention_dropout)
        self.proj = layer(nn.Linear, embed_dim, embed_dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(dropout)
        xavier_uniform_(self.qkv, fused=3)
        xavier_uniform_(self.proj)

    def forward(
        self,
        x: Tensor,
        rotate: Rotate = None,
        bias: Bias = None,
        tokens: int | None = None,
        windows: Windows | Packed | None = None,
        with_keys: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Compute attention over n tokens (b, n, d); given `tokens`, for the first ones only.

        `with_keys` returns the keys (b, heads, n, head_dim), too. In `windows`, a patch attends to
        the prefix tokens and to the patches of its window, and a prefix token to all tokens. `bias`
        is then that of one window: (heads, size ** 2, p + size ** 2), or a function. In a `Packed`
        sequence, a token attends to those of its image.
        """
        q, k, v = self._project(x, rotate)  # (b, heads, n, head_dim) each
        if windows is None:
            x = self._attend(q[:, :, :tokens], k, v, bias)
        elif isinstance(windows, Packed):
            x = windows.attend(self._attend, (q, k, v))
        else:
            x = self._attend_in(windows, x, (q, k, v), bias, tokens)
        x = self.proj_drop(self.proj(self.norm(x)))
        return (x, k) if with_keys else x

    def probabilities(
        self,
        x: Tensor,
        rotate: Rotate = None,
        bias: Bias = None,
        windows: Windows | None = None,
    ) -> Tensor:
        """Return the attention probabilities of (b, n, d) tokens: (b, heads, n, n).

        In `windows`, they are zero outside the window. Where a window reaches beyond the grid, the
        attention to its other positions is left out.
        """
        q, k, _ = self._project(x, rotate)
        if windows is None:
            return self._attended(q, k, bias)
        inside, keys = self._divided(windows, x, (q, k))
        first = self._attended(q[:, :, : windows.prefix], k, None)
        return windows.spread(self._attended(inside, keys, bias), first)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Bias) -> Tensor:
        """Return the averages of the values (b, heads, n, head_dim) for t queries: (b, t, d)."""
        if self.fused_attn:
            rate = self.attn_drop.p if self.training else 0.0
            added = self._added(bias, q)
            if _are_many(q):  # the results are the same bytes
                k, v = k.contiguous(), v.contiguous()
            x = F.scaled_dot_product_attention(q, k, v, added, dropout_p=rate, scale=self.scale)
        else:
            x = self.attn_drop(self._attended(q, k, bias)) @ v
        return x.transpose(1, 2).flatten(2)

    def _attend_in(
        self,
        windows: Windows,
        x: Tensor,
        projected: tuple[Tensor, ...],
        bias: Bias,
        tokens: int | None,
    ) -> Tensor:
        """Return what `_attend` returns, where patches attend to their window and prefix tokens."""
        q, k, v = projected
        p = windows.prefix
        if tokens is not None and tokens <= p:
            return self._attend(q[:, :, :tokens], k, v, None)
        inside, keys, values = self._divided(windows, x, projected)
        patches = windows.join(self._attend(inside, keys, values, bias), x.shape[0])
        if p:
            patches = torch.cat((self._attend(q[:, :, :p], k, v, None), patches), dim=1)
        return patches[:, :tokens]

    def _divided(self, windows: Windows, x: Tensor, projected: tuple[Tensor, ...]) -> list[Tensor]:
        """Return queries of the patches of windows, then keys and values with prefix tokens.

        A position outside of the grid is a token of zeros before the projection.
        """
        fills: Sequence[Tensor | None] = (None, None, None)
        if any(windows.filled):
            fills = self._project(x.new_zeros(1, 1, x.shape[-1]), None)
        parts = [windows.divide(one, fill) for one, fill in zip(projected, fills, strict=False)]
        others = zip(projected[1:], parts[1:], strict=True)
        return [parts[0], *(windows.with_prefix(whole, part) for whole, part in others)]

    def _attended(self, q: Tensor, k: Tensor, bias: Bias) -> Tensor:
        products = q @ k.transpose(-2, -1) * self.scale
        added = self._added(bias, q)
        return (products if added is None else products + added).softmax(dim=-1)

    def _added(self, bias: Bias, q: Tensor) -> Tensor | None:
        if bias is None:
            return None
        if isinstance(bias, Tensor | Proxy):
            added: Any = bias[None, :, : q.shape[2]]
        else:
            added = bias(q * self.scale)
        return added.to(q.dtype)

    def _project(self, x: Tensor, rotate: Rotate) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv(x)
        if self.q_bias is not None and self.v_bias is not None:
            qkv = qkv + torch.cat((self.q_bias, torch.zeros_like(self.q_bias), self.v_bias))
        b, n, _ = x.shape
        qkv = qkv.reshape(b, n, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        return (q, k, v) if rotate is None else (rotate(q), rotate(k), v)


def _are_many(queries: Tensor) -> bool:
    traced = torch.jit.is_tracing() or isinstance(queries, Proxy)  # type: ignore[attr-defined, no-untyped-call]
    if traced or torch.compiler.is_compiling() or queries.requires_grad:
        return False
    return queries.is_cpu and queries.dtype == torch.float32 and queries.shape[2] >= LONG
