"""Heads: from the pooled vector to logits. The norm before them is the model's final norm."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts.init import lecun_normal_, zeros_


class LinearHead(nn.Linear):
    """One linear layer, zero at the start, as in fine-tuning.

    Shapes: (b, d) to (b, k).

    Args:
        in_dim: d.
        num_classes: k, at least 1.

    Source: arXiv:2010.11929, section 3.2.
    """

    def __init__(self, *, in_dim: int, num_classes: int) -> None:
        super().__init__(in_dim, num_classes)
        self.num_classes = num_classes
        self.pre_logits_dim = in_dim
        zeros_(self)

    def reset(self, num_classes: int) -> nn.Module:
        """Return a fresh head for other classes."""
        return linear_head(in_dim=self.in_features, num_classes=num_classes)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Map (b, d) to (b, k) logits, or return it as it is."""
        return x if pre_logits else super().forward(x)


class NoHead(nn.Module):
    """No classifier: features come out as they are.

    Shapes: (b, d) to (b, d).

    Args:
        in_dim: d.
        num_classes: must be 0.
    """

    def __init__(self, *, in_dim: int, num_classes: int = 0) -> None:
        super().__init__()
        if num_classes:
            raise InvalidOption(
                f"head 'none' has no classes, got num_classes={num_classes}; choose another head"
            )
        self.num_classes = 0
        self.pre_logits_dim = in_dim

    def reset(self, num_classes: int) -> nn.Module:
        """Return a linear head, or no head for 0 classes."""
        return linear_head(in_dim=self.pre_logits_dim, num_classes=num_classes)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the (b, d) features."""
        return x


def linear_head(*, in_dim: int, num_classes: int) -> LinearHead | NoHead:
    """Return `LinearHead`, or `NoHead` for 0 classes."""
    if num_classes == 0:
        return NoHead(in_dim=in_dim)
    return LinearHead(in_dim=in_dim, num_classes=num_classes)


class PreLogitsHead(nn.Module):
    """Linear, activation (the pre-logits), Linear.

    Shapes: (b, d) to (b, k); pre-logits (b, hidden_dim).

    Args:
        in_dim: d.
        num_classes: k; 0 leaves the classifier out and gives the pre-logits.
        hidden_dim: width of the pre-logits, d if None.
        activation: function of a tensor.

    Source: arXiv:2010.11929, section 3.1: "a MLP with one hidden layer at pre-training time".
    """

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        hidden_dim: int | None = None,
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.num_classes = num_classes
        self.pre_logits_dim = _width(hidden_dim, in_dim)
        self.activation = activation
        self.pre_logits = nn.Linear(in_dim, self.pre_logits_dim)
        self.fc = nn.Linear(self.pre_logits_dim, num_classes) if num_classes else nn.Identity()
        lecun_normal_(self.pre_logits.weight)
        nn.init.zeros_(self.pre_logits.bias)
        if isinstance(self.fc, nn.Linear):
            zeros_(self.fc)

    def reset(self, num_classes: int) -> nn.Module:
        """Return a fresh head of the same widths for other classes."""
        return PreLogitsHead(
            in_dim=self.in_dim,
            num_classes=num_classes,
            hidden_dim=self.pre_logits_dim,
            activation=self.activation,
        )

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Map (b, d) to (b, k) logits or (b, hidden_dim) pre-logits."""
        x = self.activation(self.pre_logits(x))  # (b, hidden)
        return x if pre_logits else self.fc(x)


def tanh_head(*, in_dim: int, num_classes: int, hidden_dim: int | None = None) -> PreLogitsHead:
    """Return the head of the paper's pre-training: Linear, tanh, Linear.

    Source: `representation_size` in `vit_jax/models_vit.py`.
    """
    return PreLogitsHead(
        in_dim=in_dim, num_classes=num_classes, hidden_dim=hidden_dim, activation=torch.tanh
    )


def mlp_head(*, in_dim: int, num_classes: int, hidden_dim: int | None = None) -> PreLogitsHead:
    """Return the head of many from-scratch ViTs: Linear, GELU, Linear."""
    return PreLogitsHead(
        in_dim=in_dim, num_classes=num_classes, hidden_dim=hidden_dim, activation=F.gelu
    )


def _width(hidden_dim: int | None, in_dim: int) -> int:
    width = in_dim if hidden_dim is None else hidden_dim
    if isinstance(width, bool) or not isinstance(width, int) or width < 1:
        raise InvalidOption(f"hidden_dim must be a positive whole number, got {hidden_dim!r}")
    return width
