"""Drop-path policies: a rate in [0, 1) for every block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitzoo.errors import InvalidOption
from vitzoo.factory import create
from vitzoo.testing.subject import Subject, doing, draw, fail, require

DEPTHS = (1, 2, 12, 40)
RATES = "return one plain number in [0, 1) for each block, computed without torch"


class DropPathPolicy(Subject):
    """A drop-path policy under test."""

    kind = "drop-path policy"
    field_of_spec = "drop_path"
    numbers = ("depth",)
    samples: ClassVar[Mapping[str, Any]] = {"rate": 0.1}

    def rates(self, depth: int) -> Sequence[float]:
        """Return the rates for a network of so many blocks."""
        __tracebackhide__ = True
        try:
            rates: Sequence[float] = self.build(depth=depth)
        except InvalidOption as error:
            fail(
                f"{self} cannot be called for {depth} blocks: {error}",
                "give sample options in the `options` table of the test class",
            )
        return rates


def check_rates(subject: DropPathPolicy) -> None:
    """One rate in [0, 1) per block, for one block and for many, the same each time."""
    __tracebackhide__ = True
    for depth in DEPTHS:
        with doing(subject, f"called for {depth} blocks", RATES):
            rates = list(subject.rates(depth))
            again = list(subject.rates(depth))
        require(
            len(rates) == depth,
            f"{subject}: gives {len(rates)} rates for {depth} blocks",
            RATES,
        )
        wrong = [rate for rate in rates if not _is_rate(rate)]
        require(not wrong, f"{subject}: for {depth} blocks a rate is {wrong[:1]}", RATES)
        require(rates == again, f"{subject}: gives other rates each time", RATES)


def check_meta(subject: DropPathPolicy) -> None:
    """Rates are the same while a network is built on `meta`, and it trains with them."""
    __tracebackhide__ = True
    with torch.device("meta"), doing(subject, "called under torch.device('meta')", RATES):
        rates = list(subject.rates(12))
    require(
        all(_is_rate(rate) for rate in rates) and rates == list(subject.rates(12)),
        f"{subject}: under torch.device('meta') it gives other rates",
        RATES,
    )


def check_trains(subject: DropPathPolicy) -> None:
    """A network whose blocks have these rates makes a training step."""
    __tracebackhide__ = True
    spec, _ = subject.in_network()
    ready: dict[str, Any] = {} if subject.name else {"drop_path": _Bound(subject)}
    with doing(subject, "a network trains with it"):
        model = create(spec | {"depth": 3}, **ready).train()
        model(draw(4, subject.sizes.in_chans, *subject.sizes.image_size)).sum().backward()


class _Bound:
    """A policy with its sample options, as a ready object."""

    def __init__(self, subject: DropPathPolicy) -> None:
        self.subject = subject

    def __call__(self, *, depth: int) -> Sequence[float]:
        return self.subject.rates(depth)


def _is_rate(rate: object) -> bool:
    number = isinstance(rate, int | float) and not isinstance(rate, bool | Tensor)
    return number and not math.isnan(float(rate)) and 0 <= float(rate) < 1  # type: ignore[arg-type]  # a number here
