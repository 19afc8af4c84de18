"""Checks of drop-path policies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from vitzoo.errors import InvalidOption
from vitzoo.factory import create
from vitzoo.testing.subject import GIVE, Subject

__tracebackhide__ = True
DEPTHS = (1, 2, 12, 40)
RATES = "return one plain number in [0, 1) for each block, computed without torch"


class DropPathPolicy(Subject):
    """A drop-path policy under test."""

    field_of_spec = "drop_path"
    numbers = ("depth",)
    samples: ClassVar[Mapping[str, Any]] = {"rate": 0.1}

    def rates(self, depth: int) -> list[float]:
        """Return the rates for a network of `depth` blocks."""
        try:
            return list(self.build(depth=depth))
        except InvalidOption as error:
            self.fail(f"it cannot be called for {depth} blocks: {error}", GIVE)


def check_rates(subject: DropPathPolicy) -> None:
    """The policy returns one plain number in [0, 1) for each block, for 1 block and for 40, and the
    same numbers at every call.
    """
    for depth in DEPTHS:
        with subject.doing(f"called for {depth} blocks", RATES):
            rates, again = subject.rates(depth), subject.rates(depth)
        problem = f"it returns {len(rates)} rates for {depth} blocks, expected {depth}"
        subject.require(len(rates) == depth, problem, RATES)
        wrong = [rate for rate in rates if not _is_rate(rate)]
        subject.require(not wrong, f"for {depth} blocks a rate is {wrong[:1]}", RATES)
        subject.require(rates == again, f"two calls for {depth} blocks differ", RATES)


def check_meta(subject: DropPathPolicy) -> None:
    """Under `torch.device("meta")` the policy returns the same rates."""
    with torch.device("meta"), subject.doing("called under torch.device('meta')", RATES):
        rates = subject.rates(12)
    same = all(map(_is_rate, rates)) and rates == subject.rates(12)
    subject.require(same, f"under torch.device('meta') it returns other rates: {rates}", RATES)


def check_trains(subject: DropPathPolicy) -> None:
    """A network whose blocks have these rates makes a training step."""
    policy = partial(subject.constructor, **subject.given)
    spec, _ = subject.in_network()
    ready: dict[str, Any] = {} if subject.name else {"drop_path": policy}
    with subject.doing("a network trains with it"):
        policy(depth=3)  # raises its own error, before `create` converts it
        model = create(spec | {"depth": 3}, **ready).train()
        model(subject.images(batch=4)).sum().backward()


def _is_rate(rate: object) -> bool:
    return isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate < 1
