"""Position embeddings against `vitzoo.parts.PositionEmbedding`."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.parts import protocols
from vitzoo.testing.patch_embed import require_module
from vitzoo.testing.subject import ModuleSubject, doing, draw, fill, require, require_same

PREFIX = 2
GRIDS = ((2, 4), (4, 2), (3, 3), (5, 4))
TABLE = (
    "initial_table(grid_size) returns a tensor (l, rows, width), or None where nothing is learned"
)
RESAMPLE = "resample(table, old, new) returns a table of the shape of initial_table(new)"
TO_GRID = "to_grid(grid_size) recomputes what depends on the grid, keeping type and device"


class PositionEmbedding(ModuleSubject):
    """A position embedding under test."""

    kind = "position embedding"
    field_of_spec = "pos_embed"
    numbers = ("grid_size", "num_prefix_tokens", "embed_dim", "num_heads", "depth")

    def number(self, name: str) -> Any:
        """Return one of the network's numbers."""
        return PREFIX if name == "num_prefix_tokens" else super().number(name)

    def module(self, *, filled: bool = True) -> nn.Module:
        """Build the part together with its table."""
        made = Positioned(self.part(), self.sizes.grid_size, self.sizes.depth)
        return fill(made) if filled else made

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw (b, p + n, d) tokens, and (b, heads, p + n, head_dim) queries if it takes them."""
        return inputs(self, self.sizes.grid_size, PREFIX, batch)

    def in_network(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a spec with as many prefix tokens as the part is built for."""
        spec, ready = super().in_network()
        return spec | {"num_registers": PREFIX - 1}, ready


class Positioned(nn.Module):
    """A position embedding with its table, as the network holds them.

    Shapes: tokens (b, p + n, d) to the same after all layers, with queries of all layers where it
    rotates, and what it adds to the attention where it does.
    """

    def __init__(self, positions: Any, grid_size: tuple[int, int], depth: int) -> None:
        super().__init__()
        table = positions.initial_table(grid_size)
        self.pos_embed = None if table is None else nn.Parameter(table)
        self.positions = positions
        self.depth = depth

    def forward(self, tokens: Tensor, queries: Tensor | None = None) -> Any:
        """Act before every layer, on the queries and in the attention."""
        inside: list[Tensor] = []
        for layer in range(self.depth):
            tokens = self.positions(tokens, self.pos_embed, layer)
            inside += acts(self.positions, self.pos_embed, layer, queries, len(tokens))
        return (tokens, *inside) if inside else tokens


def check_protocol(subject: PositionEmbedding) -> None:
    """It is a module with `initial_table`, `resample` and `to_grid`."""
    __tracebackhide__ = True
    require_module(subject, subject.part(), protocols.PositionEmbedding)


def check_table(subject: PositionEmbedding) -> None:
    """The table to start from is fresh, fits the grid asked for and is (l, rows, width)."""
    __tracebackhide__ = True
    part = subject.part()
    for grid in GRIDS:
        with doing(subject, f"asked for its table for the grid {grid}"):
            table, again = part.initial_table(grid), part.initial_table(grid)
        if table is None:
            require(again is None, f"{subject}: has a table once and once not", TABLE)
            continue
        good = isinstance(table, Tensor) and table.dim() == 3 and table.is_floating_point()
        said = f"a tensor {tuple(table.shape)}" if isinstance(table, Tensor) else repr(table)
        require(good, f"{subject}: initial_table({grid}) gives {said}", TABLE)
        require(
            table.shape == again.shape and table.data_ptr() != again.data_ptr(),
            f"{subject}: two calls of initial_table({grid}) give one tensor, or two shapes",
            "make a fresh table in each call, or networks would share what they learn",
        )


