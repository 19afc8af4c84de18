"""Position embeddings: tell each token where in the image it stands."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts.init import normal_
from vitzoo.parts.resample import check_method, resample_grid

WHERE = ("stem", "layers", "layers_shared")
Size = tuple[int, int]


class LearnedPositions(nn.Module):
    """One learned vector per token ("1-D" in the paper).

    Shapes: tokens and result (b, p + n, d); table (l, p + n, d), or (l, n, d) without `prefix`,
    l being the number of blocks for `where="layers"` and 1 otherwise.

    Args:
        num_prefix_tokens: p, tokens before the patches.
        embed_dim: d.
        depth: number of blocks.
        where: `stem`: added once, before the first block; `layers`: before every block, each with
            a table of its own; `layers_shared`: before every block, all with one table.
        prefix: whether prefix tokens have positions too; DeiT III and big_vision give them none.
        resample: how the table follows another grid, a name of `RESAMPLING`.

    Source: arXiv:2010.11929, section 3.1 and table 8; initialised as `vit_jax/models_vit.py`.
    """

    def __init__(
        self,
        *,
        num_prefix_tokens: int,
        embed_dim: int,
        depth: int = 1,
        where: str = "stem",
        prefix: bool = True,
        resample: str = "bicubic_antialias",
    ) -> None:
        super().__init__()
        if not isinstance(prefix, bool):
            raise InvalidOption(f"prefix must be true or false, got {prefix!r}")
        self.where = _check_where(where)
        self.layers = depth if where == "layers" else 1
        self.num_prefix_tokens = num_prefix_tokens
        self.skipped = 0 if prefix else num_prefix_tokens
        self.embed_dim = embed_dim
        self.method = check_method(resample)

    def initial_table(self, grid_size: Size) -> Tensor:
        """Return a table for a grid, drawn from a normal of standard deviation 0.02."""
        tokens = self.num_prefix_tokens - self.skipped + grid_size[0] * grid_size[1]
        table = torch.empty(self.layers, tokens, self.embed_dim)
        normal_(table, std=0.02)
        return table

    def resample(self, table: Tensor, old: Size, new: Size) -> Tensor:
        """Return the table for another grid."""
        return table if old == new else resample_grid(table, old, new, self.method)

    def to_grid(self, grid_size: Size) -> None:
        """Do nothing: all that depends on the grid is in the table."""

    def forward(self, tokens: Tensor, table: Tensor, layer: int = 0) -> Tensor:
        """Add the positions to the (b, p + n, d) tokens before block `layer`."""
        added = _at(table, layer, self.where)
        if added is None:
            return tokens
        if not self.skipped:
            return tokens + added
        prefix, patches = tokens.tensor_split((self.skipped,), dim=1)
        return torch.cat((prefix, patches + added), dim=1)


class Learned2dPositions(nn.Module):
    """A learned vector per column and one per row, joined ("2-D" in the paper).

    Half of the width tells the column, half the row. Prefix tokens have a whole vector each.

    Shapes: tokens and result (b, p + n, d); table (l, 2 p + w + h, d / 2): the halves of the
    prefix tokens' vectors, then the columns', then the rows'.

    Args:
        grid_size: (h, w) patches.
        num_prefix_tokens: p, tokens before the patches.
        embed_dim: d, even.
        depth: number of blocks.
        where, resample: as in `LearnedPositions`; columns and rows are resampled one by one.

    Raises:
        InvalidOption: d is odd.

    Source: arXiv:2010.11929, appendix D.4.
    """

    def __init__(
        self,
        *,
        grid_size: Size,
        num_prefix_tokens: int,
        embed_dim: int,
        depth: int = 1,
        where: str = "stem",
        resample: str = "bicubic_antialias",
    ) -> None:
        super().__init__()
        if embed_dim % 2:
            raise InvalidOption(f"learned_2d needs an even embed_dim, got {embed_dim}")
        self.where = _check_where(where)
        self.layers = depth if where == "layers" else 1
        self.grid_size = grid_size
        self.num_prefix_tokens = num_prefix_tokens
        self.embed_dim = embed_dim
        self.method = check_method(resample)

    def initial_table(self, grid_size: Size) -> Tensor:
        """Return a table for a grid, drawn from a normal of standard deviation 0.02."""
        rows = 2 * self.num_prefix_tokens + sum(grid_size)
        table = torch.empty(self.layers, rows, self.embed_dim // 2)
        normal_(table, std=0.02)
        return table

    def resample(self, table: Tensor, old: Size, new: Size) -> Tensor:
        """Return the table for another grid."""
        if old == new:
            return table
        prefix, columns, rows = self._parts(table, old)
        columns = resample_grid(columns, (1, old[1]), (1, new[1]), self.method)
        rows = resample_grid(rows, (old[0], 1), (new[0], 1), self.method)
        return torch.cat((prefix, columns, rows), dim=1)

    def to_grid(self, grid_size: Size) -> None:
        """Read tables as of this grid from now on."""
        self.grid_size = grid_size

    def forward(self, tokens: Tensor, table: Tensor, layer: int = 0) -> Tensor:
        """Add the positions to the (b, p + n, d) tokens before block `layer`."""
        added = _at(table, layer, self.where)
        if added is None:
            return tokens
        (height, width), half = self.grid_size, self.embed_dim // 2
        prefix, columns, rows = self._parts(added, self.grid_size)
        columns = columns[:, None].expand(-1, height, -1, half)  # (1, h, w, d / 2)
        rows = rows[:, :, None].expand(-1, -1, width, half)  # (1, h, w, d / 2)
        patches = torch.cat((columns, rows), dim=-1).flatten(1, 2)  # (1, n, d)
        prefix = prefix.reshape(1, self.num_prefix_tokens, self.embed_dim)
        return tokens + torch.cat((prefix, patches), dim=1)

    def _parts(self, table: Tensor, grid_size: Size) -> tuple[Tensor, ...]:
        sizes = [2 * self.num_prefix_tokens, grid_size[1], grid_size[0]]
        return torch.split(table, sizes, dim=1)


class SinCos2dPositions(nn.Module):
    """Fixed sines and cosines of column and row, added once to the patch tokens.

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
        grid_size: Size,
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

    def initial_table(self, grid_size: Size) -> None:
        """Return None: nothing is learned."""

    def resample(self, table: None, old: Size, new: Size) -> None:
        """Return None: nothing is learned."""

    def to_grid(self, grid_size: Size) -> None:
        """Compute the sines and cosines of another grid."""
        self.table = self._table(grid_size).to(self.table)

    def forward(self, tokens: Tensor, table: None = None, layer: int = 0) -> Tensor:
        """Add the positions to the patch tokens of (b, p + n, d)."""
        if layer:
            return tokens
        prefix, patches = tokens.tensor_split((self.num_prefix_tokens,), dim=1)
        return torch.cat((prefix, patches + self.table), dim=1)

    def _table(self, grid_size: Size) -> Tensor:
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

    Source: arXiv:2010.11929, table 8, row "No Pos. Emb.".
    """

    def initial_table(self, grid_size: Size) -> None:
        """Return None: nothing is learned."""

    def resample(self, table: None, old: Size, new: Size) -> None:
        """Return None: nothing is learned."""

    def to_grid(self, grid_size: Size) -> None:
        """Do nothing."""

    def forward(self, tokens: Tensor, table: None = None, layer: int = 0) -> Tensor:
        """Return the tokens."""
        return tokens


def _check_where(where: str) -> str:
    if where not in WHERE:
        raise InvalidOption(f"where must be one of {', '.join(WHERE)}, got {where!r}")
    return where


def _at(table: Tensor, layer: int, where: str) -> Tensor | None:
    """Return the part of a table that is added before a block, None for nothing."""
    if where == "layers":
        return table[layer : layer + 1]
    return table if layer == 0 or where == "layers_shared" else None
