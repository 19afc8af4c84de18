"""Checks of position embeddings against `vitzoo.parts.PositionEmbedding`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.testing.subject import GRIDS, PREFIX, ModuleSubject, draw, flat, shape_of

__tracebackhide__ = True
TABLE = (
    "initial_table(grid_size) returns a tensor (l, rows, width), or None if the part has no table"
)
NEW = "make a new table in each call, or networks would share what they learn"
RESAMPLE = (
    "resample(table, old, new) returns a table of the shape of initial_table(new), with the dtype "
    "and the device of table; vitzoo checks a file on meta before it reads the data"
)
TO_GRID = "to_grid(grid_size) recomputes everything that depends on the grid; dtype and device stay"
SHAPES = "forward keeps the shape (b, p + n, d), rotate keeps (b, heads, p + n, head_dim)"
BIAS = (
    "return (heads, p + n, p + n), or a function from queries (b, heads, t, head_dim) to "
    "(b, heads, t, p + n)"
)
QUERY = (
    "compute each row of the bias from its query alone; the last block computes only the tokens "
    "that the pool reads"
)


class PositionEmbedding(ModuleSubject):
    """A position embedding under test."""

    field_of_spec = "pos_embed"
    numbers = ("grid_size", "num_prefix_tokens", "embed_dim", "num_heads", "depth")

    def wrap(self, part: nn.Module) -> nn.Module:
        """Return a module of the part and its table."""
        return Positioned(part, self.sizes.grid_size, self.sizes.depth)

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw (b, p + n, d) tokens, and (b, heads, p + n, head_dim) queries if it uses them."""
        return self.tokens(self.sizes.grid_size, PREFIX, batch)

    def tokens(self, grid: tuple[int, int], prefix: int, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw tokens of a grid, and queries if the part has `rotate` or its bias uses them."""
        sizes, count = self.sizes, prefix + grid[0] * grid[1]
        tokens, part = draw(batch, count, sizes.embed_dim), self.part()
        uses_queries = hasattr(part, "rotate")
        if not uses_queries and hasattr(part, "attention_bias"):
            with self.doing("asked for its attention bias"):
                bias = part.attention_bias(part.initial_table(sizes.grid_size), 0)
            uses_queries = not isinstance(bias, Tensor)
        if not uses_queries:
            return (tokens,)
        head_dim = sizes.embed_dim // sizes.num_heads
        return tokens, draw(batch, sizes.num_heads, count, head_dim, seed=3)


class Positioned(nn.Module):
    """A position embedding and its table.

    Shapes: tokens (b, p + n, d) to the same, after all layers. If the part has `rotate` or
    `attention_bias`, their results for every layer follow.
    """

    def __init__(self, positions: Any, grid_size: tuple[int, int], depth: int) -> None:
        super().__init__()
        table = positions.initial_table(grid_size)
        self.pos_embed = None if table is None else nn.Parameter(table)
        self.positions = positions
        self.depth = depth

    def forward(self, tokens: Tensor, queries: Tensor | None = None) -> Any:
        """Apply the part before every layer, to the queries and in the attention."""
        part, inside = self.positions, []
        for layer in range(self.depth):
            tokens = part(tokens, self.pos_embed, layer)
            if hasattr(part, "rotate"):
                inside.append(part.rotate(queries, layer))
            if hasattr(part, "attention_bias"):
                bias = part.attention_bias(self.pos_embed, layer)
                constant = isinstance(bias, Tensor)
                inside.append(bias.expand(len(tokens), *bias.shape) if constant else bias(queries))
        return (tokens, *inside) if inside else tokens


def check_table(subject: PositionEmbedding) -> None:
    """`initial_table(grid_size)` returns a new floating-point tensor (l, rows, width) at each call,
    or always None.
    """
    part = subject.part()
    for grid in GRIDS:
        call = f"initial_table({grid})"
        with subject.doing(f"{call} is called"):
            table, again = part.initial_table(grid), part.initial_table(grid)
        if table is None:
            subject.require(again is None, f"only some calls of {call} return None", TABLE)
            continue
        good = isinstance(table, Tensor) and table.dim() == 3 and table.is_floating_point()
        said = f"a tensor {tuple(table.shape)}" if isinstance(table, Tensor) else repr(table)
        subject.require(good, f"{call} returns {said}", TABLE)
        new = table.shape == again.shape and table.data_ptr() != again.data_ptr()
        subject.require(new, f"two calls of {call} return the same tensor, or two shapes", NEW)


def check_tokens(subject: PositionEmbedding) -> None:
    """For every grid, layer and number of prefix tokens, tokens and rotated queries keep their
    shape. `attention_bias` is (heads, p + n, p + n), or a function of the queries; then each row of
    the bias depends on its query alone.
    """
    for grid in GRIDS:
        for prefix in (0, 1, 5):
            part = subject.part(grid_size=grid, num_prefix_tokens=prefix)
            tokens, *queries = subject.tokens(grid, prefix)
            table = part.initial_table(grid)
            what = f"given {prefix} prefix tokens and a {grid[0]}x{grid[1]} grid"
            with torch.no_grad(), subject.doing(what):
                layers = range(subject.sizes.depth)
                rotates = queries if hasattr(part, "rotate") else []
                pairs = [(part(tokens, table, layer), tokens) for layer in layers]
                pairs += [(part.rotate(x, layer), x) for layer in layers for x in rotates]
                lower = [part.rotate(x.bfloat16(), 0) for x in rotates]
                pairs += zip(lower, rotates, strict=True)
            for result, given in pairs:
                problem = f"{what}, {tuple(given.shape)} becomes {tuple(result.shape)}"
                subject.require(result.shape == given.shape, problem, SHAPES)
            for x in lower:
                problem = f"rotate returns {x.dtype} for bfloat16 queries, which autocast gives it"
                subject.require(x.dtype == torch.bfloat16, problem, "end with .to(x.dtype)")
            if hasattr(part, "attention_bias"):
                _require_bias(subject, part, table, tokens.shape[1], queries)


def check_resample(subject: PositionEmbedding) -> None:
    """`resample` returns a table for another grid, also on `meta`, and keeps dtype and device. For
    its own grid it returns the same numbers.
    """
    for old, new in ((GRIDS[0], GRIDS[1]), (GRIDS[0], GRIDS[3]), (GRIDS[3], GRIDS[2])):
        part = subject.part(grid_size=old)
        table, wanted = part.initial_table(old), part.initial_table(new)
        what = f"its table is resampled from {old} to {new}"
        with torch.no_grad(), subject.doing(what):
            moved, kept = part.resample(table, old, new), part.resample(table, old, old)
        if table is None:
            subject.require(moved is None, "resample(None, ...) returns a table", RESAMPLE)
            continue
        shape = tuple(wanted.shape)
        problem = f"when {what}, it is {shape_of(moved)}, expected {shape}"
        subject.require(shape_of(moved) == shape, problem, RESAMPLE)
        problem = "resampled to its own grid, its table changes"
        subject.require_same(kept, table, problem, RESAMPLE)
        for like in (table.double(), table.bfloat16(), table.to("meta")):
            kind = f"{like.dtype} on {like.device}"
            with subject.doing(f"{what} in {kind}", RESAMPLE):
                again = part.resample(like, old, new)
            found = f"{again.dtype} on {again.device}"
            problem = f"when {what} in {kind}, it is {found}, {tuple(again.shape)}"
            subject.require((found, again.shape) == (kind, wanted.shape), problem, RESAMPLE)


def check_to_grid(subject: PositionEmbedding) -> None:
    """After `to_grid`, the part gives the same numbers as a part that was built for that grid, in
    its own dtype.
    """
    old, new = subject.sizes.grid_size, (5, 4)
    moved: Any = subject.module().double()
    built: Any = Positioned(subject.part(grid_size=new), new, subject.sizes.depth).double().eval()
    state = copy.deepcopy(moved.positions.state_dict())
    with torch.no_grad(), subject.doing(f"moved from the grid {old} to {new}", TO_GRID):
        table = moved.positions.resample(moved.pos_embed, old, new)
        moved.positions.to_grid(new)
        built.positions.load_state_dict(state, strict=True)
        for module in (moved, built):
            module.pos_embed = None if table is None else nn.Parameter(table)
        given = [x.double() for x in subject.tokens(new, PREFIX)]
        results, expected = flat(moved(*given)), flat(built(*given))
    after = f"after to_grid({new})"
    problem = f"{after} it differs from a part built for that grid"
    subject.require_same(results, expected, problem, TO_GRID)
    types = ", ".join(sorted({str(x.dtype) for x in results}))
    problem = f"{after} of a float64 part, results are {types}"
    subject.require(types == "torch.float64", problem, TO_GRID)


def _require_bias(
    subject: PositionEmbedding, part: Any, table: Any, count: int, queries: list[Tensor]
) -> None:
    expected = (subject.sizes.num_heads, count, count)
    what = f"asked for the attention bias of {count} tokens"
    for layer in range(subject.sizes.depth):
        with torch.no_grad(), subject.doing(what):
            bias = part.attention_bias(table, layer)
            if not isinstance(bias, Tensor):
                rows, (whole,) = bias, queries
                bias = rows(whole)
                for first in (1, count // 2, count - 1):
                    some = rows(whole[:, :, :first])
                    problem = f"the bias of {first} of {count} queries changes without the others"
                    subject.require_same(some, bias[:, :, :first], problem, QUERY)
                bias = bias[0]
        problem = f"{what}, it gives {tuple(bias.shape)}, expected {expected}"
        subject.require(tuple(bias.shape) == expected, problem, BIAS)
