"""The names of timm, which the model has, too: fused qkv, `blocks.N`, `norm`, `head`."""

from __future__ import annotations

from itertools import combinations

from vitzoo.formats.base import Format
from vitzoo.formats.unsupported import attention_like_blocks, free

HEADS = ("head.",)  # beginnings of the names of a head
MARKS = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight")


timm_vit = Format(
    "timm",
    marks=tuple(combinations(MARKS, 2)),  # at least two of the three
    excludes=(
        "dist_token",  # of a distilled network, which has a second head
        "blocks.0.gamma_1",  # of EVA
        "blocks.0.mlp.w12.weight",  # of the authors' EVA-02
        "mask_token",  # of Meta's own files
        "blocks.0.attn.rel_pos_h",  # of SAM or ViTDet
        "*relative_position_bias_table",  # of BEiT
        "pos_embedding.pos_embedding",  # of a port
    ),
    network={
        **free("class_token", "num_registers", "final_norm", "pos_embed.prefix"),
        **free("block.norm", "block.attn_norm", "block.mlp_norm", "block.post_norm"),
        **free("block.layer_scale", "block.mlp", "patch_embed.norm"),
        **dict.fromkeys(("block.qkv_bias", "block.qk_norm"), (True, False)),
        **dict.fromkeys(
            ("block.proj_bias", "block.mlp_bias"),  # timm has one option for both
            (lambda spec: spec.block.proj_bias == spec.block.mlp_bias,),
        ),
        **dict.fromkeys(
            ("patch_embed.bias", "pre_norm"),  # its patches have a bias, or a norm after them
            (lambda spec: dict(spec.patch_embed.options).get("bias", True) != spec.pre_norm,),
        ),
        "pos_embed": ("learned", "none"),
        "pool": ("class", "mean", attention_like_blocks),
    },
)
