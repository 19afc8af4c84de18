"""Pools over the class tokens of networks that have several."""

from __future__ import annotations

from torch import Tensor, nn

from vitzoo.errors import InvalidOption


class PrefixMeanPool(nn.Module):
    """Returns the average of the prefix tokens.

    Shapes: (b, p + n, d) to (b, d).

    Args:
        num_prefix_tokens: p, at least 1.

    Raises:
        InvalidOption: there are no prefix tokens.

    Source: `PixioModel` of transformers, whose prefix tokens are class tokens.

    >>> import torch
    >>> PrefixMeanPool(num_prefix_tokens=2)(torch.ones(1, 6, 8), 2, (2, 2)).shape
    torch.Size([1, 8])
    """

    norm_first = True

    def __init__(self, *, num_prefix_tokens: int) -> None:
        super().__init__()
        if num_prefix_tokens < 1:
            raise InvalidOption(
                "pool 'pixio/prefix_mean' needs prefix tokens (class_token, num_registers), got 0; "
                "use pool='mean'"
            )
        self.reads = num_prefix_tokens

    def forward(self, tokens: Tensor, num_prefix_tokens: int, grid_size: tuple[int, int]) -> Tensor:
        return tokens[:, : self.reads].mean(dim=1)
