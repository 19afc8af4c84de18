"""The number of images in a forward pass, such that their positions do not change the results.

Libraries of linear algebra sum in another order where rows of a matrix begin at other offsets from
64 bytes, as they do for matrices of odd widths, and for products with a single row.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitzoo.model import VisionTransformer
from vitzoo.parts.patch_embed import UnfoldPatchEmbed

CHUNK = 8  # images in a forward pass
ALIGNED = 16  # numbers of float32 in 64 bytes


def is_aligned(model: nn.Module) -> bool:
    """Tell whether a network of vitzoo's parts has only widths that are multiples of 16.

    Then each image of a chunk has the same results at every position on the CPU, which
    `tests/inference/test_positions.py` measures. In other networks some do and some do not.
    """
    if not isinstance(model, VisionTransformer) or model.checked_parts or model.spec is None:
        return False
    widths = [module.in_features for module in model.modules() if isinstance(module, nn.Linear)]
    widths.append(model.spec.embed_dim // model.spec.num_heads)
    if isinstance(model.patch_embed, UnfoldPatchEmbed):
        widths.append(model.patch_embed.proj.weight[0].numel())
    return not any(width % ALIGNED for width in widths)


def are_alike(results: Mapping[str, Tensor], start: int) -> bool:
    """Tell whether the results of the images from `start` on have the same bytes as the first.

    Args:
        results: (b, ...) each; the images from `start` on are copies of the first.
        start: index of the first copy.
    """
    for tensor in results.values():
        found = tensor.reshape(len(tensor), -1).contiguous().view(torch.uint8)
        if not torch.equal(found[start:], found[:1].expand_as(found[start:])):
            return False
    return True
