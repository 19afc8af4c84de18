"""The names of distilled DeiT, timm's and transformers', and of Meta's DeiT III.

The distillation token is a register.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitzoo import Spec, formats
from vitzoo.formats import (
    Config,
    Format,
    KeyMap,
    TransformersFormat,
    timm_vit,
    transformers_vit,
)

TOKEN = "embeddings.distillation_token"
CLASSIFIERS = {"cls_classifier.": "head.cls.", "distillation_classifier.": "head.dist."}


def _one_classifier(spec: Spec) -> bool:
    return (spec.pool.name, spec.head.name) == ("class", "linear")


DISTILLED = {
    "class_token": (True,),
    "num_registers": (1,),
    "pool": (
        {"name": "prefix", "tokens": 2},
        lambda spec: spec.head.name == "none" or not spec.num_classes,
    ),
    "head": ("deit/distilled", "none", lambda spec: not spec.num_classes),
}


class TransformersDeitFormat(TransformersFormat):
    """transformers' `DeiTModel`, with one classifier, two or none."""

    def head(self, config: Config) -> dict[str, Any]:
        if "DeiTForImageClassificationWithTeacher" in formats.architectures(config):
            return {**TWO_CLASSIFIERS, "num_classes": formats.classes_of(config)}
        return super().head(config)


TWO_CLASSIFIERS = {"pool": {"name": "prefix", "tokens": 2}, "head": "deit/distilled"}
timm_distilled = Format(
    "deit/timm_distilled",
    keymap=KeyMap(
        {"dist_token": "reg_token", "head.": "head.cls.", "head_dist.": "head.dist."},
        aliases={"pos_embedding.pos_embedding": "pos_embed"},  # of a port, see vitzoo's `port`
        others=True,
    ),
    marks=("dist_token", *timm_vit.marks),
    network={**(timm_vit.network or {}), **DISTILLED},
)
meta_deit3 = Format(
    "deit/meta",
    keymap=KeyMap(layer={"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}, others=True),
    marks=(*timm_vit.marks, "blocks.0.gamma_1", "blocks.0.gamma_2", "cls_token", "pos_embed"),
    excludes=(
        "reg_token",  # of a DINOv3
        "norm_pre.weight",  # of a Perception Encoder
        "rope.freqs",  # of a RoPE-ViT
        "*relative_position_bias_table",  # of a BEiT
        *("blocks.0.attn.q_bias", "mask_token", "dist_token"),
    ),
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-6},
        "pos_embed": {"resample": "bicubic"},  # its `main.py`
    },
    authors=True,
    network={
        "block.layer_scale": (lambda spec: spec.block.layer_scale is not None,),
        "block.qkv_bias": (True, False),
        "pos_embed.prefix": (False,),
    },
)
transformers_deit = TransformersDeitFormat(
    "deit/transformers",
    configs={"deit": formats.VIT.but(network={"num_registers": 1})},
    keymap=replace(
        transformers_vit.keymap,
        stem={**transformers_vit.keymap.stem, TOKEN: "reg_token", **CLASSIFIERS},
        prefixes=("deit.",),
        bare=(*CLASSIFIERS, "classifier."),
    ),
    marks=(TOKEN, *transformers_vit.marks),
    ignored=("embeddings.mask_token", "decoder.0.*"),  # of `DeiTForMaskedImageModeling`
    defaults=transformers_vit.defaults,
    # `DeiTForImageClassification` has one classifier, which reads the class token alone.
    defaults_with={"classifier.weight": {"pool": "class", "head": "linear"}},
    network={
        **DISTILLED,
        "block.qkv_bias": (True, False),
        "pool": (*DISTILLED["pool"], _one_classifier),
        "head": (*DISTILLED["head"], _one_classifier),
    },
)
