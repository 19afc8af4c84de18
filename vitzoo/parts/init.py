"""Initial weights of the published ViT.

On the `meta` device these functions do nothing. Some of torch's random functions would import a
thousand modules there.

Source: google-research/vision_transformer, `vit_jax/models_vit.py`. Projections of attention and
MLP are Xavier-uniform, with MLP biases of standard deviation 1e-6. Patch and pre-logits layers are
LeCun-normal as in flax, positions normal(0.02), class token and classifier zero.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

TRUNCATED_STD = 0.87962566103423978  # of a standard normal cut at two standard deviations


def lecun_normal_(weight: Tensor) -> None:
    """Fill `weight` (out, in, ...) from a normal of variance `1 / fan_in`, cut at 2 std."""
    std = math.sqrt(1 / weight[0].numel()) / TRUNCATED_STD
    if not weight.is_meta:
        nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def normal_(tensor: Tensor, std: float) -> None:
    """Fill `tensor` from a normal of mean 0."""
    if not tensor.is_meta:
        nn.init.normal_(tensor, std=std)


def xavier_uniform_(linear: nn.Linear, *, bias_std: float = 0.0, fused: int = 1) -> None:
    """Fill a linear layer; `fused` is the number of projections stacked in its weight."""
    out_dim, in_dim = linear.weight.shape
    bound = math.sqrt(6 / (in_dim + out_dim // fused))
    if not linear.weight.is_meta:
        nn.init.uniform_(linear.weight, -bound, bound)
    if linear.bias is not None:
        normal_(linear.bias, bias_std)


@torch.no_grad()
def zeros_(linear: nn.Linear) -> None:
    """Fill a classifier with zeros."""
    linear.weight.zero_()
    if linear.bias is not None:
        linear.bias.zero_()
