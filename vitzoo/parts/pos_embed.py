"""Position embeddings that are added to the tokens, before the first block or before each block.

Shapes: `b` batch, `p` prefix tokens (class token and registers), `n` patch tokens, `d` width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.keywords import check_choice
from vitzoo.parts.init import normal_
from vitzoo.parts.resample import check_method, resample_grid, same_grid
from vitzoo.schema.reader import pair
from vitzoo.schema.spec import LIMITS

WHERE = ("stem", "layers", "layers_shared")
Size = tuple[int, int]


def reference_size(grid: int | Size, what: str = "reference_grid") -> Size:
    """Return the (h, w) grid of an option; raise InvalidOption if a side is above the limit."""
    found, most = pair(grid, what, InvalidOption), LIMITS["window"]
    if max(found) > most:
        raise InvalidOption(f"{what} must have at most {most} patches per side, got {grid!r}")
    return found


def _check_prefix(prefix: object) -> None:
    if not isinstance(prefix, bool):
        raise InvalidOption(f"prefix must be true or false, got {prefix!r}")


def _check_temperature(temperature: object) -> None:
    if not isinstance(temperature, int | float) or not 1 < temperature < float("inf"):
        raise InvalidOption(f"temperature must be a number above 1, got {temperature!r}")


class LearnedPositions(nn.Module):
    """Adds one learned vector to each token ("1-D" in the paper).

    Shapes: tokens and result (b, p + n, d); table (l, p + n, d), or (l, n, d) without `prefix`.
    l is the number of blocks for `where="layers"` and 1 otherwise.

    Args:
        num_prefix_tokens, embed_dim: p and d.
        depth: number of blocks.
        where: `stem` adds the table once, before the first block; `layers_shared` adds it before
            every block; `layers` gives every block its own table.
        prefix: whether prefix tokens have positions; those of DeiT III and big_vision have none.
        resample: interpolation to another grid, a name of `RESAMPLING`.
        grid_size: (h, w) of the patches.
        reference_grid: (h, w) of the table, which is interpolated in every call; None: the table
            has the grid of the patches.

    Source: arXiv:2010.11929, section 3.1 and table 8; initialised as `vit_jax/models_vit.py`.
    """

    grid_size: Any  # None without a network

    def __init__(
        self,
        *,
        num_prefix_tokens: int,
        embed_dim: int,
        depth: int = 1,
        where: str = "stem",
        prefix: bool = True,
        resample: str = "bicubic_antialias",
        grid_size: Size | None = None,
        reference_grid: int | Size | None = None,
    ) -> None:
        super().__init__()
        _check_prefix(prefix)
        check_choice("where", where, WHERE)
        self.grid_size = grid_size
        self.reference = None if reference_grid is None else reference_size(reference_grid)
        self.where = where
        self.layers = depth if where == "layers" else 1
        self.num_prefix_tokens = num_prefix_tokens
        self.skipped = 0 if prefix else num_prefix_tokens
        self.embed_dim = embed_dim
        self.method = check_method(resample)

    def initial_table(self, grid_size: Size) -> Tensor:
        rows, columns = self.reference or grid_size
        tokens = self.num_prefix_tokens - self.skipped + rows * columns
        return normal_(torch.empty(self.layers, tokens, self.embed_dim), std=0.02)

    def resample(self, table: Tensor, old: Size, new: Size) -> Tensor:
        same = self.reference or same_grid(old, new)
        return table if same else resample_grid(table, old, new, self.method)

    def to_grid(self, grid_size: Size) -> None:
        self.grid_size = grid_size

    def forward(self, tokens: Tensor, table: Tensor, layer: int = 0) -> Tensor:
        added = self._at(table, layer)
        if added is None:
            return tokens
        if self.reference and self.grid_size and not same_grid(self.reference, self.grid_size):
            added = resample_grid(added, self.reference, self.grid_size, self.method)
        if not self.skipped:
            return tokens + added
        prefix, patches = tokens.tensor_split((self.skipped,), dim=1)
        return torch.cat((prefix, patches + added), dim=1)

    def _at(self, table: Tensor, layer: int) -> Tensor | None:
        """Return the table that is added before block `layer`, None if there is none."""
        if self.where == "layers":
            return table[layer : layer + 1]
        return table if layer == 0 or self.where == "layers_shared" else None


class Learned2dPositions(LearnedPositions):
    """Adds a learned vector for the column and one for the row of each patch ("2-D" in the paper).

    The first half of the width belongs to the column, the second half to the row. Each prefix token
    has a vector of the whole width.

    Shapes: tokens and result (b, p + n, d); table (l, 2 p + w + h, d / 2): two halves of a vector
    for each prefix token, then the columns, then the rows.

    Args:
        grid_size: (h, w) in patches.
        num_prefix_tokens, embed_dim, depth, where, resample: as in `LearnedPositions`. Columns and
            rows are interpolated separately.

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
        if embed_dim % 2:
            raise InvalidOption(f"learned_2d needs an even embed_dim, got {embed_dim}")
        super().__init__(
            num_prefix_tokens=num_prefix_tokens,
            embed_dim=embed_dim,
            depth=depth,
            where=where,
            resample=resample,
            grid_size=grid_size,
        )

    def initial_table(self, grid_size: Size) -> Tensor:
        rows = 2 * self.num_prefix_tokens + sum(grid_size)
        return normal_(torch.empty(self.layers, rows, self.embed_dim // 2), std=0.02)

    def resample(self, table: Tensor, old: Size, new: Size) -> Tensor:
        if same_grid(old, new):
            return table
        prefix, columns, rows = self._parts(table, old)
        columns = resample_grid(columns, (1, old[1]), (1, new[1]), self.method)
        rows = resample_grid(rows, (old[0], 1), (new[0], 1), self.method)
        return torch.cat((prefix, columns, rows), dim=1)

    def forward(self, tokens: Tensor, table: Tensor, layer: int = 0) -> Tensor:
        added = self._at(table, layer)
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


class NoPositions(nn.Module):
    """Returns the (b, p + n, d) tokens unchanged: the encoder sees the patches without order.

    Source: arXiv:2010.11929, table 8, row "No Pos. Emb.".
    """

    def initial_table(self, grid_size: Size) -> None:
        """Return None: no positions are learned."""

    def resample(self, table: None, old: Size, new: Size) -> None:
        """Return None: no positions are learned."""

    def to_grid(self, grid_size: Size) -> None:
        """Do nothing."""

    def forward(self, tokens: Tensor, table: None = None, layer: int = 0) -> Tensor:
        return tokens


class SinCos1dPositions(NoPositions):
    """Adds the fixed sines and cosines of the first transformer to the tokens.

    Token t gets sin(t w) at the even places of the width and cos(t w) at the odd ones, with
    w = temperature ** (-2 i / d) for pair i. The patches count row by row; at another image size
    they are counted anew.

    Shapes: tokens and result (b, p + n, d).

    Args:
        grid_size: (h, w) in patches.
        num_prefix_tokens: p.
        embed_dim: d, an even number.
        temperature: 10,000 in the paper.
        where: `stem` adds them once, before the first block; `layers` and `layers_shared` before
            every block.
        prefix: whether prefix tokens count, so that the class token is t = 0 and the first patch
            t = p; otherwise only patches have positions, the first of them t = 0.

    Raises:
        InvalidOption: d is odd, or the temperature is not above 1.

    Source: arXiv:1706.03762, section 3.5.
    """

    table: Tensor

    def __init__(
        self,
        *,
        grid_size: Size,
        num_prefix_tokens: int,
        embed_dim: int,
        temperature: float = 10_000.0,
        where: str = "stem",
        prefix: bool = True,
    ) -> None:
        super().__init__()
        if embed_dim % 2:
            raise InvalidOption(f"sincos_1d needs an even embed_dim, got {embed_dim}")
        _check_temperature(temperature)
        _check_prefix(prefix)
        check_choice("where", where, WHERE)
        self.where = where
        self.skipped = 0 if prefix else num_prefix_tokens
        self.num_prefix_tokens = num_prefix_tokens
        self.embed_dim = embed_dim
        self.temperature = temperature
        self.register_buffer("table", self._table(grid_size), persistent=False)

    def to_grid(self, grid_size: Size) -> None:
        self.table = self._table(grid_size).to(self.table)

    def forward(self, tokens: Tensor, table: None = None, layer: int = 0) -> Tensor:
        if layer and self.where == "stem":
            return tokens
        return tokens + self.table

    def _table(self, grid_size: Size) -> Tensor:
        # On the CPU even inside `torch.device("meta")`: a computed table is in no checkpoint.
        length = self.num_prefix_tokens - self.skipped + grid_size[0] * grid_size[1]
        pairs = torch.arange(0, self.embed_dim, 2, dtype=torch.float64, device="cpu")
        t = torch.arange(length, dtype=torch.float64, device="cpu")
        angles = torch.outer(t, self.temperature ** (-pairs / self.embed_dim))  # (t, d / 2)
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()  # (t, d)
        return F.pad(table, (0, 0, self.skipped, 0))[None]  # zeros for tokens without positions


class SinCos2dPositions(NoPositions):
    """Adds fixed sines and cosines of column x and row y to the patch tokens, before block 0.

    The quarters of the width are sin(x w), cos(x w), sin(y w) and cos(y w). The d / 4 frequencies w
    fall geometrically from 1 to 1 / temperature. Prefix tokens have no positions.

    Shapes: tokens and result (b, p + n, d).

    Args:
        grid_size: (h, w) in patches.
        num_prefix_tokens: number p of prefix tokens.
        embed_dim: d, a multiple of 4, at least 8.
        temperature: ratio of the highest to the lowest frequency.
        endpoint: whether the lowest frequency is 1 / temperature; False: that would be the next one
            below it, as in AIMv2.

    Source: MoCo v3 (arXiv:2104.02057); numbers as `posemb_sincos_2d` of big_vision.
    """

    table: Tensor

    def __init__(
        self,
        *,
        grid_size: Size,
        num_prefix_tokens: int,
        embed_dim: int,
        temperature: float = 10_000.0,
        endpoint: bool = True,
    ) -> None:
        super().__init__()
        if not isinstance(endpoint, bool):
            raise InvalidOption(f"endpoint must be true or false, got {endpoint!r}")
        if embed_dim % 4 or embed_dim < 8:
            raise InvalidOption(
                f"sincos_2d needs an embed_dim that is a multiple of 4 and at least 8, "
                f"got {embed_dim}"
            )
        _check_temperature(temperature)
        self.num_prefix_tokens = num_prefix_tokens
        self.embed_dim = embed_dim
        self.temperature = temperature
        self.endpoint = endpoint
        self.register_buffer("table", self._table(grid_size), persistent=False)

    def to_grid(self, grid_size: Size) -> None:
        self.table = self._table(grid_size).to(self.table)

    def forward(self, tokens: Tensor, table: None = None, layer: int = 0) -> Tensor:
        if layer:
            return tokens
        prefix, patches = tokens.tensor_split((self.num_prefix_tokens,), dim=1)
        return torch.cat((prefix, patches + self.table), dim=1)

    def _table(self, grid_size: Size) -> Tensor:
        # On the CPU even inside `torch.device("meta")`: a computed table is in no checkpoint.
        quarter = self.embed_dim // 4
        steps = torch.arange(quarter, dtype=torch.float64, device="cpu") / (quarter - self.endpoint)
        frequency = self.temperature**-steps  # (d / 4,)
        y, x = (torch.arange(n, dtype=torch.float64, device="cpu") for n in grid_size)
        y = torch.outer(y.repeat_interleave(grid_size[1]), frequency)  # (n, d / 4)
        x = torch.outer(x.repeat(grid_size[0]), frequency)  # (n, d / 4)
        return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), dim=1).float()[None]  # (1, n, d)
