"""The names of DINOv2: Meta's own, and transformers'.

Meta's network adds positions before it joins the registers, and its class token has a position. In
the model, that position is part of the class token; a row of zeros is written back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from vitzoo import Spec, formats
from vitzoo.formats import Config, KeyMap, Names, Tensors, TransformersFormat, same
from vitzoo_dino.dino import MetaFormat

PATCHES = "embeddings.patch_embeddings.projection.weight"
PREFIXES = ("dinov2.", "dinov2_with_registers.")
ANTIALIASED = {"pos_embed": {"resample": "bicubic_antialias"}}  # of networks with registers
MLP = same("mlp.fc1.", "mlp.fc2.")
PACKED = {"mlp.w12.": "mlp.fc1.", "mlp.w3.": "mlp.fc2."}
META = KeyMap(
    {"register_tokens": "reg_token"} | same("cls_token", "pos_embed", "patch_embed.proj.", "norm."),
    same("norm1.", "attn.qkv.", "attn.proj.", "ls1.gamma", "norm2.", "ls2.gamma") | MLP | PACKED,
)
PACKED_5: Names = {
    "mlp.weights_in.": "mlp.fc1.",
    "mlp.weights_out.": "mlp.fc2.",
    ("mlp.gate_proj.", "mlp.up_proj."): "mlp.fc1.",  # of release 5
    "mlp.down_proj.": "mlp.fc2.",
}
TRANSFORMERS = KeyMap(
    {
        **formats.TRANSFORMERS_STEM,
        "embeddings.register_tokens": "reg_token",
        "embeddings.position_embeddings": "pos_embed",
        "classifier.": "head.linear.",
    },
    {
        **same("norm1.", "norm2."),
        formats.TRANSFORMERS_QKV: "attn.qkv.",
        "attention.output.dense.": "attn.proj.",
        "layer_scale1.lambda1": "ls1.gamma",
        "layer_scale2.lambda1": "ls2.gamma",
        **MLP,
        **PACKED_5,
    },
    "encoder.layer.{}.",
    aliases={
        alias.replace("layers", "encoder.layer"): key
        for alias, key in formats.RELEASE_5.items()
        if "attention" in alias
    },
    prefixes=PREFIXES,
)


class MetaDinoV2Format(MetaFormat):
    """Meta's DINOv2."""

    def resampling(self, spec: Spec) -> str:
        return (
            ANTIALIASED["pos_embed"]["resample"] if spec.num_registers else super().resampling(spec)
        )


class TransformersDinoV2Format(TransformersFormat):
    """transformers' `Dinov2Model` and `Dinov2WithRegistersModel`, with or without classifier."""

    def head(self, config: Config) -> dict[str, Any]:
        if formats.is_classifier(config):
            return {**CLASS_AND_MEAN, "num_classes": formats.classes_of(config)}
        return super().head(config)

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename and split; a network with a classifier gets a prefix."""
        written = super().from_model(tensors)
        classifier = any(key.startswith("classifier.") for key in written)
        prefix = PREFIXES["reg_token" in tensors] if classifier else ""
        return formats.prefixed(written, prefix, ("classifier.",))


def _is_packed(tensors: Tensors) -> bool:
    """Return whether an MLP has gate and value in one matrix, twice as wide as its last layer."""
    for name, first in tensors.items():
        last = tensors.get(name.replace(".mlp.fc1.", ".mlp.fc2."))
        if ".mlp.fc1.weight" in name and last is not None and first.dim() == last.dim() == 2:
            return first.shape[0] == 2 * last.shape[1]
    return False


def _class_and_mean(spec: Spec) -> bool:
    return (spec.pool.name, spec.head.name) == ("class_mean", "dinov2/class_and_mean")


NETWORK = {
    **formats.free("num_registers"),
    "block.layer_scale": (lambda spec: spec.block.layer_scale is not None,),
    "block.qkv_bias": (True, False),
    "block.mlp": ("mlp", "swiglu_packed"),
    "pos_embed.prefix": (
        lambda spec: dict(spec.pos_embed.options).get("prefix", True) != bool(spec.num_registers),
    ),
}
BLOCK = {"activation": "gelu", "norm_eps": 1e-6}
CLASS_AND_MEAN = {"pool": "class_mean", "head": "dinov2/class_and_mean"}
SQUARE = "one number of px (transformers interpolates positions from a square grid)"
CONFIG = formats.WITH_GATE.but(
    {"image_size": (formats.size("image_size", square=SQUARE), 224)}, defaults={"patch_size": 14}
)
REGISTERS = CONFIG.but(
    {"num_register_tokens": (formats.whole("num_registers"), 4)},
    defaults={"patch_size": 16},
    network={"pos_embed": {"name": "learned", "prefix": False, "resample": "bicubic_antialias"}},
)
meta = MetaDinoV2Format(
    "dinov2/meta",
    keymap=META,
    keymaps={_is_packed: replace(META, layer={**PACKED, **META.layer})},
    marks=("mask_token", "blocks.0.ls1.gamma", "blocks.0.attn.qkv.weight", "pos_embed"),
    excludes=("blocks.0.mlp.c_fc.weight",),  # of a TIPSv2
    ignored=("mask_token",),
    mask_token=("mask_token", 2),
    class_position=True,
    defaults={"block": BLOCK, "pos_embed": {"resample": "bicubic_offset"}, "pool": "class"},
    defaults_with={"register_tokens": ANTIALIASED},
    network=NETWORK,
)
transformers = TransformersDinoV2Format(
    "dinov2/transformers",
    configs={"dinov2": CONFIG, "dinov2_with_registers": REGISTERS},
    keymap=TRANSFORMERS,
    keymaps={_is_packed: replace(TRANSFORMERS, layer={**PACKED_5, **TRANSFORMERS.layer})},
    marks=(PATCHES, "encoder.layer.0.layer_scale1.lambda1"),
    ignored=("embeddings.mask_token",),
    mask_token=("embeddings.mask_token", 2),
    class_position=True,
    defaults={"block": BLOCK, "pos_embed": {"resample": "bicubic"}, "pool": "class"},
    defaults_with={
        "embeddings.register_tokens": ANTIALIASED,
        "classifier.weight": CLASS_AND_MEAN,
    },
    network={
        **NETWORK,
        "pool": ("class", lambda spec: _class_and_mean(spec) and spec.num_classes),
        "head": ("none", _class_and_mean, lambda spec: not spec.num_classes),
    },
)
