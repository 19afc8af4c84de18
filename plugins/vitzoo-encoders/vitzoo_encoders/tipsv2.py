"""The names of Google's TIPSv2, which transformers writes: those of DINOv2, but for the MLP.

A tower alone with a gated MLP has all names of DINOv2, whose format then reads its tensors.
"""

from __future__ import annotations

from typing import Any

from vitzoo import formats
from vitzoo.formats import KeyMap, TransformersFormat, same

POSITIONS = {"pos_embed": {"prefix": False, "resample": "bilinear_antialias"}}


def _registers(value: Any) -> dict[str, Any]:
    return formats.whole("num_registers", least=0)(value) | POSITIONS


CONFIG = formats.WITH_GATE.but(
    {"num_register_tokens": (_registers, 1)},
    fixed={"head_dim": (None,)},
    defaults={"image_size": 448, "patch_size": 14},
    network={"num_classes": 0},
)
transformers_tipsv2 = TransformersFormat(
    "tipsv2/transformers",
    configs=dict.fromkeys(("tipsv2", "tipsv2_vision_model"), CONFIG),
    towers=("vision_config",),
    larger=("tipsv2",),
    keymap=KeyMap(
        {
            "register_tokens": "reg_token",
            **same("cls_token", "pos_embed", "patch_embed.proj.", "norm."),
        },
        {
            **same("norm1.", "attn.qkv.", "attn.proj.", "ls1.gamma", "norm2.", "ls2.gamma"),
            "mlp.c_fc.": "mlp.fc1.",
            "mlp.c_proj.": "mlp.fc2.",
            "mlp.w12.": "mlp.fc1.",
            "mlp.w3.": "mlp.fc2.",
        },
        prefixes=("vision_encoder.",),
    ),
    marks=("register_tokens", "blocks.0.ls1.gamma", ("blocks.0.mlp.c_fc.weight", "temperature")),
    ignored=("mask_token", "temperature", "text_encoder.*"),
    mask_token=("mask_token", 2),
    class_position=True,
    beside=("text_encoder.",),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-6}, **POSITIONS},
    network={
        "num_registers": (lambda spec: spec.num_registers > 0,),
        "block.layer_scale": (lambda spec: spec.block.layer_scale is not None,),
        "block.qkv_bias": (True, False),
        "pos_embed.prefix": (False,),
    },
)
