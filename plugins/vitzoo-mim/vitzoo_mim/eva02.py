"""The names of EVA-02: timm's, and the authors'; otherwise those of the model."""

from __future__ import annotations

from vitzoo.formats import Format, KeyMap, Names, free

APART: Names = {
    ("attn.q_proj.weight", "attn.k_proj.weight", "attn.v_proj.weight"): "attn.qkv.weight"
}
REFUSED = ("blocks.{}.attn.qkv.", "blocks.{}.attn.k_proj.")
SUBNORMS = {"attn.inner_attn_ln.": "attn.norm.", "mlp.ffn_ln.": "mlp.norm."}
GATE = {"mlp.w1.": "mlp.fc1_g.", "mlp.w2.": "mlp.fc1_x.", "mlp.w3.": "mlp.fc2."}
PACKED_GATE = {"mlp.w12.": "mlp.fc1.", "mlp.w3.": "mlp.fc2."}
authors = Format(
    "eva02/authors",
    keymap=KeyMap(layer={**APART, **SUBNORMS, **GATE}, others=True, refused=REFUSED),
    keymaps={
        "blocks.0.mlp.w12.": KeyMap(layer=PACKED_GATE, others=True),
        "blocks.0.mlp.fc1.": KeyMap(layer=PACKED_GATE, others=True),
    },
    marks=(
        "patch_embed.proj.weight",
        "blocks.0.attn.q_bias",
        ("blocks.0.mlp.w1.weight", "blocks.0.mlp.w12.weight"),
    ),
    ignored=("mask_token", "lm_head.*", "*rope.freqs_*"),
    defaults_with={"lm_head.weight": {"pool": "mean"}},  # before fine-tuning
    network={
        **free("block.attn_norm", "block.mlp_norm", "class_token", "pos_embed.prefix"),
        "block.qkv_bias": ("qv",),
        "block.mlp": ("swiglu", "swiglu_packed"),
        "pos_embed": ("learned", "rope", "none"),
        "pool": ("class", "mean"),
    },
)
timm_eva = Format(
    "eva02/timm",
    keymap=KeyMap(
        layer={**APART, "attn.q_proj.bias": "attn.q_bias", "attn.v_proj.bias": "attn.v_bias"},
        others=True,
        refused=REFUSED,
    ),
    marks=("patch_embed.proj.weight", "blocks.0.attn.q_proj.weight", "blocks.0.attn.v_proj.weight"),
    excludes=("blocks.0.mlp.w1.weight",),  # of the authors
    network={
        **free("num_registers", "block.mlp", "block.attn_norm", "block.mlp_norm"),
        **free("class_token", "block.post_norm", "pos_embed.prefix"),
        "block.qkv_bias": (False, "qv"),
        "block.qk_norm": (True, False),
        "pos_embed": ("learned", "rope", "none"),
        "pool": ("class", "mean"),
    },
)
