"""Checks of pools against `vitzoo.parts.Pool`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.factory import create
from vitzoo.testing.subject import GRIDS, PREFIX, ModuleSubject, draw, fill, shape_of

__tracebackhide__ = True
CALL = "a call (tokens, num_prefix_tokens, grid_size) returns (b, d), or (b, t, d) with tokens = t"
NORM = "True: the final norm is applied to the tokens; False: it is applied to the pooled vector"
READS = (
    "set reads to the number of tokens, from the first, that the result depends on; leave it out "
    "if the result depends on all tokens"
)
ARGUMENTS = "compute from the arguments of the call; set_input_size changes the grid"


class Pool(ModuleSubject):
    """A pool under test."""

    field_of_spec = "pool"
    numbers = ("num_prefix_tokens", "class_token", "embed_dim")
    usual = ("num_heads", "mlp_dim", "norm_eps", "activation")

    def wrap(self, part: nn.Module) -> nn.Module:
        """Return a module that calls the pool with the numbers of the network."""
        return Pooled(part, self.sizes.grid_size)

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw (b, p + n, d) tokens."""
        return (self.tokens(self.sizes.grid_size, batch=batch),)

    def tokens(self, grid: tuple[int, int], prefix: int = PREFIX, batch: int = 2) -> Tensor:
        """Draw (b, p + n, d) tokens of a grid."""
        return draw(batch, prefix + grid[0] * grid[1], self.sizes.embed_dim)

    def in_network(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a spec without classes for a pool of several tokens."""
        spec, ready = super().in_network()
        several = getattr(self.part(), "tokens", None)  # the core's classifiers read one vector
        return spec | ({"num_classes": 0} if several else {}), ready


class Pooled(nn.Module):
    """A pool, called with `PREFIX` prefix tokens and one grid.

    Shapes: tokens (b, p + n, d) to (b, d) or (b, t, d).
    """

    def __init__(self, pool: nn.Module, grid_size: tuple[int, int]) -> None:
        super().__init__()
        self.pool = pool
        self.grid_size = grid_size

    def forward(self, tokens: Tensor) -> Any:
        """Pool the tokens, after the neck of the pool if it has one."""
        neck = getattr(self.pool, "neck", None)
        if neck is not None:
            tokens = neck(tokens, PREFIX, self.grid_size)
        return self.pool(tokens, PREFIX, self.grid_size)


def check_attributes(subject: Pool) -> None:
    """`norm_first` is a bool. `tokens` and `reads`, if the pool has them, are positive integers or
    None.
    """
    part = subject.part()
    problem = f"norm_first is {part.norm_first!r}, expected True or False"
    subject.require(isinstance(part.norm_first, bool), problem, NORM)
    for name in ("tokens", "reads"):
        value = getattr(part, name, None)
        problem = f"{name} is {value!r}, expected an integer of at least 1"
        good = value is None or (type(value) is int and value > 0)
        subject.require(good, problem, f"set {name} to a number of tokens, or leave it out")


def check_outputs(subject: Pool) -> None:
    """For every grid and number of prefix tokens the result is (b, d), or (b, t, d) for a pool with
    `tokens = t`.
    """
    for prefix in (1, PREFIX, 5):
        part: Any = fill(subject.part(num_prefix_tokens=prefix))
        several = getattr(part, "tokens", None)
        expected = (2, *((several,) if several else ()), subject.sizes.embed_dim)
        for grid in GRIDS:
            what = f"given {prefix} prefix tokens and a {grid[0]}x{grid[1]} grid"
            with torch.no_grad(), subject.doing(what, CALL):
                shape = shape_of(part(subject.tokens(grid, prefix), prefix, grid))
            subject.require(
                shape == expected, f"{what}, it gives {shape}, expected {expected}", CALL
            )


def check_reads(subject: Pool) -> None:
    """The result of a pool with `reads = r` is the same when the tokens after the first r change or
    are missing.
    """
    part: Any = fill(subject.part())
    reads = getattr(part, "reads", None)
    if reads is None:
        return
    grid = subject.sizes.grid_size
    tokens = subject.tokens(grid)
    others = torch.cat((tokens[:, :reads], draw(*tokens[:, reads:].shape, seed=7)), dim=1)
    what = f"given its first {reads} tokens alone"
    with torch.no_grad(), subject.doing(what, READS):
        expected = part(tokens, PREFIX, grid)
        changed, alone = part(others, PREFIX, grid), part(tokens[:, :reads], PREFIX, grid)
    problem = f"reads = {reads}, but other tokens change its result"
    subject.require_same(changed, expected, problem, READS)
    subject.require_same(alone, expected, f"{what}, it gives other numbers", READS)


def check_network(subject: Pool) -> None:
    """A network with the pool gives the same numbers with and without gradients. After
    `set_input_size` it gives the numbers of a network that was built for that size.

    With gradients it gets all tokens here, without gradients only those that the pool reads.
    """
    spec, ready = subject.in_network()
    with subject.doing("a network is created with it"):
        model: Any = fill(create(spec, **ready))
    for grid in (subject.sizes.grid_size, (5, 4)):
        resized = subject.changed(grid_size=grid)
        model.set_input_size(resized.sizes.image_size)
        images = resized.images()
        with subject.doing(f"a network with a {grid[0]}x{grid[1]} grid uses it", ARGUMENTS):
            expected = model.forward_head(model.forward_features(images))
            with torch.no_grad():
                result = model(images)
                size, (_, ready) = list(model.image_size), subject.in_network()
                fresh: Any = create(spec | {"image_size": size}, **ready)
                fresh.load_state_dict(model.state_dict(), strict=True)
                built = fresh.eval()(images)
        problem = "without gradients, a network with it gives other numbers"
        subject.require_same(result, expected, problem, READS)
        problem = "after set_input_size it differs from one built for that size"
        subject.require_same(built, expected, problem, ARGUMENTS)
