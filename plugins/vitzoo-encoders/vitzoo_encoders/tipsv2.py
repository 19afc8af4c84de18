"""The names of Google's TIPSv2, which transformers writes: those of DINOv2, but for the MLP.

A tower alone with a gated MLP has all names of DINOv2, whose format then reads its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitzoo import formats
from vitzoo.formats import Config, KeyMap, Tensors, TransformersFormat

POSITIONS = {"pos_embed": {"prefix": False, "resample": "bilinear_antialias"}}
VISION = "tipsv2_vision_model"
REGISTERS = formats.whole("num_register_tokens", "num_registers", least=0)
CONFIG = formats.COMMON.but(
    applied={
        "qkv_bias": formats.QKV_BIAS,
        "layerscale_value": formats.positive("layerscale_value", "layer_scale"),
        "mlp_ratio": formats.read_with,
        "use_swiglu_ffn": formats.read_with,
        "num_register_tokens": lambda value: REGISTERS(value) | POSITIONS,
    },
    fixed={"head_dim": (None,)},
    irrelevant={
        "is of the text tower, or of the whole model": ("text_config", "temperature_init_value")
    },
    defaults={
        "image_size": 448,
        "patch_size": 14,
        "layer_norm_eps": 1e-6,
        "qkv_bias": True,
        "layerscale_value": 1.0,
        "mlp_ratio": 4,
        "use_swiglu_ffn": False,
        "num_register_tokens": 1,
    },
    network={"num_classes": 0},
)


class TipsV2Format(TransformersFormat):
    """The image tower of TIPSv2; the position of its class token is part of that token."""

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        return formats.fold_class_position(super().to_model(tensors))

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, with a mask token and a row of positions for the class token."""
        written = super().from_model(formats.unfold_class_position(tensors))
        token = tensors.get("cls_token")
        return written if token is None else written | {"mask_token": torch.zeros_like(token[0])}

    def own_config(self, config: Config) -> Config:
        """Return the config of the image tower, alone or in that of the whole model."""
        tower = config.get("vision_config", config)
        tower = tower if isinstance(tower, Mapping) else {}
        return super().own_config({**tower, "model_type": VISION})

    def stated(self, config: Config) -> dict[str, Any]:
        return formats.with_mlp(super().stated(config), self.own_config(config), "swiglu_packed")


transformers_tipsv2 = TipsV2Format(
    "tipsv2/transformers",
    configs=dict.fromkeys(("tipsv2", VISION), CONFIG),
    keymap=KeyMap(
        {
            "register_tokens": "reg_token",
            **{key: key for key in ("cls_token", "pos_embed", "patch_embed.proj.", "norm.")},
        },
        {
            **{
                k: k
                for k in ("norm1.", "attn.qkv.", "attn.proj.", "ls1.gamma", "norm2.", "ls2.gamma")
            },
            "mlp.c_fc.": "mlp.fc1.",
            "mlp.c_proj.": "mlp.fc2.",
            "mlp.w12.": "mlp.fc1.",
            "mlp.w3.": "mlp.fc2.",
        },
        prefixes=("vision_encoder.",),
    ),
    marks=("register_tokens", "blocks.0.ls1.gamma", ("blocks.0.mlp.c_fc.weight", "temperature")),
    ignored=("mask_token", "temperature", "text_encoder.*"),
    beside=("text_encoder.",),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-6}, **POSITIONS},
    network={
        "num_registers": (lambda spec: spec.num_registers > 0,),
        "block.layer_scale": (lambda spec: spec.block.layer_scale is not None,),
        "block.qkv_bias": (True, False),
        "pos_embed.prefix": (False,),
    },
)
