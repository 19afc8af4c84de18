"""Relative positions: each query meets a learned vector for its offset to each key."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from vitzoo.errors import InvalidOption
from vitzoo.parts.attention import Bias
from vitzoo.parts.init import normal_
from vitzoo.parts.resample import check_method, resample_grid, same_grid, unless_same

Size = tuple[int, int]


class RelativePositions(nn.Module):
    """Adds the product of the query and a learned vector to each query-key product.

    The n patches of a grid are numbered row by row. A query patch q and a key patch k have the
    offset q - k of their numbers, and each of the 2 n - 1 offsets has a learned vector. The vectors
    act as the keys of a second attention with the same queries and the same scale. Its logits are
    the attention bias. Each head uses its own d / heads numbers of a vector. Pairs with a prefix
    token (class token or register) get no bias.

    Shapes: tokens and result (b, p + n, d); table (l, 2 n - 1, d) for the offsets 1 - n to n - 1.
    l is the number of blocks, or 1 with `shared`. Initial values are normal(0.02).

    Args:
        num_prefix_tokens, embed_dim: p and d.
        num_heads: number of attention heads.
        depth: number of blocks.
        shared: whether all blocks use one table.
        resample: interpolation to another grid, a name of `RESAMPLING`.

    Source: arXiv:2010.11929, appendix D.4, "1-dimensional Relative Attention". The paper leaves
    open how prefix tokens are treated and whether blocks share the vectors.
    """

    def __init__(
        self,
        *,
        num_prefix_tokens: int,
        embed_dim: int,
        num_heads: int,
        depth: int,
        shared: bool = False,
        resample: str = "bicubic_antialias",
    ) -> None:
        super().__init__()
        if not isinstance(shared, bool):
            raise InvalidOption(f"shared must be true or false, got {shared!r}")
        self.num_prefix_tokens = num_prefix_tokens
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.layers = 1 if shared else depth
        self.method = check_method(resample)

    def initial_table(self, grid_size: Size) -> Tensor:
        rows = 2 * grid_size[0] * grid_size[1] - 1
        return normal_(torch.empty(self.layers, rows, self.embed_dim), std=0.02)

    def resample(self, table: Tensor, old: Size, new: Size) -> Tensor:
        """Return the table interpolated to another grid.

        The interpolation acts on the vectors arranged by difference in rows and columns. Several
        such differences may have the same offset; the offset gets their mean over pairs of patches.
        """
        if same_grid(old, new):
            return table
        spread = table[:, _offsets(old).to(table.device)]  # (l, (2 h - 1) (2 w - 1), d)
        spread = resample_grid(spread, _differences(old), _differences(new), self.method)
        offsets, pairs = _offsets(new), _pairs(new)
        sums = pairs.new_zeros(2 * new[0] * new[1] - 1).index_add(0, offsets, pairs)
        share = pairs / sums[offsets]
        moved = table.new_zeros(len(table), 2 * new[0] * new[1] - 1, self.embed_dim)
        moved = moved.index_add(1, offsets.to(table.device), spread * share.to(spread)[:, None])
        return unless_same(moved, table, old, new)

    def to_grid(self, grid_size: Size) -> None:
        """Do nothing: only the table depends on the grid."""

    def forward(self, tokens: Tensor, table: Tensor, layer: int = 0) -> Tensor:
        return tokens

    def attention_bias(self, table: Tensor, layer: int) -> Bias:
        """Return the function that maps the scaled queries of block `layer` to their bias."""
        vectors = table[layer if self.layers > 1 else 0]  # (2 n - 1, d)
        return partial(self._logits, vectors.reshape(vectors.shape[0], self.num_heads, -1))

    def _logits(self, vectors: Tensor, queries: Tensor) -> Tensor:
        """Return the bias (b, heads, t, p + n) of the first t tokens.

        Args:
            vectors: (2 n - 1, heads, head_dim).
            queries: scaled, (b, heads, t, head_dim).
        """
        n = (vectors.shape[0] + 1) // 2
        patches = queries[:, :, self.num_prefix_tokens :]
        # Where the pool reads prefix tokens only: OpenVINO has no empty tensors.
        traced = torch.jit.is_tracing() or isinstance(queries, Proxy)  # type: ignore[attr-defined, no-untyped-call]
        if not traced and not patches.shape[2]:
            return queries.new_zeros(*queries.shape[:3], self.num_prefix_tokens + n)
        products = torch.einsum("bhqc,ohc->bhqo", patches, vectors.to(queries.dtype))
        prefix = queries.shape[2] - patches.shape[2]
        q = torch.arange(patches.shape[2], device=queries.device)
        k = torch.arange(n, device=queries.device)
        offsets = q[:, None] - k + n - 1  # (t - p, n) rows of the table
        logits = products.gather(-1, offsets.expand(products.shape[0], products.shape[1], -1, -1))
        return F.pad(logits, (self.num_prefix_tokens, 0, prefix, 0))


def _differences(grid_size: Size) -> Size:
    """Return the number of possible differences between two patches in rows, and in columns."""
    return 2 * grid_size[0] - 1, 2 * grid_size[1] - 1


def _offsets(grid_size: Size) -> Tensor:
    """Return the row of the table for each difference in rows and columns of two patches."""
    rows, columns = (torch.arange(n, device="cpu") for n in _differences(grid_size))
    return (rows[:, None] * grid_size[1] + columns).flatten()


def _pairs(grid_size: Size) -> Tensor:
    """Return the number of pairs of patches for each difference in rows and columns."""
    counts = (n - torch.arange(1 - n, n, device="cpu").abs() for n in grid_size)
    return torch.outer(*counts).flatten().float()
