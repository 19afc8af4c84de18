"""The names of transformers' image encoders: a format for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vitzoo import formats
from vitzoo.formats import Config, KeyMap, TransformersFormat

ONE_SIDE = "one number of px (transformers interpolates positions from a square grid)"


class EncoderFormat(TransformersFormat):
    """An image encoder alone, or as the tower of a whole model."""

    def own_config(self, config: Config) -> Config:
        """Return the config of the encoder, alone or in that of the whole model."""
        tower = config.get("vision_config", config)
        formats.check_config(isinstance(tower, Mapping), "vision_config", "a table", tower)
        return super().own_config({**tower, "model_type": config.get("model_type")})


def _square(key: str) -> Callable[[Any], dict[str, Any]]:
    """Return a function that reads one number of px, or two equal ones."""
    read = formats.size(key, key)

    def square(value: Any) -> dict[str, Any]:
        found = read(value)
        formats.check_config(type(found[key]) is int, key, ONE_SIDE, value)
        return found

    return square


ENCODER = formats.WITH_MLP.but(applied={key: _square(key) for key in ("image_size", "patch_size")})
BLIP = ENCODER.but(
    fixed={"num_channels": (3,)},
    irrelevant={
        "is of the whole model": (
            *("text_config", "projection_dim", "logit_scale_init_value"),
            *("image_text_hidden_size", "label_smoothing"),
        ),
    },
    defaults={"image_size": 384, "layer_norm_eps": 1e-5},
)
BLIP_2 = BLIP.but(
    applied={"qkv_bias": formats.QKV_BIAS},
    defaults={
        "hidden_size": 1408,
        "intermediate_size": 6144,
        "num_hidden_layers": 39,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 14,
        "layer_norm_eps": 1e-6,
        "qkv_bias": True,
    },
)
BICUBIC = {"pos_embed": {"resample": "bicubic"}}  # transformers' `interpolate_pos_encoding`
blip = EncoderFormat(
    "blip/transformers",
    configs={
        **dict.fromkeys(("blip_vision_model", "blip"), BLIP),
        **dict.fromkeys(("blip_2_vision_model", "instructblip_vision_model"), BLIP_2),
    },
    keymap=KeyMap(
        {
            "embeddings.class_embedding": "cls_token",
            "embeddings.position_embedding": "pos_embed",
            "embeddings.patch_embedding.": "patch_embed.proj.",
            "post_layernorm.": "norm.",
        },
        {
            "layer_norm1.": "norm1.",
            "self_attn.qkv.": "attn.qkv.",
            "self_attn.projection.": "attn.proj.",
            "layer_norm2.": "norm2.",
            "mlp.fc1.": "mlp.fc1.",
            "mlp.fc2.": "mlp.fc2.",
        },
        "encoder.layers.{}.",
        prefixes=("vision_model.",),
    ),
    marks=("embeddings.class_embedding", "encoder.layers.0.self_attn.qkv.weight"),
    ignored=(
        *("text_*", "logit_scale", "itm_head.*"),  # of a whole model
        *("vision_proj.*", "visual_projection.*"),
    ),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-5}, **BICUBIC},
    network={"block.qkv_bias": (True, False)},
)
