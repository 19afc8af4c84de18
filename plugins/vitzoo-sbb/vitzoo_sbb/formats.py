"""The names of timm's networks whose tensors the model names otherwise."""

from __future__ import annotations

from vitzoo.formats import Format, KeyMap, Keys, free

SCALES = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}
NETWORK = {
    **free("class_token", "num_registers", "pos_embed.prefix", "block.post_norm"),
    **free("block.attn_norm", "block.mlp_norm"),
    "block.qk_norm": (True, False),
    "block.layer_scale": (lambda spec: spec.block.layer_scale is not None,),
    "pos_embed": ("learned", "rope", "rope_mixed", "none"),
    "pool": ("class", "mean"),
}
ANGLES, TABLE = "rope.freqs", "pos_embed"


class TimmRopeFormat(Format):
    """timm's RoPE-ViT; a file with a table and no learned angles has the keys of DeiT III."""

    def matches(self, keys: Keys) -> bool:
        """Return whether the keys are those of a RoPE-ViT and of no DeiT III."""
        return super().matches(keys) and (ANGLES in keys or TABLE not in keys)


timm_eva = Format(
    "sbb/timm",
    keymap=KeyMap(
        layer={**SCALES, "attn.q_bias": "attn.q_bias", "attn.v_bias": "attn.v_bias"}, others=True
    ),
    marks=("reg_token", "fc_norm.weight", "blocks.0.gamma_1", "blocks.0.attn.qkv.weight"),
    excludes=("mask_token", "*relative_position_bias_table"),
    network={**NETWORK, "block.qkv_bias": ("qv", False), "block.mlp": ("mlp", "swiglu")},
)
timm_rope = TimmRopeFormat(
    "rope_vit/timm",
    keymap=KeyMap({ANGLES: "positions.freqs"}, SCALES, others=True),
    marks=("cls_token", "norm.weight", "blocks.0.gamma_1", "blocks.0.attn.qkv.weight"),
    excludes=(
        *("reg_token", "norm_pre.weight", "mask_token", "blocks.0.attn.q_bias"),
        "*relative_position_bias_table",  # of BEiT
    ),
    network={**NETWORK, "block.qkv_bias": (True, False), "block.mlp": ("mlp", "swiglu")},
)
timm_parallel = Format(
    "sbb/timm_parallel",
    keymap=KeyMap(
        layer={
            "in_norm.": "norm.",
            "in_proj.": ("mlp.fc1.",) * 5 + ("attn.qkv.",) * 3,  # the MLP is 5 times as wide
            "q_norm.": "attn.q_norm.",
            "k_norm.": "attn.k_norm.",
            "attn_out_proj.": "attn.proj.",
            "mlp_out_proj.": "mlp.fc2.",
        },
        others=True,
    ),
    marks=("blocks.0.in_proj.weight", "blocks.0.attn_out_proj.weight"),
    network={
        **free("class_token", "num_registers", "pos_embed.prefix"),
        **free("block.layer_scale", "final_norm"),
        "block.qk_norm": (True, False),
        "block.parallel": (True,),
        "pos_embed": ("learned", "none"),
        "pool": ("class", "mean"),
    },
)
