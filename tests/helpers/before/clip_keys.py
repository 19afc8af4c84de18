"""What the layouts of both families share: tables of names, and tensors stored with other axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from vitzoo.errors import CheckpointError

BIAS = "head.bias"
PATCH_BIAS = "patch_embed.proj.bias"  # which CLIP has not
POOL_QUERY, POOL_KEYS = "attn_pool.q", "attn_pool.kv"


def tokens(name: str, tensor: Tensor) -> Tensor:
    """Give a class token (d) or a position table (n, d) the axes of the model."""
    if name == "cls_token":
        return tensor[None, None] if tensor.dim() == 1 else tensor
    return tensor[None] if tensor.dim() == 2 else tensor


def plain_tokens(name: str, tensor: Tensor) -> Tensor | None:
    """Take the axes of length 1 away again; None if the tensor has others."""
    lead = 2 if name == "cls_token" else 1
    if tensor.dim() != 3 or any(side != 1 for side in tensor.shape[:lead]):
        return None
    return tensor[0, 0] if lead == 2 else tensor[0]


def projection(weight: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the head of a projection (k, d), whose bias is zeros."""
    yield "head.weight", weight
    if weight.dim() == 2:
        yield BIAS, weight.new_zeros(weight.shape[0])


def check_bias(layout: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a head with a bias that no projection has.

    Raises:
        CheckpointError: the bias of the head is not zero.
    """
    bias = tensors.get(BIAS)
    if bias is not None and not bias.is_meta and bias.any():
        raise CheckpointError(
            f"the layout {layout} has no place for {BIAS}, which is not zero: its projection has "
            "no bias; timm, the model's own layout, has"
        )


def vision_config(
    config: Mapping[str, Any], kinds: Mapping[str, str], defaults: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return what a `config.json` of transformers says of the image tower.

    Args:
        config: of a whole model or of its image tower.
        kinds: the `model_type` of whole models, and that of their image towers.
        defaults: what the library takes for what such a config leaves out.
    """
    table = config.get("vision_config", config)
    if not isinstance(table, Mapping):
        return {}
    kind = config.get("model_type")
    known = isinstance(kind, str) and (kind in kinds or kind in kinds.values())
    return {**defaults, **table} if known else table
