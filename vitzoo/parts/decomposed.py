"""Decomposed relative positions: each query meets a vector for rows and one for columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from vitzoo.errors import InvalidOption
from vitzoo.parts.attention import Bias
from vitzoo.parts.init import normal_
from vitzoo.parts.pos_embed import LearnedPositions, reference_size

Size = tuple[int, int]


class DecomposedPositions(nn.Module):
    """Adds to a query-key product those of the query and two learned vectors.

    One vector belongs to the difference in rows between the two patches, the other to that in
    columns. The heads of a block share them. The query is that before the scale: the scaled one
    times the square root of head_dim. Pairs with a prefix token get no bias.

    Shapes: tokens and result (b, p + n, d); each block has `rel_pos_h` (2 h - 1, head_dim) and
    `rel_pos_w` (2 w - 1, head_dim), of which the middle rows belong to a difference of 0. (h, w) is
    the window of the block, or `reference_grid`. For another grid they are interpolated linearly in
    every call. Initial values are normal(0.02).

    Args:
        grid_size: (h, w) in patches.
        num_prefix_tokens, embed_dim, num_heads: p, d and number of heads.
        depth: number of blocks.
        windows: window of each block in patches, 0 for none.
        reference_grid: (h, w) of the vectors of blocks without windows.
        absolute: whether a learned table is added to the patches before the first block.
        absolute_grid, resample: `reference_grid` and `resample` of that table.

    Source: arXiv:2203.16527 (ViTDet), arXiv:2304.02643 (SAM); first arXiv:2112.01526, section 4.1.
    """

    def __init__(
        self,
        *,
        grid_size: Size,
        num_prefix_tokens: int,
        embed_dim: int,
        num_heads: int,
        depth: int,
        windows: Sequence[int] = (),
        reference_grid: int | Size = 14,
        absolute: bool = False,
        absolute_grid: int | Size | None = None,
        resample: str = "bicubic_antialias",
    ) -> None:
        super().__init__()
        if not isinstance(absolute, bool):
            raise InvalidOption(f"absolute must be true or false, got {absolute!r}")
        reference = reference_size(reference_grid)
        self.num_prefix_tokens = num_prefix_tokens
        self.grid_size = grid_size
        self.absolute = absolute
        self.learned = LearnedPositions(
            grid_size=grid_size,
            num_prefix_tokens=num_prefix_tokens,
            embed_dim=embed_dim,
            prefix=False,
            resample=resample,
            reference_grid=absolute_grid,
        )
        self.sizes = [(size, size) if size else reference for size in windows or (0,) * depth]
        width = embed_dim // num_heads
        self.rel_pos_h, self.rel_pos_w = (
            nn.ParameterList(normal_(torch.empty(2 * n - 1, width), std=0.02) for n in axis)
            for axis in zip(*self.sizes, strict=True)
        )

    def initial_table(self, grid_size: Size) -> Tensor | None:
        return self.learned.initial_table(grid_size) if self.absolute else None

    def resample(self, table: Tensor | None, old: Size, new: Size) -> Tensor | None:
        return table if table is None else self.learned.resample(table, old, new)

    def to_grid(self, grid_size: Size) -> None:
        self.grid_size = grid_size
        self.learned.to_grid(grid_size)

    def forward(self, tokens: Tensor, table: Tensor | None = None, layer: int = 0) -> Tensor:
        return tokens if table is None else self.learned(tokens, table, layer)

    def attention_bias(self, table: Tensor | None, layer: int) -> Bias:
        """Return the function that maps the scaled queries of block `layer` to their bias."""
        return partial(self._logits, layer, self.grid_size, self.num_prefix_tokens)

    def window_bias(self, table: Tensor | None, layer: int) -> Bias:
        """Return the function for the patches of windows: (b, heads, n, p + n), n of a window."""
        return partial(self._logits, layer, self.sizes[layer], 0)

    def _logits(self, layer: int, grid: Size, prefix: int, queries: Tensor) -> Tensor:
        """Return the bias (b, heads, t, p + n) of the first t tokens.

        Args:
            layer: index of the block.
            grid: (h, w) of the n patches.
            prefix: number of prefix tokens among the queries.
            queries: scaled, (b, heads, t, head_dim).
        """
        count = prefix + grid[0] * grid[1]
        if not _recorded(queries) and queries.shape[2] < count:
            first = queries.shape[2]
            whole = F.pad(queries, (0, 0, 0, count - first))
            return self._logits(layer, grid, prefix, whole)[:, :, :first]
        b, heads, _, width = queries.shape
        patches = queries[:, :, prefix:].reshape(b, heads, *grid, width)
        tables = self.rel_pos_h[layer], self.rel_pos_w[layer]
        rows, columns = (
            _vectors(*one).to(queries.dtype) * width**0.5
            for one in zip(tables, self.sizes[layer], grid, strict=True)
        )
        down = torch.einsum("bnhwc,hkc->bnhwk", patches, rows)
        across = torch.einsum("bnhwc,wkc->bnhwk", patches, columns)
        logits = (down[..., None] + across[..., None, :]).flatten(4).flatten(2, 3)
        if self.num_prefix_tokens:
            logits = F.pad(logits, (self.num_prefix_tokens, 0, prefix, 0))
        return logits


def _recorded(queries: Tensor) -> bool:
    """Whether a tool records operations, which then get all tokens."""
    return torch.jit.is_tracing() or isinstance(queries, Proxy)  # type: ignore[attr-defined, no-untyped-call]


def _vectors(table: Tensor, old: int, size: int) -> Tensor:
    """Return the vector of each query and key along an axis, (size, size, head_dim).

    `table` has those of an axis of length `old`, (2 old - 1, head_dim).
    """
    if old != size:
        precise = table.to(torch.promote_types(table.dtype, torch.float32))
        moved = F.interpolate(precise.t()[None], size=2 * size - 1, mode="linear")
        table = moved[0].t().to(table.dtype)
    steps = torch.arange(size, device=table.device)
    return table[steps[:, None] - steps + size - 1]
