"""timm's names of EVA-02 with query, key and value in three matrices; otherwise the model's."""

from __future__ import annotations

from vitzoo.formats import Format, KeyMap, free

timm_eva = Format(
    "eva02/timm",
    keymap=KeyMap(
        layer={
            ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight"): "attn.qkv.weight",
            "attn.q_proj.bias": "attn.q_bias",
            "attn.v_proj.bias": "attn.v_bias",
        },
        others=True,
        refused=("blocks.{}.attn.qkv.", "blocks.{}.attn.k_proj."),
    ),
    marks=("patch_embed.proj.weight", "blocks.0.attn.q_proj.weight", "blocks.0.attn.v_proj.weight"),
    network={
        **free("num_registers", "block.qk_norm", "block.mlp", "block.attn_norm", "block.mlp_norm"),
        **free("class_token", "block.post_norm", "pos_embed.prefix"),
        "block.qkv_bias": (False, "qv"),
        "pos_embed": ("learned", "rope", "none"),
        "pool": ("class", "mean"),
    },
)
