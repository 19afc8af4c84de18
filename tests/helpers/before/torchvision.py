"""The layout of torchvision's ViT."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from before import unsupported
from before.keymap import block_of, invert, unheld, unique
from vitzoo.schema.spec import Spec

STEM = {
    "class_token": "cls_token",
    "encoder.pos_embedding": "pos_embed",
    "conv_proj.weight": "patch_embed.proj.weight",
    "conv_proj.bias": "patch_embed.proj.bias",
    "encoder.ln.weight": "norm.weight",
    "encoder.ln.bias": "norm.bias",
    "heads.pre_logits.weight": "head.pre_logits.weight",
    "heads.pre_logits.bias": "head.pre_logits.bias",
}
HEAD = "heads.head."
LAYER = {
    "ln_1.": "norm1.",
    "self_attention.in_proj_": "attn.qkv.",
    "self_attention.out_proj.": "attn.proj.",
    "ln_2.": "norm2.",
    "mlp.0.": "mlp.fc1.",
    "mlp.3.": "mlp.fc2.",
}
OLDER = {"mlp.linear_1.": "mlp.fc1.", "mlp.linear_2.": "mlp.fc2."}  # files before release 0.14
FIRST_LAYER = "encoder.layers.encoder_layer_0.self_attention.in_proj_weight"


class TorchvisionFormat:
    """The layout of torchvision's `VisionTransformer`.

    Query, key and value are stacked as in the model; `heads.pre_logits` is followed by tanh.
    """

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether the patch projection and a first attention are there."""
        return "conv_proj.weight" in keys and FIRST_LAYER in keys

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename; both names of the MLP's layers are read."""
        tanh = any(name.startswith("heads.pre_logits.") for name in tensors)
        head = "head.fc." if tanh else "head."
        return unique((_rename(name, head), tensor) for name, tensor in tensors.items())

    def inverse(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, to the names that torchvision writes today.

        Raises:
            CheckpointError: tensors that torchvision's network does not have.
        """
        tanh = any(name.startswith("head.pre_logits.") for name in tensors)
        names = {name: _inverse(name, "head.fc." if tanh else "head.") for name in tensors}
        left = [name for name, theirs in names.items() if theirs is None]
        if left:
            raise unheld("torchvision", left)
        return {theirs: tensors[name] for name, theirs in names.items() if theirs is not None}

    def expresses(self, spec: Spec) -> list[str]:
        """Return what torchvision's network lacks: it is the paper's, for square colour images."""
        square = (
            spec.image_size[0] == spec.image_size[1] and spec.patch_size[0] == spec.patch_size[1]
        )
        return [
            *([] if square else ["images or patches that are not square"]),
            *([] if spec.in_chans == 3 else [f"in_chans = {spec.in_chans}"]),
            *unsupported.class_token(spec),
            *unsupported.patch_bias(spec),
            *unsupported.plain_blocks(spec),
            *unsupported.one_learned_table(spec),
            *unsupported.pooled(spec, "class"),
        ]

    def facts(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return exact GELU, norm epsilon 1e-6 and its `interpolate_embeddings`."""
        if config:
            return {}
        return {
            "block": {"activation": "gelu", "norm_eps": 1e-6},
            "pos_embed": {"resample": "bicubic_corners"},
        }


def _rename(name: str, head: str) -> str:
    if name in STEM:
        return STEM[name]
    if name in (f"{HEAD}weight", f"{HEAD}bias"):
        return head + name.removeprefix(HEAD)
    match = re.fullmatch(r"encoder\.layers\.encoder_layer_(\d+)\.(.+[._])(weight|bias)", name)
    ours = match and (LAYER | OLDER).get(match[2])
    return f"blocks.{match[1]}.{ours}{match[3]}" if match and ours else name


def _inverse(name: str, head: str) -> str | None:
    """Return torchvision's name for one of the model's, None if it has none."""
    if block := block_of(name):
        number, part, kind = block
        return f"encoder.layers.encoder_layer_{number}.{invert(LAYER)[f'{part}.']}{kind}"
    if name in (f"{head}weight", f"{head}bias"):
        return HEAD + name.removeprefix(head)
    return invert(STEM).get(name)


torchvision = TorchvisionFormat()
