"""Pools against `vitzoo.parts.protocols.Pool`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.factory import create
from vitzoo.parts import protocols
from vitzoo.testing.modules import draw_images
from vitzoo.testing.patch_embed import require_module
from vitzoo.testing.positions import GRIDS, PREFIX
from vitzoo.testing.subject import ModuleSubject, doing, draw, fill, require, require_same

CALL = (
    "call (tokens, num_prefix_tokens, grid_size) returns (b, d), or (b, t, d) with the attribute "
    "tokens = t"
)
READS = (
    "reads is the number of tokens, from the first, that the result depends on; leave it out if "
    "it depends on all"
)
WHOLE = "compute from the arguments of the call; the grid changes with set_input_size"


class Pool(ModuleSubject):
    """A pool under test."""

    kind = "pool"
    field_of_spec = "pool"
    numbers = ("num_prefix_tokens", "class_token", "embed_dim")
    usual = ("num_heads", "mlp_dim", "norm_eps", "activation")

    def number(self, name: str) -> Any:
        """Return one of the network's numbers."""
        known = {
            "num_prefix_tokens": PREFIX,
            "class_token": True,
            "mlp_dim": 2 * self.sizes.embed_dim,
            "norm_eps": 1e-6,
            "activation": "gelu",
        }
        return known[name] if name in known else super().number(name)

    def module(self, *, filled: bool = True) -> nn.Module:
        """Build the part with the prefix tokens and the grid that a network gives it."""
        made = Pooled(self.part(), self.sizes.grid_size)
        return fill(made) if filled else made

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw (b, p + n, d) tokens."""
        return (self.tokens(self.sizes.grid_size, batch=batch),)

    def tokens(self, grid: tuple[int, int], prefix: int = PREFIX, batch: int = 2) -> Tensor:
        """Draw (b, p + n, d) tokens of a grid."""
        return draw(batch, prefix + grid[0] * grid[1], self.sizes.embed_dim)

    def in_network(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a spec with as many prefix tokens as the part is built for."""
        spec, ready = super().in_network()
        spec |= {"num_registers": PREFIX - 1}
        several = getattr(self.part(), "tokens", None)  # a classifier of the core reads one vector
        return spec | ({"num_classes": 0} if several else {}), ready


class Pooled(nn.Module):
    """A pool that is given the prefix tokens and the grid.

    Shapes: tokens (b, p + n, d) to (b, d) or (b, t, d).
    """

    def __init__(self, pool: Any, grid_size: tuple[int, int]) -> None:
        super().__init__()
        self.pool = pool
        self.grid_size = grid_size

    def forward(self, tokens: Tensor) -> Any:
        """Pool the tokens."""
        return self.pool(tokens, PREFIX, self.grid_size)


def check_protocol(subject: Pool) -> None:
    """It is a module with `norm_first`, and the numbers it states are counts."""
    __tracebackhide__ = True
    part = subject.part()
    require_module(subject, part, protocols.Pool)
    require(
        isinstance(part.norm_first, bool),
        f"{subject}: norm_first is {part.norm_first!r}",
        "norm_first = True: the final norm acts on the tokens; False: on the pooled vector",
    )
    for name in ("tokens", "reads"):
        value = getattr(part, name, None)
        require(
            value is None or (type(value) is int and value > 0),
            f"{subject}: {name} is {value!r}",
            f"{name} is a number of tokens, at least 1; leave it out if it does not apply",
        )


def check_outputs(subject: Pool) -> None:
    """It gives (b, d), or (b, t, d), for every grid and number of prefix tokens."""
    __tracebackhide__ = True
    for prefix in (1, PREFIX, 5):
        part: Any = fill(subject.part(num_prefix_tokens=prefix))
        several = getattr(part, "tokens", None)
        expected = (2, *((several,) if several else ()), subject.sizes.embed_dim)
        for grid in GRIDS:
            what = f"given {prefix} prefix tokens and a {grid[0]}x{grid[1]} grid"
            with torch.no_grad(), doing(subject, what, CALL):
                result = part(subject.tokens(grid, prefix), prefix, grid)
            shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            said = f"{subject}: {what}, it gives {shape}, expected {expected}"
            require(shape == expected, said, CALL)


def check_reads(subject: Pool) -> None:
    """The tokens after the first `reads` do not change the result, and need not be there."""
    __tracebackhide__ = True
    part: Any = fill(subject.part())
    reads = getattr(part, "reads", None)
    if reads is None:
        return
    grid = subject.sizes.grid_size
    tokens = subject.tokens(grid)
    others = torch.cat((tokens[:, :reads], draw(*tokens[:, reads:].shape, seed=7)), dim=1)
    with torch.no_grad(), doing(subject, f"given its first {reads} tokens alone", READS):
        expected = part(tokens, PREFIX, grid)
        results = part(others, PREFIX, grid), part(tokens[:, :reads], PREFIX, grid)
    require_same(results[0], expected, f"{subject}: reads = {reads}, but it reads others", READS)
    problem = f"{subject}: given its first {reads} tokens alone, it gives other numbers"
    require_same(results[1], expected, problem, READS)


def check_network(subject: Pool) -> None:
    """A network with it gives the same with and without gradients, before and after a new size.

    Without gradients the last block computes only the tokens that the pool reads.
    """
    __tracebackhide__ = True
    spec, ready = subject.in_network()
    with doing(subject, "a network is created with it"):
        model: Any = fill(create(spec, **ready))
    for grid in (subject.sizes.grid_size, (5, 4)):
        resized = subject.changed(grid_size=grid)
        model.set_input_size(resized.sizes.image_size)
        images = draw_images(resized)
        with doing(subject, f"a network with a {grid[0]}x{grid[1]} grid uses it", WHOLE):
            expected = model(images)
            with torch.no_grad():
                result = model(images)
                fresh = _another(subject, model)
                built = fresh(images)
        problem = f"{subject}: without gradients a network with it gives other numbers"
        require_same(result, expected, problem, READS)
        problem = f"{subject}: after set_input_size it differs from one built for that size"
        require_same(built, expected, problem, WHOLE)


def _another(subject: Pool, model: Any) -> Any:
    """Build a network of the size that a network was moved to, with its weights."""
    spec, ready = subject.in_network()
    fresh: Any = create(spec | {"image_size": list(model.image_size)}, **ready)
    fresh.load_state_dict(model.state_dict(), strict=True)
    return fresh.eval()
