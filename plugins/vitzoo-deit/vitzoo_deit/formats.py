"""The names of distilled DeiT: timm's and transformers'.

Both have a distillation token and a classifier for it. The model has that token as its register
and both classifiers in its head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vitzoo import Spec
from vitzoo.formats import (
    Config,
    Format,
    KeyMap,
    Keys,
    TransformersFormat,
    timm_vit,
    transformers_vit,
    unsupported,
)

TOKEN = "embeddings.distillation_token"
CLASSIFIERS = {"cls_classifier.": "head.cls.", "distillation_classifier.": "head.dist."}


class TimmDistilledFormat(Format):
    """timm's `VisionTransformerDistilled`: its ViT with `dist_token` and `head_dist`."""

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what timm's distilled network lacks of a spec."""
        return [*_tokens(spec), *super().unsupported(spec), *_both_classifiers(spec)]


class TransformersDeiTFormat(TransformersFormat):
    """transformers' `DeiTModel` and what it builds on it.

    The names are those of its ViT, with `deit.` in front where there is a classifier.
    `DeiTForImageClassificationWithTeacher` has two of them; `DeiTForImageClassification` has one,
    which reads the class token alone.
    """

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what transformers' DeiT lacks of a spec."""
        single = (spec.pool.name, spec.head.name) == ("class", "linear")
        classifiers = [] if single else _both_classifiers(spec)
        return [*_tokens(spec), *super().unsupported(spec), *classifiers]

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return the overrides of transformers' ViT, and what a single classifier reads."""
        single = {"pool": "class", "head": "linear"} if "classifier.weight" in keys else {}
        return super().overrides(config, keys) | single


def _tokens(spec: Spec) -> list[str]:
    """Return the problem of other tokens than a class and a distillation token."""
    if spec.class_token and spec.num_registers == 1:
        return []
    token = "true" if spec.class_token else "false"
    return [f"class_token = {token} and num_registers = {spec.num_registers}"]


def _both_classifiers(spec: Spec) -> list[str]:
    """Return the problems of anything but a classifier on each of the two tokens."""
    if spec.head.name == "none" or not spec.num_classes:
        return []
    two = spec.pool.name == "prefix" and dict(spec.pool.options).get("tokens", 2) == 2
    return [
        *([] if two else [unsupported.part("pool", spec.pool)]),
        *([] if spec.head.name == "deit/distilled" else [unsupported.part("head", spec.head)]),
    ]


timm_distilled = TimmDistilledFormat(
    "deit/timm_distilled",
    keymap=KeyMap(
        {"dist_token": "reg_token", "head.": "head.cls.", "head_dist.": "head.dist."}, others=True
    ),
    marks=("dist_token", *timm_vit.marks),
    network={
        "token": False,
        "bias": None,
        "blocks": ("qk_norm", "layer_scale", "mlp", "qkv_bias", "num_registers", "pre_norm"),
        "positions": ("none",),
        "prefix": (True, False),
        "pools": (),
    },
)
transformers_deit = TransformersDeiTFormat(
    "deit/transformers",
    keymap=replace(
        transformers_vit.keymap,
        stem={**transformers_vit.keymap.stem, TOKEN: "reg_token", **CLASSIFIERS},
        prefixes=("deit.",),
        bare=(*CLASSIFIERS, "classifier."),
    ),
    marks=(TOKEN, *transformers_vit.marks),
    defaults=transformers_vit.defaults,
    network={"token": False, "blocks": ("qkv_bias", "num_registers"), "pools": ()},
)
