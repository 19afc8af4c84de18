"""Rotary position embedding: turns queries and keys by angles that tell row and column."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts.pos_embed import LearnedPositions, Size
from vitzoo.schema.reader import pair

COORDINATES = ("centered", "index")
LAYOUTS = ("half", "interleaved")
INDEXING = ("yx", "xy")


class RotaryPositions(nn.Module):
    """Rotates the patch tokens' queries and keys in every block (axial RoPE).

    A quarter of each head's width has one frequency per pair for the row, a quarter for the column;
    frequency i of q turns by `coordinate * temperature ** (-i / q)`. Prefix tokens are not turned.

    Shapes: queries and keys (b, heads, p + n, head_dim); tokens and result (b, p + n, d).

    Args:
        grid_size: (h, w) patches.
        num_prefix_tokens: p, tokens before the patches.
        embed_dim: d.
        num_heads: heads; head_dim = d / heads is a multiple of 4.
        temperature: ratio of the highest frequency to the one that would follow the lowest.
        coordinates: `centered`: 2 pi times -1 to 1 over each side, the patches' middles counting,
            as in DINOv3; `index`: 0, 1, 2, ... as in EVA.
        reference_grid: (h, w) grid to whose length `index` coordinates are scaled, the one of
            pre-training; None leaves them.
        offset: added to `index` coordinates, before they are scaled.
        indexing: `yx`: rows turn the first half of the pairs, columns the second; `xy`: the
            other way round.
        layout: `half`: element i pairs with i + head_dim / 2; `interleaved`: with its neighbour.
        absolute: whether a learned table is added at the stem too, as in EVA-02.
        prefix: whether that table has rows for the prefix tokens.
        resample: how that table follows another grid.

    Raises:
        InvalidOption: head_dim is no multiple of 4, or an option has another value.

    Source: arXiv:2104.09864; numbers checked against timm's `RotaryEmbeddingDinoV3` and
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
        layout: str = "half",
        absolute: bool = False,
        prefix: bool = True,
        resample: str = "bicubic_antialias",
    ) -> None:
        super().__init__()
        self.head_dim = check_head_dim("rope", embed_dim, num_heads)
        check_temperature(temperature)
        if not isinstance(absolute, bool):
            raise InvalidOption(f"absolute must be true or false, got {absolute!r}")
        _check_choice("coordinates", coordinates, COORDINATES)
        _check_choice("indexing", indexing, INDEXING)
        _check_choice("layout", layout, LAYOUTS)
        self.num_prefix_tokens = num_prefix_tokens
        self.temperature = temperature
        self.coordinates = coordinates
        self.reference = _reference(reference_grid, coordinates)
        self.offset = _offset(offset, coordinates)
        self.indexing = indexing
        self.layout = layout
        self.learned = LearnedPositions(
            num_prefix_tokens=num_prefix_tokens,
            embed_dim=embed_dim,
            prefix=prefix,
            resample=resample,
        )
        self.absolute = absolute
        for name, values in zip(("sine", "cosine"), self._waves(grid_size), strict=True):
            self.register_buffer(name, values, persistent=False)

    def initial_table(self, grid_size: Size) -> Tensor | None:
        """Return the learned table to start from, None where there is none."""
        return self.learned.initial_table(grid_size) if self.absolute else None

    def resample(self, table: Tensor | None, old: Size, new: Size) -> Tensor | None:
        """Return the learned table for another grid."""
        return table if table is None else self.learned.resample(table, old, new)

    def to_grid(self, grid_size: Size) -> None:
        """Compute the angles of another grid."""
        sine, cosine = self._waves(grid_size)
        self.sine, self.cosine = sine.to(self.sine), cosine.to(self.cosine)

    def forward(self, tokens: Tensor, table: Tensor | None = None, layer: int = 0) -> Tensor:
        """Add the learned table, if there is one, to the (b, p + n, d) tokens."""
        return tokens if table is None else self.learned(tokens, table, layer)

    def rotate(self, x: Tensor, layer: int = 0) -> Tensor:
        """Turn (b, heads, p + n, head_dim) queries or keys, in every block alike."""
        return turn(x, self.sine, self.cosine, self.num_prefix_tokens, self.layout)

    def _waves(self, grid_size: Size) -> tuple[Tensor, Tensor]:
        # On the CPU even inside `torch.device("meta")`: what is computed cannot be loaded later.
        quarter = self.head_dim // 4
        steps = torch.arange(quarter, dtype=torch.float32, device="cpu") / quarter
        frequency = self.temperature**-steps  # (head_dim / 4,)
        y, x = (self._coordinates(grid_size, axis) for axis in (0, 1))
        y = torch.outer(y.repeat_interleave(grid_size[1]), frequency)  # (n, head_dim / 4)
        x = torch.outer(x.repeat(grid_size[0]), frequency)  # (n, head_dim / 4)
        angles = torch.cat((y, x) if self.indexing == "yx" else (x, y), dim=1)  # (n, head_dim / 2)
        if self.layout == "half":
            angles = angles.repeat(1, 2)
        else:
            angles = angles.repeat_interleave(2, dim=1)
        return angles.sin(), angles.cos()  # (n, head_dim) each

    def _coordinates(self, grid_size: Size, axis: int) -> Tensor:
        length = grid_size[axis]
        steps = torch.arange(length, dtype=torch.float32, device="cpu")
        if self.coordinates == "centered":
            return 2 * math.pi * (2 * ((steps + 0.5) / length) - 1)
        steps = steps + self.offset
        return steps if self.reference is None else steps / length * self.reference[axis]


