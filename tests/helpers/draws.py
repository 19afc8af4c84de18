"""Random numbers for large networks at the price of a copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

SIZE = 4_194_301  # a prime: no two rows of a matrix repeat
SMALL = 65_536  # numbers; torch draws fewer itself


@cache
def _pool(name: str) -> Tensor:
    """Return numbers of the standard uniform or normal distribution."""
    return getattr(torch.empty(SIZE), name)(generator=torch.Generator().manual_seed(11))


def _drawn_from_pool(name: str) -> Any:
    original, pool = getattr(torch.Tensor, name), _pool(name)

    names = ("from", "to") if name == "uniform_" else ("mean", "std")

    def draw(tensor: Tensor, *values: float, generator: Any = None, **named: float) -> Any:
        first, second = (
            {names[0]: 0.0, names[1]: 1.0} | dict(zip(names, values, strict=False)) | named
        ).values()
        large = tensor.numel() >= SMALL and tensor.device.type == "cpu" and tensor.is_contiguous()
        if not (large and tensor.dtype == torch.float32):
            return original(tensor, first, second, generator=generator)
        scale = second - first if name == "uniform_" else second
        flat = tensor.view(-1)
        begin = int(torch.randint(SIZE, (), generator=generator))
        for part in (pool[begin:], *[pool] * (flat.numel() // SIZE + 1)):
            torch.mul(part[: flat.numel()], scale, out=flat[: len(part)])
            flat = flat[len(part) :]
            if not len(flat):
                break
        return tensor.add_(first) if first else tensor

    return draw


@contextlib.contextmanager
def quick_draws() -> Iterator[None]:
    """Let `uniform_` and `normal_` take the numbers of large tensors from a pool.

    Each call begins at a random place of the pool, so tensors differ and have the distribution that
    was asked for. Drawing was a third of the time of the parity tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in ("uniform_", "normal_"):
            patch.setattr(torch.Tensor, name, _drawn_from_pool(name))
        yield
