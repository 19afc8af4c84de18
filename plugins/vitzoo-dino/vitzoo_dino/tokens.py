"""The tokens of a network by the names of Meta's code."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vitzoo import VisionTransformer


def forward_features(model: VisionTransformer, images: Tensor) -> dict[str, Tensor]:
    """Return tokens as `forward_features` of Meta's DINOv2 and DINOv3 does.

    Shapes: (b, c, h, w) images to `x_norm_clstoken` (b, d), `x_norm_regtokens` (b, r, d) (DINOv3's
    code says `x_storage_tokens`), `x_norm_patchtokens` (b, n, d) and `x_prenorm` (b, 1 + r + n, d),
    the tokens before the final norm.

    Args:
        model: of `vitzoo.create`, with a class token.
        images: preprocessed.

    Source: facebookresearch/dinov2, models/vision_transformer.py.

    >>> import torch, vitzoo
    >>> spec = {"variant": "dinov2/vit_s14_reg4", "image_size": 28, "depth": 1}
    >>> found = forward_features(vitzoo.create(spec).eval(), torch.zeros(1, 3, 28, 28))
    >>> {name: tuple(tokens.shape) for name, tokens in found.items()}["x_norm_regtokens"]
    (1, 4, 384)
    """
    last = f"blocks.{len(model.blocks) - 1}"
    found: dict[str, Any] = model.features(images, [last, "norm"])
    tokens, prefix = found["norm"], model.num_prefix_tokens
    return {
        "x_norm_clstoken": tokens[:, 0],
        "x_norm_regtokens": tokens[:, 1:prefix],
        "x_norm_patchtokens": tokens[:, prefix:],
        "x_prenorm": found[last],
    }
