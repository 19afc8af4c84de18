"""Heads map pooled features to logits. The final norm of the model acts before the head."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts.init import lecun_normal_, zeros_
from vitzoo.schema.spec import PartSpec


class LinearHead(nn.Linear):
    """One linear layer, initialised with zeros as for fine-tuning.

    Shapes: (b, d) to (b, k).

    Args:
        in_dim: width d.
        num_classes: k, at least 1.

    Source: arXiv:2010.11929, section 3.2.
    """

    def __init__(self, *, in_dim: int, num_classes: int) -> None:
        super().__init__(in_dim, num_classes)
        self.num_classes = num_classes
        self.pre_logits_dim = in_dim
        zeros_(self)

    def reset(self, num_classes: int) -> nn.Module:
        return linear_head(in_dim=self.in_features, num_classes=num_classes)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x if pre_logits else super().forward(x)


class NoHead(nn.Module):
    """Returns the (b, d) features unchanged; it has no classifier.

    Args:
        in_dim: width d.
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
        return linear_head(in_dim=self.pre_logits_dim, num_classes=num_classes)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        return x


def linear_head(*, in_dim: int, num_classes: int) -> LinearHead | NoHead:
    """Return a `LinearHead`, or `NoHead` for 0 classes."""
    return (LinearHead if num_classes else NoHead)(in_dim=in_dim, num_classes=num_classes)


