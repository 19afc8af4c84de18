"""Drop path (stochastic depth): policies give each block a rate, modes act on the residual."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption


def linear_rates(*, depth: int, rate: float) -> tuple[float, ...]:
    """Raise the rate linearly from 0 in the first block to `rate` in the last.

    Args:
        depth: number of blocks.
        rate: share of samples whose branch is dropped, in [0, 1).

    Source: arXiv:1603.09382, section 3; the rule of DeiT and timm.

    >>> linear_rates(depth=3, rate=0.2)
    (0.0, 0.1, 0.2)
    """
    _check_rate(rate)
    return tuple(rate * i / (depth - 1) if depth > 1 else 0.0 for i in range(depth))


def constant_rates(*, depth: int, rate: float) -> tuple[float, ...]:
    """Give every block the same rate in [0, 1).

    >>> constant_rates(depth=3, rate=0.2)
    (0.2, 0.2, 0.2)
    """
    _check_rate(rate)
    return (rate,) * depth


def zero_rates(*, depth: int) -> tuple[float, ...]:
    """Drop nothing.

    >>> zero_rates(depth=2)
    (0.0, 0.0)
    """
    return (0.0,) * depth


class MaskDropPath(nn.Module):
    """Adds a branch; in training zeroes it for a random share of the samples.

    Kept branches are divided by the share kept, so the expectation is that of no drop path.

    Shapes: x and the branch's result (b, n, d).

    Args:
        rate: share of samples dropped, in [0, 1).

    Source: arXiv:1603.09382; per sample and scaled as timm's `DropPath`.
    """

    def __init__(self, *, rate: float = 0.0) -> None:
        super().__init__()
        _check_rate(rate)
        self.rate = rate

    def forward(self, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        """Return `x + branch(x)`, the branch dropped for some samples in training."""
        if not self.training or self.rate == 0.0:
            return x + branch(x)
        added = branch(x)  # before drawing, so that a seed gives timm's training run
        kept = x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(1 - self.rate)
        return x + added * (kept / (1 - self.rate))

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3g}"


class SubsetDropPath(nn.Module):
    """Adds a branch; in training computes it for a random subset of the samples only.

    The rest of the batch skips the computation, which saves its time. Samples are kept with the
    probability and scaled as in `MaskDropPath`, so expectation and variance of each are the same;
    how many are kept varies by at most one, where masks vary freely.

    Shapes: x and the branch's result (b, n, d).

    Args:
        rate: share of samples dropped, in [0, 1).

    Source: the batched stochastic depth of DINOv2 (arXiv:2304.07193, section 5), with the subset's
    size rounded at random instead of down, which keeps the rate exact in small batches.
    """

    def __init__(self, *, rate: float = 0.0) -> None:
        super().__init__()
        _check_rate(rate)
        self.rate = rate

    def forward(self, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        """Return `x + branch(x)`, the branch computed for some samples only in training."""
        if not self.training or self.rate == 0.0:
            return x + branch(x)
        share = x.shape[0] * (1 - self.rate)
        count = int(share + torch.rand(()).item())  # rounded up as often as its fraction says
        if count == 0:
            return x
        kept = torch.randperm(x.shape[0], device=x.device)[:count]
        added = branch(x[kept]).to(x.dtype)  # another type under autocast
        return x.index_add(0, kept, added, alpha=1 / (1 - self.rate))

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3g}"


MODES: dict[str, Callable[..., nn.Module]] = {"mask": MaskDropPath, "subset": SubsetDropPath}


def _check_rate(rate: float) -> None:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise InvalidOption(f"drop_path rate must be at least 0 and below 1, got {rate!r}")
