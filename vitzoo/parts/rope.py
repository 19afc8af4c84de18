"""Rotary position embedding (RoPE): rotates queries and keys by the row and column of a patch.

The directions and frequencies are fixed, or learned for each block and head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.keywords import check_choice
from vitzoo.parts.pos_embed import LearnedPositions, Size
from vitzoo.schema.reader import pair

COORDINATES = ("centered", "index")
LAYOUTS = ("half", "interleaved")
INDEXING = ("yx", "xy")
PERIODS = ("float32", "bfloat16")


class RotaryBase(nn.Module):
    """Common part of rotary positions: checks, and a learned table at the stem with `absolute`.

    `name` is the registered name of the part, and `learned` makes and adds the table; the other
    arguments are those of `RotaryPositions`.
    """

    def __init__(
        self,
        name: str,
        learned: LearnedPositions,
        *,
        num_heads: int,
        temperature: float,
        absolute: bool,
    ) -> None:
        super().__init__()
        self.head_dim = learned.embed_dim // num_heads
        if self.head_dim % 4:
            raise InvalidOption(
                f"{name} needs heads whose width is a multiple of 4, got {self.head_dim} "
                f"({learned.embed_dim} / {num_heads})"
            )
        if type(temperature) not in (int, float) or not 1 < temperature < float("inf"):
            raise InvalidOption(f"temperature must be a number above 1, got {temperature!r}")
        if not isinstance(absolute, bool):
            raise InvalidOption(f"absolute must be true or false, got {absolute!r}")
        self.num_prefix_tokens = learned.num_prefix_tokens
        self.temperature = temperature
        self.absolute = absolute
        self.learned = learned

    def initial_table(self, grid_size: Size) -> Tensor | None:
        return self.learned.initial_table(grid_size) if self.absolute else None

    def resample(self, table: Tensor | None, old: Size, new: Size) -> Tensor | None:
        return table if table is None else self.learned.resample(table, old, new)

    def forward(self, tokens: Tensor, table: Tensor | None = None, layer: int = 0) -> Tensor:
        return tokens if table is None else self.learned(tokens, table, layer)


class RotaryPositions(RotaryBase):
    """Rotates queries and keys of the patch tokens in every block (axial RoPE).

    The head_dim / 2 pairs of a head's numbers are rotated: one half of the pairs by the row of the
    patch, the other half by its column. Pair i of the q = head_dim / 4 pairs of an axis is rotated
    by the angle `coordinate * temperature ** (-i / q)`. Prefix tokens are not rotated.

    Shapes: queries and keys (b, heads, p + n, head_dim); tokens and result (b, p + n, d).

    Args:
        grid_size: (h, w) in patches.
        num_prefix_tokens, embed_dim, num_heads: p, d and the number of heads;
            head_dim = d / num_heads is a multiple of 4.
        temperature: ratio of the highest frequency to the one below the lowest.
        coordinates: `centered`: middles of the patches, 2 pi times -1 to 1 over each side, as in
            DINOv3; `index`: 0, 1, 2, ..., as in EVA.
        reference_grid: `index` coordinates are scaled to the length of this (h, w) grid, that of
            pre-training; None: not scaled.
        offset: is added to `index` coordinates before they are scaled.
        indexing: `yx`: rows rotate the first half of the pairs, columns the second; `xy`: columns
            the first, rows the second.
        periods: type to which `temperature ** (i / q)`, which divides the coordinate, is rounded:
            `float32`, or `bfloat16` as in the files that Meta published of DINOv3.
        layout: `half`: elements i and i + head_dim / 2 are a pair; `interleaved`: neighbours are.
        absolute: whether a learned table is added at the stem, as in EVA-02.
        prefix, resample: options of that table, see `LearnedPositions`.

    Raises:
        InvalidOption: head_dim is no multiple of 4, or an option has an impossible value.

    Source: arXiv:2104.09864; compared with timm's `RotaryEmbeddingDinoV3` and
    `RotaryEmbeddingCat`.
    """

    sine: Tensor
    cosine: Tensor

    def __init__(
        self,
        *,
        grid_size: Size,
        num_prefix_tokens: int,
        embed_dim: int,
        num_heads: int,
        temperature: float = 100.0,
        coordinates: str = "centered",
        reference_grid: int | Size | None = None,
        offset: float = 0.0,
        indexing: str = "yx",
        periods: str = "float32",
        layout: str = "half",
        absolute: bool = False,
        prefix: bool = True,
        resample: str = "bicubic_antialias",
    ) -> None:
        learned = LearnedPositions(
            num_prefix_tokens=num_prefix_tokens,
            embed_dim=embed_dim,
            prefix=prefix,
            resample=resample,
        )
        super().__init__(
            "rope", learned, num_heads=num_heads, temperature=temperature, absolute=absolute
        )
        check_choice("coordinates", coordinates, COORDINATES)
        check_choice("indexing", indexing, INDEXING)
        check_choice("periods", periods, PERIODS)
        check_choice("layout", layout, LAYOUTS)
        if reference_grid is not None and coordinates != "index":
            raise InvalidOption("reference_grid applies only to coordinates='index'; leave it out")
        if type(offset) not in (int, float) or not abs(offset) < float("inf"):
            raise InvalidOption(f"offset must be a number, got {offset!r}")
        if offset and coordinates != "index":
            raise InvalidOption("offset applies only to coordinates='index'; leave it out")
        self.coordinates = coordinates
        self.reference: Size | None = None
        if reference_grid is not None:
            self.reference = pair(reference_grid, "reference_grid", InvalidOption)
        self.offset = offset
        self.indexing = indexing
        self.periods = periods
        self.layout = layout
        for name, values in zip(("sine", "cosine"), self._waves(grid_size), strict=True):
            self.register_buffer(name, values, persistent=False)

    def to_grid(self, grid_size: Size) -> None:
        sine, cosine = self._waves(grid_size)
        self.sine, self.cosine = sine.to(self.sine), cosine.to(self.cosine)

    def rotate(self, x: Tensor, layer: int = 0) -> Tensor:
        """Rotate (b, heads, p + n, head_dim) queries or keys, by the same angles in every block."""
        return rotate_pairs(x, self.sine, self.cosine, self.num_prefix_tokens, self.layout)

    def _waves(self, grid_size: Size) -> tuple[Tensor, Tensor]:
        # On the CPU even inside `torch.device("meta")`: computed angles are in no checkpoint.
        quarter = self.head_dim // 4
        steps = torch.arange(quarter, dtype=torch.float32, device="cpu") / quarter
        frequency = self.temperature**-steps  # (head_dim / 4,)
        if self.periods == "bfloat16":
            frequency = 1 / (self.temperature**steps).bfloat16().float()
        y, x = (self._coordinates(grid_size, axis) for axis in (0, 1))
        y = torch.outer(y.repeat_interleave(grid_size[1]), frequency)  # (n, head_dim / 4)
        x = torch.outer(x.repeat(grid_size[0]), frequency)  # (n, head_dim / 4)
        angles = torch.cat((y, x) if self.indexing == "yx" else (x, y), dim=1)  # (n, head_dim / 2)
        half = self.layout == "half"
        angles = angles.repeat(1, 2) if half else angles.repeat_interleave(2, dim=1)
        return angles.sin(), angles.cos()  # (n, head_dim) each

    def _coordinates(self, grid_size: Size, axis: int) -> Tensor:
        length = grid_size[axis]
        steps = torch.arange(length, dtype=torch.float32, device="cpu")
        if self.coordinates == "centered":
            return 2 * math.pi * (2 * ((steps + 0.5) / length) - 1)
        steps = steps + self.offset
        return steps if self.reference is None else steps / length * self.reference[axis]


def rotate_pairs(
    x: Tensor, sine: Tensor, cosine: Tensor, num_prefix_tokens: int, layout: str
) -> Tensor:
    """Rotate the pairs of the patch tokens of queries or keys x, (b, heads, p + n, head_dim).

    `sine` and `cosine` belong to the angle of each element: (n, head_dim), or (heads, n, head_dim).
    """
    prefix, patches = x.tensor_split((num_prefix_tokens,), dim=2)
    if layout == "half":
        first, second = patches.chunk(2, dim=-1)
        partners = torch.cat((-second, first), dim=-1)
    else:
        partners = torch.stack((-patches[..., 1::2], patches[..., ::2]), dim=-1).flatten(-2)
    patches = patches * cosine + partners * sine
    return torch.cat((prefix, patches.to(x.dtype)), dim=2)


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
        learned = LearnedPositions(
            num_prefix_tokens=num_prefix_tokens,
            embed_dim=embed_dim,
            prefix=False,
            resample=resample,
        )
        super().__init__(
            "rope_mixed", learned, num_heads=num_heads, temperature=temperature, absolute=absolute
        )
        self.freqs = nn.Parameter(_directions(depth, num_heads, self.head_dim, temperature))
        for name, values in zip(("row", "column"), _indices(grid_size), strict=True):
            self.register_buffer(name, values, persistent=False)

    def to_grid(self, grid_size: Size) -> None:
        row, column = _indices(grid_size)
        self.row, self.column = row.to(self.row), column.to(self.column)

    def rotate(self, x: Tensor, layer: int = 0) -> Tensor:
        """Rotate the (b, heads, p + n, head_dim) queries or keys of block `layer`."""
        across, down = self.freqs[:, layer, :, None].unbind()  # (heads, 1, head_dim / 2) each
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
