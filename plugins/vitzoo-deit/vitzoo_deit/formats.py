"""The layouts of distilled DeiT: timm's and transformers'.

Both have a distillation token and a classifier for it. The model has that token as its register
and both classifiers in its head.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from vitzoo.errors import CheckpointError
from vitzoo.formats import Format, unsupported
from vitzoo.formats.keymap import invert, unheld, unique
from vitzoo.formats.timm import MARKS
from vitzoo.formats.transformers import transformers_vit
from vitzoo.schema.spec import Spec

TIMM = {
    "dist_token": "reg_token",
    "head.weight": "head.cls.weight",
    "head.bias": "head.cls.bias",
    "head_dist.weight": "head.dist.weight",
    "head_dist.bias": "head.dist.bias",
}
TOKEN = "embeddings.distillation_token"
PREFIX = "deit."
TRANSFORMERS = {
    TOKEN: "reg_token",
    "cls_classifier.weight": "head.cls.weight",
    "cls_classifier.bias": "head.cls.bias",
    "distillation_classifier.weight": "head.dist.weight",
    "distillation_classifier.bias": "head.dist.bias",
}
CLASSIFIERS = ("cls_classifier.", "distillation_classifier.", "classifier.")


class TimmDistilledFormat(Format):
    """timm's `VisionTransformerDistilled`: its ViT with `dist_token` and `head_dist`."""

    def matches(self, keys: Collection[str]) -> bool:
        """Tell whether the distillation token is there beside two of timm's typical keys."""
        return "dist_token" in keys and sum(mark in keys for mark in MARKS) >= 2

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename the distillation token and the classifiers."""
        return unique((TIMM.get(name, name), tensor) for name, tensor in tensors.items())

    def from_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename back.

        Raises:
            CheckpointError: tensors that would come back under another name.
        """
        left = [name for name in tensors if name in TIMM]
        if left:
            raise unheld("deit/timm_distilled", left)
        theirs = invert(TIMM)
        return {theirs.get(name, name): tensor for name, tensor in tensors.items()}

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what timm's distilled network lacks of a spec."""
        allowed = ("qk_norm", "layer_scale", "mlp", "qkv_bias", "num_registers", "pre_norm")
        return [
            *_tokens(spec),
            *unsupported.patch_bias(spec, bias=not spec.pre_norm),
            *unsupported.plain_blocks(spec, allowed=allowed),
            *unsupported.one_learned_table(spec, "none", prefix=(True, False)),
            *_both_classifiers(spec),
        ]

    def overrides(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return nothing: a file in timm's layout is evaluated as its variant is."""
        return {}


class TransformersDeiTFormat(Format):
    """The layout of transformers' `DeiTModel` and what it builds on it.

    It is that of its ViT, with a distillation token and with `deit.` in front where there is a
    classifier. `DeiTForImageClassificationWithTeacher` has two of them;
    `DeiTForImageClassification` has one, which reads the class token alone.
    """

    def matches(self, keys: Collection[str]) -> bool:
        """Tell whether it is the layout of transformers' ViT with a distillation token."""
        plain = {key.removeprefix(PREFIX) for key in keys}
        return TOKEN in plain and transformers_vit.matches(plain - {TOKEN})

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, and stack query, key and value."""
        plain = unique((name.removeprefix(PREFIX), tensor) for name, tensor in tensors.items())
        own = {TRANSFORMERS[name]: t for name, t in plain.items() if name in TRANSFORMERS}
        rest = {name: tensor for name, tensor in plain.items() if name not in TRANSFORMERS}
        return unique([*own.items(), *transformers_vit.to_model(rest).items()])

    def from_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename and split; with `deit.` in front where there is a classifier.

        Raises:
            CheckpointError: tensors that transformers' DeiT does not have.
        """
        written: dict[str, Tensor] = {}
        left = []
        for name, tensor in tensors.items():
            found = _inverse(name, tensor)
            written |= found
            if not found:
                left.append(name)
        if left:
            raise unheld("deit/transformers", left)
        if not any(key.startswith(CLASSIFIERS) for key in written):
            return written
        return {k if k.startswith(CLASSIFIERS) else PREFIX + k: t for k, t in written.items()}

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what transformers' DeiT lacks of a spec."""
        single = (spec.pool.name, spec.head.name) == ("class", "linear")
        return [
            *_tokens(spec),
            *unsupported.patch_bias(spec),
            *unsupported.plain_blocks(spec, allowed=("qkv_bias", "num_registers")),
            *unsupported.one_learned_table(spec),
            *([] if single else _both_classifiers(spec)),
        ]

    def overrides(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return the facts of transformers' ViT, and what a single classifier reads."""
        facts = transformers_vit.overrides(config, keys)
        if "classifier.weight" in keys:
            facts |= {"pool": "class", "head": "linear"}
        return facts

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return `num_attention_heads` of the config."""
        return transformers_vit.num_heads(config, tensors)


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


def _inverse(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensors that one of the model's becomes, none if there is no place for it."""
    theirs = invert(TRANSFORMERS)
    if name in theirs:
        return {theirs[name]: tensor}
    try:
        return transformers_vit.from_model({name: tensor})
    except CheckpointError:
        return {}


timm_distilled = TimmDistilledFormat("deit/timm_distilled")
transformers_deit = TransformersDeiTFormat("deit/transformers")
