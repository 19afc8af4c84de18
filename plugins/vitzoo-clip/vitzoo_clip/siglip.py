"""The names of transformers' SigLIP, and of image towers that have its names.

A file of SigLIP 2 NaFlex has the patch projection as a matrix over rows, columns and channels; it
is written as a convolution, as SigLIP has it.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from vitzoo import formats
from vitzoo.formats import Config, KeyMap, Keys, Names, Tensors
from vitzoo.parts import resample_grid
from vitzoo_clip.transformers import IGNORED, LAYER, MARKS, TABLE, TOKEN, TransformersTower
from vitzoo_clip.types import PREFIX

CLASSIFIER = "classifier.weight"
CHANNELS = (3, 1, 2, 5, 6, 7)  # without a square factor, so that the width of a patch shows them
MEAN = {"pool": "mean"}
NEAREST = {"pos_embed": {"resample": "nearest"}}
STEM: Names = {
    TABLE: "pos_embed",
    "embeddings.patch_embedding.": "patch_embed.proj.",
    "post_layernorm.": "norm.",
}
POOL: Names = {
    "head.probe": "attn_pool.latent",
    "head.attention.out_proj.": "attn_pool.proj.",
    "head.layernorm.": "attn_pool.norm.",
    "head.mlp.fc1.": "attn_pool.mlp.fc1.",
    "head.mlp.fc2.": "attn_pool.mlp.fc2.",
    "head.attention.in_proj_weight": ("attn_pool.q.weight", *["attn_pool.kv.weight"] * 2),
    "head.attention.in_proj_bias": ("attn_pool.q.bias", *["attn_pool.kv.bias"] * 2),
}
KEYS = KeyMap(
    {**STEM, **POOL},
    LAYER,
    "encoder.layers.{}.",
    aliases={  # of Janus
        "encoder.layers.{}.self_attn.projection_layer.": "encoder.layers.{}.self_attn.out_proj."
    },
    prefixes=(PREFIX,),
)


def _square(value: Any) -> dict[str, Any]:
    """Read the number of patches of NaFlex, whose positions are a square."""
    good = type(value) is int and value > 0 and isqrt(value) ** 2 == value
    formats.expect(good, "a square number, as the positions are")
    return {"pos_embed": {"resample": "bilinear_antialias"}}


ONE_SIDE = "one number, for squares"
SQUARE = {key: formats.size(key, square=ONE_SIDE) for key in ("image_size", "patch_size")}
SIGLIP = formats.WITH_MLP.but(
    applied={**SQUARE, "vision_use_head": formats.choice({True: {}, False: MEAN})},
    defaults={"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
    network={"class_token": False, "pool": "attention", "num_classes": 0},
)
NAFLEX = SIGLIP.without("image_size").but({"num_patches": (_square, 256)})
IDEFICS2 = SIGLIP.but(
    applied={"image_size": lambda value: SQUARE["image_size"](value) | NEAREST},
    defaults={"patch_size": 32},
    network=MEAN,
)
IDEFICS3 = IDEFICS2.but(defaults={"hidden_size": 1152, "num_attention_heads": 16})
JANUS = formats.COMMON.but(
    {
        "attention_bias": (formats.flag("block.qkv_bias"), True),
        "mlp_ratio": (formats.read_with, 4.0),
    },
    irrelevant={
        "acts in training only": ("hidden_dropout_rate", "projection_dropout"),
        "is of the layers behind the tower": ("projection_dim", "depth", "num_image_tokens"),
    },
    applied=SQUARE,
    fixed={"use_qk_norm": (False,)},  # with it, transformers fails
    defaults={**formats.sizes(1024, 24, 16), "image_size": 384, "layer_norm_eps": 1e-6},
    network={"class_token": False, "num_classes": 0, **MEAN},
)


class SiglipTower(TransformersTower):
    """The image tower of SigLIP, with attention pooling, with a classifier, or with neither."""

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states, with the image size of NaFlex."""
        found, own = super().stated(config), self.own_config(config)
        table = self.config_table(config)
        if table is NAFLEX:
            expected = f"one of {CHANNELS}, as a file with patches as a matrix shows no other"
            good = found["in_chans"] in CHANNELS
            formats.check_config(good, "num_channels", expected, found["in_chans"])
            found["image_size"] = isqrt(own["num_patches"]) * found["patch_size"]
        elif table in (IDEFICS2, IDEFICS3):
            _check_positions(found["image_size"], found["patch_size"])
        return found

    def ignored_keys(self, keys: Keys) -> list[str]:
        """Return the keys that do not belong to the network: a classifier reads no pool."""
        pool = (f"{PREFIX}head.",) if CLASSIFIER in keys else ()
        return super().ignored_keys(keys) + [key for key in keys if key.startswith(pool)]

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        if key.endswith("patch_embedding.weight") and tensor.dim() == 2:
            return _convolution(tensor)
        return super().read_axes(key, tensor)


def _convolution(matrix: Tensor) -> Tensor:
    """Return (d, h * w * c) patches of NaFlex as a (d, c, h, w) kernel, if they are square."""
    for channels in CHANNELS:
        side = isqrt(matrix.shape[1] // channels)
        if side and side * side * channels == matrix.shape[1]:
            kernel = matrix.reshape(-1, side, side, channels)
            return kernel.permute(0, 3, 1, 2).contiguous()
    return matrix


def _check_positions(image: Any, patch: Any) -> None:
    """Refuse a size at which transformers rounds two patches to one position."""
    side = image // patch
    table = torch.arange(float(side), device="cpu").view(1, -1, 1)
    same = not side or torch.equal(resample_grid(table, (1, side), (1, side), "nearest"), table)
    expected = (
        f"of another grid than {side}x{side} patches, at which transformers rounds two patches to "
        "one position"
    )
    formats.check_config(same, "image_size", expected, image)


def _with_classifier(tensors: Tensors) -> bool:
    return CLASSIFIER in tensors or (
        "head.weight" in tensors and "attn_pool.q.weight" not in tensors
    )


transformers_siglip = SiglipTower(
    "siglip/transformers",
    configs={
        **dict.fromkeys(("siglip", "siglip_vision_model"), SIGLIP),
        **dict.fromkeys(("siglip2", "siglip2_vision_model"), NAFLEX),
        "idefics2_vision": IDEFICS2,
        **dict.fromkeys(("idefics3_vision", "smolvlm_vision"), IDEFICS3),
        "janus_vision_model": JANUS,
    },
    towers=("vision_config",),
    larger=("siglip", "siglip2"),
    keymap=KEYS,
    keymaps={_with_classifier: replace(KEYS, stem={**STEM, "classifier.": "head."})},
    marks=(*MARKS, TABLE),
    excludes=(TOKEN,),
    ignored=IGNORED,
    beside=("text_model.",),
    defaults={
        "block": {"activation": "gelu_tanh", "norm_eps": 1e-6},
        "pos_embed": {"resample": "bicubic"},
    },
    defaults_with={CLASSIFIER: MEAN},
    network={
        "class_token": (False,),
        "pool": (formats.attention_like_blocks, {"name": "mean", "norm_first": True}),
    },
    projects=False,
    classifier=MEAN,
)
