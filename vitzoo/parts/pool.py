"""Pooling: from tokens to one vector per image."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from vitzoo.errors import InvalidOption


class ClassPool(nn.Module):
    """Takes the class token.

    Shapes: (b, p + n, d) to (b, d).

    Args:
        num_prefix_tokens: p, at least 1; the class token is the first.

    Source: arXiv:2010.11929, equation 4.
    """

    norm_first = True

    def __init__(self, *, num_prefix_tokens: int) -> None:
        super().__init__()
        if num_prefix_tokens < 1:
            raise InvalidOption(
                "pool 'class' needs a class token and class_token is false; use pool='mean'"
            )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return token 0 of (b, p + n, d)."""
        return tokens[:, 0]


class MeanPool(nn.Module):
    """Averages the patch tokens; prefix tokens do not count.

    Shapes: (b, p + n, d) to (b, d).

    Args:
        num_prefix_tokens: p.
        norm_first: whether the final norm acts on the tokens, as in Google's `gap` models, or on
            the average, as in timm's `fc_norm`.

    Source: arXiv:2106.04560, section 3.2.
    """

    def __init__(self, *, num_prefix_tokens: int, norm_first: bool = True) -> None:
        super().__init__()
        if not isinstance(norm_first, bool):
            raise InvalidOption(f"norm_first must be true or false, got {norm_first!r}")
        self.num_prefix_tokens = num_prefix_tokens
        self.norm_first = norm_first

    def forward(self, tokens: Tensor) -> Tensor:
        """Average (b, p + n, d) over the n patch tokens."""
        return tokens[:, self.num_prefix_tokens :].mean(dim=1)


POOLS: dict[str, Callable[..., nn.Module]] = {"class": ClassPool, "mean": MeanPool}