def check_tokens(subject: PositionEmbedding) -> None:
    """Tokens keep their shape, before every layer, whatever the grid and the prefix tokens.

    What is added to the attention fits heads and tokens.
    """
    __tracebackhide__ = True
    for grid in GRIDS:
        for prefix in (0, 1, 5):
            part = subject.part(grid_size=grid, num_prefix_tokens=prefix)
            tokens, *queries = inputs(subject, grid, prefix)
            table = part.initial_table(grid)
            what = f"given {prefix} prefix tokens and a {grid[0]}x{grid[1]} grid"
            with torch.no_grad(), doing(subject, what):
                layers = range(subject.sizes.depth)
                results = [part(tokens, table, layer) for layer in layers]
                turns = queries if hasattr(part, "rotate") else []
                turned = [part.rotate(x, layer) for layer in layers for x in turns]
            expected = [tokens] * len(results) + turns * len(layers)
            for result, given in zip(results + turned, expected, strict=True):
                require(
                    result.shape == given.shape,
                    f"{subject}: {what}, {tuple(given.shape)} becomes {tuple(result.shape)}",
                    "return what came in with its shape: (b, p + n, d) tokens, and from rotate "
                    "(b, heads, p + n, head_dim)",
                )
            halves = (part.rotate(x.bfloat16(), 0) for x in turns)
            for x, given in zip(halves, turns, strict=True):
                require(
                    x.dtype == torch.bfloat16 and x.shape == given.shape,
                    f"{subject}: rotate makes {x.dtype} of bfloat16 queries, which automatic mixed "
                    "precision gives",
                    "end with .to(x.dtype), so that queries, keys and values have one type",
                )
            if hasattr(part, "attention_bias"):
                _require_bias(subject, part, grid, prefix, queries)


def check_resample(subject: PositionEmbedding) -> None:
    """A table follows another grid, with data and on `meta`, in its own type."""
    __tracebackhide__ = True
    for old, new in ((GRIDS[0], GRIDS[1]), (GRIDS[0], GRIDS[3]), (GRIDS[3], GRIDS[2])):
        part = subject.part(grid_size=old)
        table, wanted = part.initial_table(old), part.initial_table(new)
        what = f"its table is resampled from {old} to {new}"
        with torch.no_grad(), doing(subject, what):
            moved, kept = part.resample(table, old, new), part.resample(table, old, old)
        if table is None:
            require(moved is None, f"{subject}: made a table out of none", RESAMPLE)
            continue
        shape = tuple(moved.shape) if isinstance(moved, Tensor) else moved
        require(
            shape == tuple(wanted.shape),
            f"{subject}: {what} it is {shape}, expected {tuple(wanted.shape)}",
            RESAMPLE,
        )
        require_same(kept, table, f"{subject}: resampled to its own grid it changes", RESAMPLE)
        for like in (table.double(), table.bfloat16(), table.to("meta")):
            with doing(subject, f"{what} in {like.dtype} on {like.device}", RESAMPLE):
                again = part.resample(like, old, new)
            require(
                (again.shape, again.dtype, again.device) == (wanted.shape, like.dtype, like.device),
                f"{subject}: {what} in {like.dtype} on {like.device} it is {again.dtype} on "
                f"{again.device}, {tuple(again.shape)}",
                "keep the type and the device: files are checked on meta before they are read",
            )


def check_to_grid(subject: PositionEmbedding) -> None:
    """Moved to another grid, it acts as one that was built for it."""
    __tracebackhide__ = True
    old, new = subject.sizes.grid_size, (5, 4)
    moved: Any = fill(subject.part()).double()
    built: Any = subject.part(grid_size=new).double()
    state = copy.deepcopy(moved.state_dict())
    table = subject.part().initial_table(old)
    with torch.no_grad(), doing(subject, f"moved from the grid {old} to {new}", TO_GRID):
        table = moved.resample(None if table is None else table.double(), old, new)
        moved.to_grid(new)
        built.load_state_dict(state, strict=True)
        given = [x.double() for x in inputs(subject, new, PREFIX)]
        results, expected = (_everything(part, table, subject, given) for part in (moved, built))
    problem = f"{subject}: after to_grid({new}) it differs from one built for that grid"
    require_same(results, expected, problem, TO_GRID)
    types = {str(x.dtype) for x in results}
    require(types == {"torch.float64"}, f"{subject}: to_grid forgot its type, {types}", TO_GRID)


