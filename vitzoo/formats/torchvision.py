"""The names of torchvision's `VisionTransformer`."""

from __future__ import annotations

from dataclasses import replace

from vitzoo.formats.base import Format
from vitzoo.formats.keymap import KeyMap

BLOCK = "encoder.layers.encoder_layer_{}."
LINEAR = KeyMap(
    {
        "class_token": "cls_token",
        "encoder.pos_embedding": "pos_embed",
        "conv_proj.": "patch_embed.proj.",
        "encoder.ln.": "norm.",
        "heads.pre_logits.": "head.pre_logits.",
        "heads.head.": "head.",
    },
    {
        "ln_1.": "norm1.",
        "self_attention.in_proj_weight": "attn.qkv.weight",
        "self_attention.in_proj_bias": "attn.qkv.bias",
        "self_attention.out_proj.": "attn.proj.",
        "ln_2.": "norm2.",
        "mlp.0.": "mlp.fc1.",
        "mlp.3.": "mlp.fc2.",
    },
    BLOCK,
    aliases={  # of files before release 0.14
        f"{BLOCK}mlp.linear_1.": f"{BLOCK}mlp.0.",
        f"{BLOCK}mlp.linear_2.": f"{BLOCK}mlp.3.",
    },
)
torchvision = Format(
    "torchvision",
    keymap=LINEAR,
    keymaps={"pre_logits.": replace(LINEAR, stem={**LINEAR.stem, "heads.head.": "head.fc."})},
    linear_head="heads.head.",
    marks=("conv_proj.weight", f"{BLOCK.format(0)}self_attention.in_proj_weight"),
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-6},
        "pos_embed": {"resample": "bicubic_corners"},  # its `interpolate_embeddings`
    },
    network={
        "image_size": (lambda spec: spec.image_size[0] == spec.image_size[1],),
        "patch_size": (lambda spec: spec.patch_size[0] == spec.patch_size[1],),
        "in_chans": (3,),
    },
)
