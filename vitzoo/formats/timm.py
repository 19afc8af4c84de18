"""timm's layout, which is the model's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from vitzoo.formats import unsupported
from vitzoo.formats.base import Format
from vitzoo.schema.spec import Spec


class TimmFormat(Format):
    """timm's `VisionTransformer`: fused qkv, `blocks.N`, `norm`, `head`.

    Networks of other classes of timm's have the same names for most, and one of `OTHERS`: distilled
    ones a second token, and a second head beside `head`; EVA's factors of the channels; BEiT's
    relative positions; Meta's own files a mask token. They are left to a format that knows what
    else is in them.
    """

    MARKS = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight")
    OTHERS = (
        "dist_token",
        "blocks.0.gamma_1",
        "mask_token",
        "blocks.0.attn.relative_position_bias_table",
        "rel_pos_bias.relative_position_bias_table",
    )

    def matches(self, keys: Collection[str]) -> bool:
        """Tell whether two of the layout's typical keys are there, and none of `OTHERS`."""
        found = sum(mark in keys for mark in self.MARKS)
        return found >= 2 and not any(mark in keys for mark in self.OTHERS)

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors as they are."""
        return dict(tensors)

    def from_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors as they are."""
        return dict(tensors)

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what timm's `VisionTransformer` lacks; it has options for most."""
        allowed = {"qk_norm", "layer_scale", "mlp", "qkv_bias", "num_registers", "pre_norm"}
        allowed |= {"norm", "attn_norm", "mlp_norm", "post_norm", "final_norm"}
        return [
            *unsupported.patch_bias(spec, bias=not spec.pre_norm),
            *unsupported.plain_blocks(spec, allowed=allowed),
            *unsupported.one_learned_table(spec, "none", prefix=(True, False)),
            *unsupported.pooled(spec, "class", "mean", "attention"),
            *unsupported.attention_pool(spec),
        ]

    def overrides(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return nothing: a file in timm's layout is evaluated as its variant is."""
        return {}


timm_vit = TimmFormat("timm")
