"""The names of Meta's DINO: timm's, behind those of a student and a teacher."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor

from vitzoo.formats import Format, KeyMap, Keys, Tensors, prefixed, timm_vit

# Prefixes of networks in files of training. The first in a file is read: the published teacher.
PREFIXES = (
    *("teacher.backbone.", "teacher.module.backbone."),
    *("student.module.backbone.", "student.backbone.", "module.backbone.", "backbone."),
)
HEADS = ("head.", "dino_head.", "ibot_head.")
PROJECTION = re.compile(r"(.*\.)?(dino_|ibot_)?head\.(mlp|last_layer)\.")  # a head of training


@dataclass(frozen=True, eq=False)
class MetaFormat(Format):
    """The format of files that Meta published, or that Meta's code writes in training."""

    file_prefixes: tuple[str, ...] = PREFIXES
    anchor: str = "patch_embed.proj.weight"
    authors: bool = True
    training: tuple[str, ...] = ("student.", "teacher.", *HEADS, *(f"module.{k}" for k in HEADS))


class MetaDinoFormat(MetaFormat):
    """Files that Meta's DINO writes in training; published files have timm's names."""

    def matches(self, keys: Keys) -> bool:
        """Return whether a file has a head of DINO's training, or is one that vitzoo wrote."""
        written = all(key.startswith(PREFIXES[0]) for key in keys)
        training = bool(self.file_prefix(keys)) and any(map(PROJECTION.match, keys))
        return (written or training) and super().matches(keys)

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        return prefixed(super().from_model(tensors), PREFIXES[0])


meta = MetaDinoFormat(
    "dino/meta",
    keymap=KeyMap(others=True, refused=("head.",)),
    marks=timm_vit.marks,
    excludes=(*timm_vit.excludes, "blocks.0.ls1.gamma"),  # of a DINOv2
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-6},
        "pos_embed": {"resample": "bicubic_offset"},
        "pool": "class",
    },
    network={"block.qkv_bias": (True, False)},
    ignored=("student.*", "dino_head.*", "ibot_head.*"),
)
