"""The classifier of DINOv2 in transformers and in Meta's linear evaluation."""

from __future__ import annotations

from torch import Tensor, nn

from vitzoo.errors import InvalidInput
from vitzoo.parts import linear_head


class ClassAndMean(nn.Module):
    """One linear layer on the class token and the mean of the patch tokens, joined.

    Shapes: (b, 2, d) from pool `class_mean` to (b, k); pre-logits (b, 2 d).

    Args:
        in_dim: d.
        num_classes: k; with 0 there is no layer, and the outputs are the pre-logits.

    Source: arXiv:2304.07193, appendix B.3; numbers checked against transformers'
    `Dinov2ForImageClassification`.

    >>> import torch
    >>> ClassAndMean(in_dim=4, num_classes=3)(torch.ones(2, 2, 4)).shape
    torch.Size([2, 3])
    """

    tokens = 2

    def __init__(self, *, in_dim: int, num_classes: int) -> None:
        super().__init__()
        self.in_dim = in_dim
        self.num_classes = num_classes
        self.pre_logits_dim = 2 * in_dim
        self.linear = linear_head(in_dim=2 * in_dim, num_classes=num_classes)

    def reset(self, num_classes: int) -> ClassAndMean:
        """Return a newly initialised head for other classes."""
        return ClassAndMean(in_dim=self.in_dim, num_classes=num_classes)

    def forward(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Map the class token and the mean of the patch tokens, (b, 2, d), to logits (b, k).

        Raises:
            InvalidInput: the input is not two vectors.
        """
        if isinstance(tokens, Tensor) and (tokens.dim() != 3 or tokens.shape[1] != 2):
            raise InvalidInput(
                "head 'dinov2/class_and_mean' reads the class token and the mean of the patch "
                f"tokens, (b, 2, d), got {tuple(tokens.shape)}; the network needs "
                "pool = 'class_mean'"
            )
        x: Tensor = tokens.flatten(1)  # (b, 2 d)
        return x if pre_logits or not self.num_classes else self.linear(x)
