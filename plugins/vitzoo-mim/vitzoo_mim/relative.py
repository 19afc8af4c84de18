"""Relative positions: a learned number for each head and distance between two patches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption, did_you_mean
from vitzoo.parts import same_grid, unless_same
from vitzoo_mim.resample import METHODS, resample_distances

Size = tuple[int, int]
MAX_TOKENS = 8_192  # the index of their pairs takes 512 MiB; a spec may come from an untrusted file
EXTRA = 3  # rows of the table: prefix to patch, patch to prefix, prefix to prefix


class RelativePositions(nn.Module):
    """Adds a learned number for the distance in rows and columns to each query-key product.

    Prefix tokens have no position. Three further numbers apply to them: for a prefix query and a
    patch key, for a patch query and a prefix key, and for two prefix tokens. The class token and
    all registers share these numbers.

    Shapes: table (l, (2 h - 1) (2 w - 1) + 3, heads) with prefix tokens, and
    (l, (2 h - 1) (2 w - 1), heads) without; l is the number of blocks, or 1 if all blocks share
    one table. Bias (heads, p + n, p + n). Tokens and result (b, p + n, d).

    Args:
        grid_size: (h, w) patches.
        num_prefix_tokens: p, tokens before the patches.
        num_heads: heads of the attention.
        depth: number of blocks.
        shared: whether all blocks use one table.
        resample: interpolation for another grid, a name of `METHODS`.

    Raises:
        InvalidOption: an option has another value, or there are more than `MAX_TOKENS` tokens.

    Source: BEiT (arXiv:2106.08254, appendix; arXiv:1910.10683, section 2.1, for text); numbers
    checked against timm's `Beit` and transformers' `BeitModel`. In the "Rel. Pos. Emb." of
    arXiv:2010.11929, appendix D.4, the bias also depends on the query.
    """

    index: Tensor

    def __init__(
        self,
        *,
        grid_size: Size,
        num_prefix_tokens: int,
        num_heads: int,
        depth: int,
        shared: bool = False,
        resample: str = "geometric",
    ) -> None:
        super().__init__()
        if not isinstance(shared, bool):
            raise InvalidOption(f"shared must be true or false, got {shared!r}")
        if not isinstance(resample, str) or resample not in METHODS:
            near = did_you_mean(resample, METHODS) if isinstance(resample, str) else ""
            known = near or f"; known: {', '.join(METHODS)}"
            raise InvalidOption(f"unknown way to resample distances {resample!r}{known}")
        self.num_prefix_tokens = num_prefix_tokens
        self.num_heads = num_heads
        self.layers = 1 if shared else depth
        self.method = resample
        self.register_buffer("index", self._index(grid_size), persistent=False)

    def initial_table(self, grid_size: Size) -> Tensor:
        """Return a table for a grid, zero at the start."""
        return torch.zeros(self.layers, self._distances(grid_size) + self._extra, self.num_heads)

    def resample(self, table: Tensor, old: Size, new: Size) -> Tensor:
        """Return the table for another grid; the numbers of prefix tokens stay."""
        if same_grid(old, new):
            return table
        distances, extra = table.tensor_split((self._distances(old),), dim=1)
        moved = torch.cat((resample_distances(distances, old, new, self.method), extra), dim=1)
        return unless_same(moved, table, old, new)

    def to_grid(self, grid_size: Size) -> None:
        """Use tables for this grid from now on."""
        self.index = self._index(grid_size).to(self.index.device)

    def forward(self, tokens: Tensor, table: Tensor, layer: int = 0) -> Tensor:
        """Return the (b, p + n, d) tokens unchanged; positions act in the attention."""
        return tokens

    def attention_bias(self, table: Tensor, layer: int) -> Tensor:
        """Return the bias of the query-key products of block `layer`."""
        numbers = table[layer if self.layers > 1 else 0]  # (rows, heads)
        return numbers[self.index].permute(2, 0, 1)  # (heads, p + n, p + n)

    @property
    def _extra(self) -> int:
        return EXTRA if self.num_prefix_tokens else 0

    @staticmethod
    def _distances(grid_size: Size) -> int:
        return (2 * grid_size[0] - 1) * (2 * grid_size[1] - 1)

    def _index(self, grid_size: Size) -> Tensor:
        """Return the row of the table for each pair of tokens, (p + n, p + n)."""
        # On the CPU even inside `torch.device("meta")`, because no file contains the index.
        (height, width), p = grid_size, self.num_prefix_tokens
        if p + height * width > MAX_TOKENS:
            raise InvalidOption(
                f"mim/relative takes at most {MAX_TOKENS} tokens, got {p + height * width} "
                f"({p} prefix tokens and {height}x{width} patches); choose a smaller image_size or "
                "a larger patch_size"
            )
        y = torch.arange(height, device="cpu").repeat_interleave(width)  # (n,)
        x = torch.arange(width, device="cpu").repeat(height)  # (n,)
        rows, columns = (a[:, None] - a for a in (y, x))  # (n, n), query minus key
        distance = (rows + height - 1) * (2 * width - 1) + columns + width - 1
        first = self._distances(grid_size)
        index = distance.new_empty(p + height * width, p + height * width)
        index[:p, p:], index[p:, :p], index[:p, :p] = first, first + 1, first + 2
        index[p:, p:] = distance
        return index
