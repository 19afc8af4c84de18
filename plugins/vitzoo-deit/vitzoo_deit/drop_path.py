"""A drop-path policy between DeiT's rule and DeiT III's."""

from __future__ import annotations

import math

from vitzoo.errors import InvalidOption
from vitzoo.parts import constant_rates


def power(*, depth: int, rate: float, exponent: float = 2.0) -> tuple[float, ...]:
    """Raise the rate as a power of the depth: block l of L has `rate * (l / (L - 1)) ** exponent`.

    With exponent 1 it is the linear rule of stochastic depth, which DeiT uses; with 0 every block
    has the same rate, as in DeiT III; above 1 the early blocks keep more. A single block is the
    first one.

    Args:
        depth: L, the number of blocks.
        rate: share of samples whose branch is dropped in the last block, in [0, 1).
        exponent: at least 0.

    Raises:
        InvalidOption: a rate or an exponent out of its range.

    Source: arXiv:1603.09382, section 3 (exponent 1); arXiv:2204.07118 (exponent 0).

    >>> power(depth=3, rate=0.4, exponent=2)
    (0.0, 0.1, 0.4)
    """
    _check_exponent(exponent)
    last = max(depth - 1, 1)
    most = constant_rates(depth=depth, rate=rate)
    return tuple(share * (block / last) ** exponent for block, share in enumerate(most))


def _check_exponent(exponent: float) -> None:
    number = isinstance(exponent, int | float) and not isinstance(exponent, bool)
    if not number or not math.isfinite(exponent) or exponent < 0:
        raise InvalidOption(
            "drop path 'deit/power' takes an exponent of at least 0 (1 is linear, 0 constant), "
            f"got {exponent!r}"
        )
