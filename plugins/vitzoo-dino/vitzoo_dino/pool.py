"""The pool that DINO's authors use for copy detection: class token and generalised mean."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts import check_class_token

LEAST = 1e-6  # smaller values are clamped to it


class ClassGemPool(nn.Module):
    """Returns the class token and the generalised mean (GeM) of the patch tokens.

    The generalised mean of the values x of one channel is `mean(max(x, 1e-6) ** e) ** (1 / e)`.

    Shapes: (b, p + n, d) to (b, 2, d).

    Args:
        class_token: whether the first token is a class token.
        exponent: e, at least 1. With 1 the mean is the average; a large exponent approaches the
            maximum.

    Raises:
        InvalidOption: there is no class token, or the exponent is below 1.

    Source: arXiv:2104.14294, section 4.2.1; the exponent is that of `eval_copy_detection.py` in
    facebookresearch/dino. GeM: arXiv:1711.02512, section 3.2.

    >>> pool = ClassGemPool()
    >>> pool(torch.ones(1, 5, 8), 1, (2, 2)).shape
    torch.Size([1, 2, 8])
    """

    norm_first = True
    tokens = 2

    def __init__(self, *, class_token: bool = True, exponent: float = 4.0) -> None:
        super().__init__()
        check_class_token("dino/class_gem", class_token)
        number = isinstance(exponent, int | float) and not isinstance(exponent, bool)
        if not number or not 1 <= exponent < float("inf"):
            raise InvalidOption(f"exponent must be a number of at least 1, got {exponent!r}")
        self.exponent = exponent

    def forward(self, tokens: Tensor, num_prefix_tokens: int, grid_size: tuple[int, int]) -> Tensor:
        """Return token 0 of (b, p + n, d) and the generalised mean of the n patch tokens."""
        patches = tokens[:, num_prefix_tokens:].clamp(min=LEAST)
        # vector_norm accumulates in fp32; explicit powers overflow in fp16.
        norm = torch.linalg.vector_norm(patches, ord=self.exponent, dim=1)
        mean = norm * patches.shape[1] ** (-1 / self.exponent)
        return torch.stack((tokens[:, 0], mean), dim=1)
