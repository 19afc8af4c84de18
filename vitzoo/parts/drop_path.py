"""Drop path (stochastic depth): policies give each block a rate, modes drop the branch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption


def linear_rates(*, depth: int, rate: float) -> tuple[float, ...]:
    """Return rates that rise linearly from 0 in the first block to `rate` in the last.

    Args:
        depth: number of blocks.
        rate: share of samples whose branch is dropped, in [0, 1).

    Source: arXiv:1603.09382, section 3; DeiT and timm use this policy.

    >>> linear_rates(depth=3, rate=0.2)
    (0.0, 0.1, 0.2)
    """
    _check_rate(rate)
    return tuple(rate * i / (depth - 1) if depth > 1 else 0.0 for i in range(depth))


def constant_rates(*, depth: int, rate: float) -> tuple[float, ...]:
    """Return the same rate, in [0, 1), for every block."""
    _check_rate(rate)
    return (rate,) * depth


def zero_rates(*, depth: int) -> tuple[float, ...]:
    """Return the rate 0 for every block."""
    return (0.0,) * depth


class MaskDropPath(nn.Module):
    """Adds a branch to the residual; in training, zeroes the branch for random samples.

    The kept branches are divided by the share of kept samples, so their expectation stays the same.

    Shapes: x and the branch's result (b, n, d). If the branch computes only the first `tokens`,
    its result and the sum are (b, tokens, d).

    Args:
        rate: share of samples whose branch is dropped, in [0, 1).

    Source: arXiv:1603.09382; each sample is drawn and scaled as in `timm.layers.DropPath`.
    """

    def __init__(self, *, rate: float = 0.0) -> None:
        super().__init__()
        _check_rate(rate)
        self.rate = rate

    def forward(
        self, x: Tensor, branch: Callable[[Tensor], Tensor], tokens: int | None = None
    ) -> Tensor:
        added = branch(x)  # before the draw, so that a seed gives the same training run as timm
        first = x if tokens is None else x[:, :tokens]
        if not self.training or self.rate == 0.0:
            return first + added
        return first + added * (self._kept(x) / (1 - self.rate))

    def _kept(self, x: Tensor) -> Tensor:
        """Return 1 for each sample of (b, n, d) tokens, 0 if its branch is dropped: (b, 1, 1)."""
        return x.new_empty(x.shape[0], 1, 1).bernoulli_(1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3g}"


class SubsetDropPath(MaskDropPath):
    """Adds a branch to the residual; in training, computes it only for a random subset of samples.

    This saves the time of the dropped samples. A sample is kept with the same probability, and
    scaled by the same factor, as in `MaskDropPath`. Shapes and Args are the same, too.

    Source: the batched stochastic depth of DINOv2 (arXiv:2304.07193, section 5). DINOv2 rounds the
    size of the subset down; this class rounds it at random, so the rate is exact in small batches.
    """

    def forward(
        self, x: Tensor, branch: Callable[[Tensor], Tensor], tokens: int | None = None
    ) -> Tensor:
        first = x if tokens is None else x[:, :tokens]
        if not self.training or self.rate == 0.0:
            return first + branch(x)
        share = x.shape[0] * (1 - self.rate)
        draw = torch.rand((), device="cpu").item()  # a size must be known without the device
        count = int(share + draw)  # rounds up with the probability of its fraction
        if count == 0:
            return first
        kept = torch.randperm(x.shape[0], device=x.device)[:count]
        added = branch(x[kept]).to(x.dtype)  # autocast changes the dtype
        return first.index_add(0, kept, added, alpha=1 / (1 - self.rate))


MODES: dict[str, Callable[..., nn.Module]] = {"mask": MaskDropPath, "subset": SubsetDropPath}


def _check_rate(rate: float) -> None:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise InvalidOption(f"drop_path rate must be at least 0 and below 1, got {rate!r}")