class PreLogitsHead(nn.Module):
    """Linear, activation (its output is called pre-logits), Linear.

    Shapes: (b, d) to (b, k); pre-logits (b, hidden_dim).

    Args:
        in_dim: width d.
        num_classes: k; with 0 there is no classifier and the head returns the pre-logits.
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
        width = in_dim if hidden_dim is None else hidden_dim
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise InvalidOption(f"hidden_dim must be a positive whole number, got {hidden_dim!r}")
        self.in_dim = in_dim
        self.num_classes = num_classes
        self.pre_logits_dim = width
        self.activation = activation
        self.pre_logits = nn.Linear(in_dim, width)
        self.fc = nn.Linear(width, num_classes) if num_classes else nn.Identity()
        lecun_normal_(self.pre_logits.weight)
        nn.init.zeros_(self.pre_logits.bias)
        if isinstance(self.fc, nn.Linear):
            zeros_(self.fc)

    def reset(self, num_classes: int) -> nn.Module:
        fresh = PreLogitsHead(
            in_dim=self.in_dim,
            num_classes=num_classes,
            hidden_dim=self.pre_logits_dim,
            activation=self.activation,
        )
        fresh.pre_logits = _copied(self.pre_logits, fresh.pre_logits)
        return fresh

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.activation(self.pre_logits(x))  # (b, hidden)
        return x if pre_logits else self.fc(x)


def tanh_head(*, in_dim: int, num_classes: int, hidden_dim: int | None = None) -> PreLogitsHead:
    """Return the paper's pre-training head: Linear, tanh, Linear.

    Source: `representation_size` in `vit_jax/models_vit.py`.
    """
    return PreLogitsHead(
        in_dim=in_dim, num_classes=num_classes, hidden_dim=hidden_dim, activation=torch.tanh
    )


def mlp_head(*, in_dim: int, num_classes: int, hidden_dim: int | None = None) -> PreLogitsHead:
    """Return a head of Linear, GELU, Linear, which many ViTs trained from scratch have."""
    return PreLogitsHead(
        in_dim=in_dim, num_classes=num_classes, hidden_dim=hidden_dim, activation=F.gelu
    )


class CosineHead(nn.Module):
    """The cosine of an image embedding and one vector for each class, times a factor.

    The vectors of the classes, `fc.weight`, have length 1 where they come from
    `create(class_embeddings=)`; a new head has zeros, as for fine-tuning.

    Shapes: (b, d) to (b, k); pre-logits, the embedding before it is normalised: (b, width).

    Args:
        in_dim: width d.
        num_classes: k; with 0 there is no classifier and the head returns the embedding.
        width: of the embedding, a linear projection of the features; None: the features are it.
        logit_bias: whether one bias is added to all logits.

    Attributes:
        sigmoid: whether the probability of a class is the sigmoid of its logit, as in models
            trained with a bias, not the softmax of all logits.

    Source: arXiv:2103.00020, figure 3 (without bias); arXiv:2303.15343, algorithm 1 (with bias).
    """

    def __init__(
        self, *, in_dim: int, num_classes: int, width: int | None = None, logit_bias: bool = False
    ) -> None:
        super().__init__()
        if width is not None and (type(width) is not int or width < 1):
            raise InvalidOption(f"width must be a positive whole number, got {width!r}")
        if not isinstance(logit_bias, bool):
            raise InvalidOption(f"logit_bias must be true or false, got {logit_bias!r}")
        self.in_dim = in_dim
        self.num_classes = num_classes
        self.width = width
        self.sigmoid = logit_bias
        self.pre_logits_dim = width or in_dim
        self.proj = nn.Linear(in_dim, width) if width else nn.Identity()
        if isinstance(self.proj, nn.Linear):
            lecun_normal_(self.proj.weight)
            nn.init.zeros_(self.proj.bias)
        self.fc = (
            nn.Linear(width or in_dim, num_classes, bias=False) if num_classes else nn.Identity()
        )
        self.logit_scale = self.logit_bias = None
        if isinstance(self.fc, nn.Linear):
            zeros_(self.fc)
            self.logit_scale = nn.Parameter(torch.ones(()))
            self.logit_bias = nn.Parameter(torch.zeros(())) if logit_bias else None

    def reset(self, num_classes: int) -> nn.Module:
        fresh = CosineHead(
            in_dim=self.in_dim,
            num_classes=num_classes,
            width=self.width,
            logit_bias=self.sigmoid,
        )
        fresh.proj = _copied(self.proj, fresh.proj)
        return fresh

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.proj(x)  # (b, width)
        if pre_logits or self.logit_scale is None:
            return x
        logits = self.logit_scale * self.fc(F.normalize(x, dim=-1))
        return logits if self.logit_bias is None else logits + self.logit_bias


def _copied(layer: Any, fresh: Any) -> Any:
    """Return a copy of a layer, or the fresh one where the layer has no data, on `meta`."""
    return fresh if any(p.is_meta for p in layer.parameters()) else deepcopy(layer)


def classes_of(head: nn.Module) -> int:
    """Return the number of outputs of any module that is used as a head, 0 without a classifier.

    This is its `num_classes`, or else the output width of its last linear layer.

    Raises:
        InvalidOption: the module has parameters, but neither of these.
    """
    for module in head.modules():
        if isinstance(stated := getattr(module, "num_classes", None), int):
            return stated
    layers = [module for module in head.modules() if isinstance(module, nn.Linear)]
    if not layers and next(head.parameters(), None) is not None:
        raise InvalidOption(
            f"the head {type(head).__name__} has neither an attribute num_classes nor a linear "
            "layer; set its num_classes to the number of its outputs"
        )
    return layers[-1].out_features if layers else 0


def described_head(head: nn.Module, in_dim: int) -> PartSpec:
    """Return the part that computes the same: `linear`, `cosine`, `none`, or else opaque.

    `in_dim` is the width of the features.
    """
    if type(head) in (nn.Identity, NoHead):
        return PartSpec("none")
    if type(head) is CosineHead and head.in_dim == in_dim:
        options = {"width": head.width, "logit_bias": head.sigmoid}
        return PartSpec("cosine", tuple((key, value) for key, value in options.items() if value))
    linear = type(head) in (nn.Linear, nn.LazyLinear, LinearHead)
    if linear and head.bias is not None and head.in_features in (in_dim, 0):
        return PartSpec("linear")
    return PartSpec(type(head).__qualname__, opaque=True)
