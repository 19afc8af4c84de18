"""Checks of drop-path policies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from vitzoo.errors import InvalidOption
from vitzoo.factory import create
from vitzoo.testing.subject import Subject, doing, fail, require

__tracebackhide__ = True
DEPTHS = (1, 2, 12, 40)
RATES = "return one plain number in [0, 1) for each block, computed without torch"


class DropPathPolicy(Subject):
    """A drop-path policy under test."""

    kind = "drop-path policy"
    field_of_spec = "drop_path"
    numbers = ("depth",)
    samples: ClassVar[Mapping[str, Any]] = {"rate": 0.1}

    def rates(self, depth: int) -> list[float]:
        """Return the rates for a network of `depth` blocks."""
        try:
            return list(self.build(depth=depth))
        except InvalidOption as error:
            fail(
                f"{self} cannot be called for {depth} blocks: {error}",
                "give options that it accepts in the `options` table of the test class",
            )


def check_rates(subject: DropPathPolicy) -> None:
    """The policy returns one plain number in [0, 1) for each block, for 1 block and for 40, and the
    same numbers at every call.
    """
    for depth in DEPTHS:
        with doing(subject, f"called for {depth} blocks", RATES):
            rates, again = subject.rates(depth), subject.rates(depth)
        count = f"{subject}: it returns {len(rates)} rates for {depth} blocks, expected {depth}"
        require(len(rates) == depth, count, RATES)
        wrong = [rate for rate in rates if not _is_rate(rate)]
        require(not wrong, f"{subject}: for {depth} blocks a rate is {wrong[:1]}", RATES)
        require(rates == again, f"{subject}: two calls for {depth} blocks differ", RATES)


def check_meta(subject: DropPathPolicy) -> None:
    """Under `torch.device("meta")` the policy returns the same rates."""
    with torch.device("meta"), doing(subject, "called under torch.device('meta')", RATES):
        rates = subject.rates(12)
    require(
        all(map(_is_rate, rates)) and rates == subject.rates(12),
        f"{subject}: under torch.device('meta') it returns other rates: {rates}",
        RATES,
    )


def check_trains(subject: DropPathPolicy) -> None:
    """A network whose blocks have these rates makes a training step."""
    policy = partial(subject.constructor, **subject.given)
    spec, _ = subject.in_network()
    ready: dict[str, Any] = {} if subject.name else {"drop_path": policy}
    with doing(subject, "a network trains with it"):
        policy(depth=3)  # raises its own error, before `create` converts it
        model = create(spec | {"depth": 3}, **ready).train()
        model(subject.images(batch=4)).sum().backward()


def _is_rate(rate: object) -> bool:
    return isinstance(rate, int | float) and not isinstance(rate, bool) and 0 <= rate < 1
