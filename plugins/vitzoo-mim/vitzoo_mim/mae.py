"""The names of Meta's MAE: timm's, beside a mask token and a decoder."""

from __future__ import annotations

from vitzoo.formats import Format, timm_vit

meta = Format(  # of pre-training; published encoders have timm's names alone
    "mae/meta",
    marks=(*timm_vit.marks, "mask_token"),
    excludes=(
        "blocks.0.ls1.gamma",  # of a DINOv2
        "*relative_position_bias_table",  # of a BEiT
        "blocks.0.attn.q_bias",  # of an EVA
        "blocks.0.gamma_1",
    ),
    ignored=("mask_token", "decoder_*"),
    mask_token=("mask_token", 3),
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-6},
        "pos_embed": {"resample": "bicubic"},  # its `interpolate_pos_embed`
    },
    authors=True,
    network={"block.qkv_bias": (True, False), "pool": ("class", "mean")},
)
