"""timm's names, which are the model's own: fused qkv, `blocks.N`, `norm`, `head`.

Networks of other classes of timm's have the same names for most, and one of `excludes`: distilled
ones a second token, and a second head beside `head`; EVA's factors of the channels; BEiT's relative
positions; Meta's own files a mask token. They are left to a format that knows what else is in them.
"""

from __future__ import annotations

from itertools import combinations

from vitzoo.formats.base import Format

MARKS = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight")
BLOCKS = ("qk_norm", "layer_scale", "mlp", "qkv_bias", "num_registers", "pre_norm")
NORMS = ("norm", "attn_norm", "mlp_norm", "post_norm", "final_norm")

timm_vit = Format(
    "timm",
    marks=tuple(combinations(MARKS, 2)),  # two of the three at least
    excludes=(
        "dist_token",
        "blocks.0.gamma_1",
        "mask_token",
        "blocks.0.attn.relative_position_bias_table",
        "rel_pos_bias.relative_position_bias_table",
    ),
    network={
        "token": False,
        "bias": None,
        "blocks": BLOCKS + NORMS,
        "positions": ("none",),
        "prefix": (True, False),
        "pools": ("class", "mean", "attention"),
    },
)
