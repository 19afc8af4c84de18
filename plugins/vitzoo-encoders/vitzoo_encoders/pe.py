"""The names of timm's Perception Encoder with LayerScale; all others have those of the model."""

from __future__ import annotations

from vitzoo.formats import Format, KeyMap, free

timm_eva = Format(
    "pe/timm",
    keymap=KeyMap(layer={"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}, others=True),
    marks=("norm_pre.weight", "blocks.0.gamma_1", "blocks.0.attn.qkv.weight"),
    network={
        **free("class_token", "num_registers", "final_norm", "pos_embed.prefix"),
        **free("block.attn_norm", "block.mlp_norm", "block.post_norm"),
        "block.layer_scale": (lambda spec: spec.block.layer_scale is not None,),
        "block.qk_norm": (True, False),
        "block.mlp": ("mlp", "swiglu"),
        "pre_norm": (True,),
        "patch_embed.bias": (False,),
        "pos_embed": ("learned", "rope", "rope_mixed", "none"),
        "pool": ("class", "mean", "attention"),
    },
)
