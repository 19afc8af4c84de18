"""Packed sequences: the tokens of images of several sizes, one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Packed(NamedTuple):
    """What an attention and a drop path need of a packed sequence (1, sum of p + n, d).

    Args:
        shapes: number g of images of each size, and of tokens p + n of each image.
        acts: rotation and attention bias of the positions of each size.
    """

    shapes: Sequence[tuple[int, int]]
    acts: Sequence[tuple[Any, Any]] = ()

    def split(self, x: Tensor) -> list[Tensor]:
        """Return the tokens (g, p + n, d) of the images of each size."""
        parts = torch.split(x[0], [math.prod(shape) for shape in self.shapes])
        return [part.view(*shape, -1) for shape, part in zip(self.shapes, parts, strict=True)]

    def attend(
        self, attend: Callable[..., Tensor], projected: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        """Return what `attend` returns for queries, keys and values of each size.

        The images of one size are a batch, so that no image sees another one.

        Args:
            attend: maps queries, keys, values and a bias to (g, p + n, d).
            projected: queries, keys and values (1, heads, sum of p + n, head_dim).
        """
        sizes, found = [math.prod(shape) for shape in self.shapes], []
        divided = (torch.split(t, sizes, dim=2) for t in projected)
        for shape, (rotate, bias), *parts in zip(self.shapes, self.acts, *divided, strict=True):
            q, k, v = (t[0].unflatten(1, shape).transpose(0, 1) for t in parts)
            if rotate is not None:
                q, k = rotate(q), rotate(k)  # (g, heads, p + n, head_dim)
            found.append(attend(q, k, v, bias))
        return joined(found)

    def add(self, drop_path: nn.Module, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        """Add a branch as `MaskDropPath` does, with a draw for each image."""
        added, rate = branch(x), float(getattr(drop_path, "rate", 0.0))
        if not drop_path.training or rate == 0.0:
            return x + added
        counts = [count for count, _ in self.shapes]
        draws = torch.split(x.new_empty(sum(counts)).bernoulli_(1 - rate), counts)
        shares = zip(draws, self.shapes, strict=True)  # no tensor of lengths: a GPU would wait
        kept = torch.cat([draw[:, None].expand(shape).flatten() for draw, shape in shares])
        return x + added * (kept[None, :, None] / (1 - rate))


def joined(tokens: Sequence[Tensor]) -> Tensor:
    """Return the tokens (g, p + n, d) of the images of each size as one sequence."""
    return torch.cat([part.flatten(0, 1) for part in tokens])[None]
