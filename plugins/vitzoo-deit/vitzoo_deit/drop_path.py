"""A drop-path policy that generalises the rules of DeiT and DeiT III."""

from __future__ import annotations

import math

from vitzoo.errors import InvalidOption
from vitzoo.parts import constant_rates


def power(*, depth: int, rate: float, exponent: float = 2.0) -> tuple[float, ...]:
    """Return a rate for each block: block l of L has `rate * (l / (L - 1)) ** exponent`.

    Exponent 1 is the linear rule of stochastic depth, as in DeiT. With exponent 0 all blocks have
    the same rate, as in DeiT III. Above 1, the rates of early blocks are lower. A single block has
    rate 0 unless the exponent is 0.

    Args:
        depth: L, the number of blocks.
        rate: of the last block, in [0, 1): the share of samples whose branch is dropped.
        exponent: at least 0.

    Raises:
        InvalidOption: rate or exponent is out of range.

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
