"""The layout of Meta's DINO: timm's names behind those of a student and a teacher."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from before import unsupported
from before.keymap import unheld, unique
from before.timm import timm
from vitzoo.schema.spec import Spec

# Of the network in files of training, the one that counts first: the teacher is what is published.
PREFIXES = (
    "teacher.backbone.",
    "teacher.module.backbone.",
    "teacher.",
    "student.module.backbone.",
    "student.backbone.",
    "module.backbone.",
    "backbone.",
    "module.",
)
WRITES = "teacher.backbone."
PATCHES = "patch_embed.proj.weight"
SCALE = "blocks.0.ls1.gamma"  # of a DINOv2


def prefix_of(keys: Collection[str]) -> str:
    """Return what stands before the keys of the network, empty where nothing does."""
    return next((prefix for prefix in PREFIXES if f"{prefix}{PATCHES}" in keys), "")


def beside(keys: Collection[str], prefix: str) -> list[str]:
    """Return the keys of training: another network's, or those of a head that only it needs."""
    marks = ("student.", "teacher.", "head.", "dino_head.", "ibot_head.")
    own = prefix.removesuffix("backbone.")
    return [
        key
        for key in keys
        if prefix
        and not key.startswith(prefix)
        and (key.startswith(marks) or key.removeprefix(own).startswith(marks))
    ]


class MetaDinoFormat:
    """Files of Meta's DINO as training writes them, the keys of both networks in one table.

    The teacher's are taken, or what is there. Without a prefix, as published, their names are
    timm's. A student, and the heads that training needs, are left out.
    """

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether timm's names are there behind one of the prefixes, and it is no DINOv2."""
        prefix = prefix_of(keys)
        own = {key.removeprefix(prefix) for key in keys if key.startswith(prefix)}
        return bool(prefix) and SCALE not in own and timm.claims(own)

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Remove the prefix."""
        prefix = prefix_of(tensors)
        left = set(beside(tensors, prefix))
        return unique(
            (name.removeprefix(prefix), tensor)
            for name, tensor in tensors.items()
            if name not in left
        )

    def left_out(self, keys: Collection[str]) -> list[str]:
        """Return the keys of training: the other network's, and those of heads."""
        return beside(keys, prefix_of(keys))

    def inverse(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Put the teacher's prefix before the names.

        Raises:
            CheckpointError: a head: DINO's network has none.
        """
        if left := [name for name in tensors if name.startswith("head.")]:
            raise unheld("dino/meta", left)
        return {WRITES + name: tensor for name, tensor in tensors.items()}

    def expresses(self, spec: Spec) -> list[str]:
        """Return what the network of Meta's DINO lacks: it is the paper's, without classifier."""
        return [
            *unsupported.class_token(spec),
            *unsupported.patch_bias(spec),
            *unsupported.plain_blocks(spec, allowed=("qkv_bias",)),
            *unsupported.one_learned_table(spec),
            *unsupported.pooled(spec, "class"),
        ]

    def facts(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return what Meta's code computes."""
        if config:
            return {}
        return {
            "block": {"activation": "gelu", "norm_eps": 1e-6},
            "pos_embed": {"resample": "bicubic_offset"},
            "pool": "class",
        }


meta = MetaDinoFormat()