def acts(
    positions: Any, table: Tensor | None, layer: int, queries: Tensor | None, batch: int = 1
) -> list[Tensor]:
    """Return what a part does inside the attention: turned queries, its bias for each sample."""
    found = [positions.rotate(queries, layer)] if hasattr(positions, "rotate") else []
    if hasattr(positions, "attention_bias"):
        bias = positions.attention_bias(table, layer)
        constant = isinstance(bias, Tensor)
        found.append(bias.expand(batch, *bias.shape) if constant else bias(queries))
    return found


def _everything(
    part: Any, table: Tensor | None, subject: PositionEmbedding, given: list[Tensor]
) -> list[Tensor]:
    part, queries = part.eval(), given[1] if len(given) > 1 else None
    layers = range(subject.sizes.depth)
    results = [part(given[0], table, layer) for layer in layers]
    return results + [x for layer in layers for x in acts(part, table, layer, queries)]


def inputs(
    subject: PositionEmbedding, grid: tuple[int, int], prefix: int, batch: int = 2
) -> tuple[Tensor, ...]:
    """Draw tokens for a grid, and queries where the part rotates or its bias depends on them."""
    sizes, count = subject.sizes, prefix + grid[0] * grid[1]
    tokens, part = draw(batch, count, sizes.embed_dim), subject.part()
    if not hasattr(part, "rotate") and not _reads_queries(subject, part):
        return (tokens,)
    head_dim = sizes.embed_dim // sizes.num_heads
    return tokens, draw(batch, sizes.num_heads, count, head_dim, seed=3)


def _reads_queries(subject: PositionEmbedding, part: Any) -> bool:
    """Tell whether the attention bias of a part is a function of the queries."""
    if not hasattr(part, "attention_bias"):
        return False
    with doing(subject, "asked for its attention bias"):
        table = part.initial_table(subject.sizes.grid_size)
        return not isinstance(part.attention_bias(table, 0), Tensor)


def _require_bias(
    subject: PositionEmbedding,
    part: Any,
    grid: tuple[int, int],
    prefix: int,
    queries: list[Tensor],
) -> None:
    __tracebackhide__ = True
    tokens = prefix + grid[0] * grid[1]
    expected = (subject.sizes.num_heads, tokens, tokens)
    table = part.initial_table(grid)
    what = f"asked for the attention bias of {prefix} prefix tokens, grid {grid}"
    for layer in range(subject.sizes.depth):
        with torch.no_grad(), doing(subject, what):
            bias = part.attention_bias(table, layer)
            if not isinstance(bias, Tensor):
                bias = _require_rows(subject, bias, queries[0], prefix)
        require(
            tuple(bias.shape) == expected,
            f"{subject}: {what}, it gives {tuple(bias.shape)}",
            f"return (heads, p + n, p + n), here {expected}, or a function from queries "
            "(b, heads, t, head_dim) to (b, heads, t, p + n)",
        )


def _require_rows(subject: PositionEmbedding, bias: Any, queries: Tensor, prefix: int) -> Tensor:
    """Require that the first queries alone get what they get among all; return one sample's."""
    __tracebackhide__ = True
    whole: Tensor = bias(queries)
    for count in (1, prefix + 1, queries.shape[2] - 1):
        require_same(
            bias(queries[:, :, :count]),
            whole[:, :, :count],
            f"{subject}: the bias of the first {count} of {queries.shape[2]} queries differs",
            "without gradients the last block computes only the first tokens: a row of the bias "
            "depends on its query alone",
        )
    return whole[0]
