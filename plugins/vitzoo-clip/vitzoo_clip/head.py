"""The head of the image tower of CLIP: a projection to the embedding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.errors import InvalidOption


class ProjectionHead(nn.Module):
    """One linear layer from the features to an embedding, or to the logits of classes.

    With `num_classes` equal to `width` the outputs are an embedding. Otherwise they are logits, and
    the layer is initialised with zeros.

    Shapes: (b, d) to (b, k).

    Args:
        in_dim: d.
        num_classes: k; with 0 there is no layer, and the outputs are the features.
        width: of the embedding; None if it is k.

    Attributes:
        embedding: whether the head returns an embedding, not class logits.

    Raises:
        InvalidOption: `width` is not a positive integer.

    Source: arXiv:2103.00020, figure 3; initialised as `CLIP.initialize_parameters` in
    openai/CLIP. The published projections have no bias; here the bias is zero.

    >>> ProjectionHead(in_dim=4, num_classes=3, width=3).embedding
    True
    >>> ProjectionHead(in_dim=4, num_classes=10, width=3)(torch.ones(1, 4)).any()
    tensor(False)
    """

    def __init__(self, *, in_dim: int, num_classes: int, width: int | None = None) -> None:
        super().__init__()
        if width is not None and (type(width) is not int or width < 1):
            raise InvalidOption(f"width must be a positive whole number, got {width!r}")
        self.num_classes = num_classes
        self.pre_logits_dim = in_dim
        self.width = width
        self.embedding = num_classes > 0 and width in (None, num_classes)
        self.weight = nn.Parameter(torch.zeros(num_classes, in_dim)) if num_classes else None
        self.bias = nn.Parameter(torch.zeros(num_classes)) if num_classes else None
        if self.weight is not None and self.embedding:
            nn.init.normal_(self.weight, std=in_dim**-0.5)

    def reset(self, num_classes: int) -> ProjectionHead:
        """Return a newly initialised head with other outputs."""
        return ProjectionHead(in_dim=self.pre_logits_dim, num_classes=num_classes, width=self.width)

    def forward(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Map (b, d) features to (b, k), or return the features."""
        if pre_logits or self.weight is None:
            return x
        return F.linear(x, self.weight, self.bias)  # (b, k)
