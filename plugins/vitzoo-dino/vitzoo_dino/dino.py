"""The names of Meta's DINO: timm's behind those of a student and a teacher."""

from __future__ import annotations

from torch import Tensor

from vitzoo.formats import Format, Keys, Tensors, prefixed, timm_vit, unheld, unique, without

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
PATCHES = "patch_embed.proj.weight"
TRAINING = ("student.", "teacher.", "head.", "dino_head.", "ibot_head.")


def prefix_of(keys: Keys) -> str:
    """Return what stands before the keys of the network, empty where nothing does."""
    return next((prefix for prefix in PREFIXES if f"{prefix}{PATCHES}" in keys), "")


class MetaFormat(Format):
    """Files of Meta's code, as published or as training writes them.

    Training has the keys of two networks in one table. The teacher's are taken, or what is there;
    a student, and the heads that training needs, are ignored.
    """

    def matches(self, keys: Keys) -> bool:
        """Return whether the marks are there, all behind one of the prefixes, or none."""
        prefix = prefix_of(keys)
        return super().matches([k.removeprefix(prefix) for k in keys if k.startswith(prefix)])

    def ignored_keys(self, keys: Keys) -> list[str]:
        """Return the keys of training: another network's, or of a head that only it needs."""
        prefix = prefix_of(keys)
        own = prefix.removesuffix("backbone.")
        ignored = set(super().ignored_keys([key.removeprefix(prefix) for key in keys]))
        return [
            key
            for key in keys
            if key.removeprefix(prefix) in ignored
            or (
                prefix
                and not key.startswith(prefix)
                and (key.startswith(TRAINING) or key.removeprefix(own).startswith(TRAINING))
            )
        ]

    def own(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return the tensors of the network without their prefix."""
        prefix, left = prefix_of(tensors), without(tensors, self.ignored_keys(tensors))
        return unique((name.removeprefix(prefix), tensor) for name, tensor in left.items())

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Remove the prefix, and rename."""
        return super().to_model(self.own(tensors))


class MetaDinoFormat(MetaFormat):
    """Meta's DINO while it trains. As published, without a prefix, its names are timm's."""

    def matches(self, keys: Keys) -> bool:
        """Return whether timm's names are there behind one of the prefixes, and no DINOv2's."""
        return bool(prefix_of(keys)) and super().matches(keys)

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Put the teacher's prefix before the names.

        Raises:
            CheckpointError: a head: DINO's network has none.
        """
        if left := [name for name in tensors if name.startswith("head.")]:
            raise unheld(self.name, left)
        return prefixed(tensors, PREFIXES[0])


meta = MetaDinoFormat(
    "dino/meta",
    marks=timm_vit.marks,
    excludes=(*timm_vit.excludes, "blocks.0.ls1.gamma"),  # of a DINOv2
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-6},
        "pos_embed": {"resample": "bicubic_offset"},
        "pool": "class",
    },
    network={"blocks": ("qkv_bias",)},
    ignored=("student.", "dino_head.", "ibot_head."),
)
