"""The head of distilled DeiT: two classifiers."""

from __future__ import annotations

from torch import Tensor, nn

from vitzoo.errors import InvalidInput, InvalidOption
from vitzoo.parts import linear_head


class DistilledHead(nn.Module):
    """One linear layer on the class token and one on the distillation token.

    In training the head returns both outputs, one for the loss on the labels and one for the loss
    on the teacher. In evaluation it returns their mean.

    Shapes: (b, 2, d) to (b, k), or in training to a pair of (b, k): of the class token, of the
    distillation token; pre-logits (b, d), the mean of the tokens.

    Args:
        in_dim: d.
        num_classes: k; with 0 there are no layers, and the outputs are the pre-logits.
        pair: whether the head returns both outputs in training, or their mean.

    Raises:
        InvalidOption: `pair` is neither true nor false.

    Source: arXiv:2012.12877, section 4; numbers checked against timm's
    `VisionTransformerDistilled`.

    >>> import torch
    >>> by_label, by_teacher = DistilledHead(in_dim=4, num_classes=3)(torch.ones(2, 2, 4))
    >>> by_label.shape == by_teacher.shape == (2, 3)
    True
    """

    tokens = 2

    def __init__(self, *, in_dim: int, num_classes: int, pair: bool = True) -> None:
        super().__init__()
        if not isinstance(pair, bool):
            raise InvalidOption(f"pair must be true or false, got {pair!r}")
        self.num_classes = num_classes
        self.pre_logits_dim = in_dim
        self.pair = pair
        self.cls = linear_head(in_dim=in_dim, num_classes=num_classes)
        self.dist = linear_head(in_dim=in_dim, num_classes=num_classes)

    def reset(self, num_classes: int) -> DistilledHead:
        """Return a newly initialised head for other classes."""
        return DistilledHead(in_dim=self.pre_logits_dim, num_classes=num_classes, pair=self.pair)

    def forward(self, tokens: Tensor, pre_logits: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Map (b, 2, d) class and distillation tokens to logits or pre-logits.

        Raises:
            InvalidInput: the input is not two tokens.
        """
        if isinstance(tokens, Tensor) and (tokens.dim() != 3 or tokens.shape[1] != 2):
            raise InvalidInput(
                "head 'deit/distilled' reads the class and the distillation token, (b, 2, d), got "
                f"{tuple(tokens.shape)}; the network needs num_registers = 1 and "
                "pool = {'name': 'prefix', 'tokens': 2}"
            )
        if pre_logits or not self.num_classes:
            return tokens.mean(dim=1)  # (b, d)
        cls_token, distillation_token = tokens.unbind(dim=1)  # (b, d) each
        by_label, by_teacher = self.cls(cls_token), self.dist(distillation_token)  # (b, k) each
        if self.training and self.pair:
            return by_label, by_teacher
        return (by_label + by_teacher) / 2