def turn(x: Tensor, sine: Tensor, cosine: Tensor, num_prefix_tokens: int, layout: str) -> Tensor:
    """Turn the pairs of the patch tokens of queries or keys.

    Args:
        x: (b, heads, p + n, head_dim).
        sine, cosine: of each element's angle, (n, head_dim) or (heads, n, head_dim).
        num_prefix_tokens: p, tokens that stay as they are.
        layout: which elements are a pair, a name of `LAYOUTS`.
    """
    prefix, patches = x.tensor_split((num_prefix_tokens,), dim=2)
    patches = patches * cosine + _quarter_turn(patches, layout) * sine
    return torch.cat((prefix, patches.to(x.dtype)), dim=2)


def check_head_dim(name: str, embed_dim: int, num_heads: int) -> int:
    """Return the width of a head, or raise InvalidOption if its pairs have no two axes."""
    head_dim = embed_dim // num_heads
    if head_dim % 4:
        raise InvalidOption(
            f"{name} needs heads whose width is a multiple of 4, got {head_dim} "
            f"({embed_dim} / {num_heads})"
        )
    return head_dim


def check_temperature(temperature: float) -> None:
    """Raise InvalidOption unless frequencies fall with it."""
    if type(temperature) not in (int, float) or not 1 < temperature < float("inf"):
        raise InvalidOption(f"temperature must be a number above 1, got {temperature!r}")


def _quarter_turn(x: Tensor, layout: str) -> Tensor:
    if layout == "half":
        first, second = x.chunk(2, dim=-1)
        return torch.cat((-second, first), dim=-1)
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def _reference(grid: int | Size | None, coordinates: str) -> Size | None:
    if grid is None:
        return None
    if coordinates != "index":
        raise InvalidOption("reference_grid scales coordinates='index'; leave it out here")
    return pair(grid, "reference_grid", InvalidOption)


def _offset(offset: float, coordinates: str) -> float:
    if type(offset) not in (int, float) or not abs(offset) < float("inf"):
        raise InvalidOption(f"offset must be a number, got {offset!r}")
    if offset and coordinates != "index":
        raise InvalidOption("offset shifts coordinates='index'; leave it out here")
    return offset


def _check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidOption(f"{what} must be one of {', '.join(choices)}, got {value!r}")
