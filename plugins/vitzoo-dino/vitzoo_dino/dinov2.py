"""The names of DINOv2: Meta's own, and transformers'.

With registers, Meta's network adds positions before it joins the registers, so that its table has
a row for the class token and none for them. The model has that row in its class token, as timm
does; a row of zeros expresses it on the way back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitzoo import Spec
from vitzoo.formats import (
    RELEASE_5,
    Config,
    Format,
    KeyMap,
    Keys,
    Names,
    Tensors,
    TransformersFormat,
    prefixed,
    unsupported,
)
from vitzoo_dino.dino import MetaFormat, prefix_of

MLP: Names = {"mlp.fc1.": "mlp.fc1.", "mlp.fc2.": "mlp.fc2."}
PACKED: Names = {"mlp.w12.": "mlp.fc1.", "mlp.w3.": "mlp.fc2."}
PACKED_TRANSFORMERS: Names = {
    "mlp.weights_in.": "mlp.fc1.",
    "mlp.weights_out.": "mlp.fc2.",
    ("mlp.gate_proj.", "mlp.up_proj."): "mlp.fc1.",  # of release 5
    "mlp.down_proj.": "mlp.fc2.",
}
BLOCKS = ("layer_scale", "num_registers", "qkv_bias", "mlp")
PREFIXES = ("dinov2.", "dinov2_with_registers.")
ALIASES = {
    alias.replace("layers", "encoder.layer"): key
    for alias, key in RELEASE_5.items()
    if "attention" in alias
}


def _meta(mlp: Names) -> KeyMap:
    same = ("cls_token", "pos_embed", "patch_embed.proj.", "norm.")
    layer = ("norm1.", "attn.qkv.", "attn.proj.", "ls1.gamma", "norm2.", "ls2.gamma")
    stem = {"register_tokens": "reg_token", **{key: key for key in same}}
    return KeyMap(stem, {**{key: key for key in layer}, **mlp})


def _transformers(mlp: Names) -> KeyMap:
    return KeyMap(
        {
            "embeddings.cls_token": "cls_token",
            "embeddings.register_tokens": "reg_token",
            "embeddings.position_embeddings": "pos_embed",
            "embeddings.patch_embeddings.projection.": "patch_embed.proj.",
            "layernorm.": "norm.",
            "classifier.": "head.linear.",
        },
        {
            "norm1.": "norm1.",
            tuple(f"attention.attention.{x}." for x in ("query", "key", "value")): "attn.qkv.",
            "attention.output.dense.": "attn.proj.",
            "layer_scale1.lambda1": "ls1.gamma",
            "norm2.": "norm2.",
            "layer_scale2.lambda1": "ls2.gamma",
            **mlp,
        },
        "encoder.layer.{}.",
        aliases=ALIASES,
        prefixes=PREFIXES,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class DinoV2Format(Format):
    """What both formats of DINOv2 do; the first of the ignored keys is the mask token.

    Args:
        packed: the names where an MLP has gate and value in one matrix.
    """

    packed: KeyMap

    def keymap_for(self, tensors: Tensors) -> KeyMap:
        """Return the names of the MLP that tensors of the model are of; both are read."""
        return self.packed if _is_packed(tensors) else self.keymap

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename and fuse, and move the class token's position into it if there are registers."""
        found = super().to_model(tensors)
        token, table = found.get("cls_token"), found.get("pos_embed")
        if "reg_token" not in found or token is None or table is None:
            return found
        if token.dim() != 3 or table.dim() != 3 or token.shape != table[:, :1].shape:
            return found
        return found | {"cls_token": token + table[:, :1], "pos_embed": table[:, 1:]}

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename and split, with a mask token of zeros, which training starts from.

        With registers, the table gets a row of the number that added to any keeps its bits.
        """
        table, token = tensors.get("pos_embed"), tensors.get("cls_token")
        rows = {}
        if "reg_token" in tensors and table is not None and table.dim() == 3:
            rows["pos_embed"] = torch.cat((torch.full_like(table[:, :1], -0.0), table), dim=1)
        written = super().from_model({**tensors, **rows})
        if token is None:
            return written
        return written | {self.ignored[0]: torch.zeros_like(token).flatten(0, -2)}

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what no DINOv2 has: its blocks have factors of the channels."""
        mlp = spec.block.mlp in ("mlp", "swiglu_packed")
        return [
            *super().unsupported(spec),
            *(["block.layer_scale = none"] if spec.block.layer_scale is None else []),
            *([] if mlp else [f"block.mlp = {spec.block.mlp}"]),
            *unsupported.one_learned_table(spec, prefix=(not spec.num_registers,)),
        ]


class MetaDinoV2Format(DinoV2Format, MetaFormat):
    """Meta's DINOv2, as published or as a teacher among the files of training."""

    def matches(self, keys: Keys) -> bool:
        """Return whether LayerScale is there beside a mask token, or behind a prefix."""
        return (bool(prefix_of(keys)) or "mask_token" in keys) and super().matches(keys)

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return what Meta's code computes; with registers it resamples in another way."""
        found = super().overrides(config, keys)
        if found and any(key.endswith("register_tokens") for key in keys):
            found["pos_embed"] = {"resample": "bicubic_antialias"}
        return found


class TransformersDinoV2Format(DinoV2Format, TransformersFormat):
    """transformers' `Dinov2Model`, `Dinov2WithRegistersModel` and what it builds on them.

    The classifier reads the class token and the mean of the patch tokens: head
    `dinov2/class_and_mean` on pool `class_mean`.
    """

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename and split; with a prefix where there is a classifier."""
        written = super().from_model(tensors)
        classifier = any(key.startswith("classifier.") for key in written)
        prefix = PREFIXES["reg_token" in tensors] if classifier else ""
        return prefixed(written, prefix, ("classifier.",))

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what transformers' DINOv2 lacks of a spec."""
        both = (spec.pool.name, spec.head.name) == ("class_mean", "dinov2/class_and_mean")
        pool = [] if both and spec.num_classes else unsupported.pooled(spec, "class")
        head = spec.num_classes and not both and spec.head.name != "none"
        rest = [unsupported.part("head", spec.head)] if head else []
        return [*super().unsupported(spec), *pool, *rest]

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return what transformers computes; its classifier reads more than the class token."""
        found = super().overrides(config, keys)
        if config:
            return found
        if any(self.keymap.plain(key) == "embeddings.register_tokens" for key in keys):
            found["pos_embed"] = {"resample": "bicubic_antialias"}
        if "classifier.weight" in keys:
            found |= {"pool": "class_mean", "head": "dinov2/class_and_mean"}
        return found


def _is_packed(tensors: Tensors) -> bool:
    """Tell an MLP with gate and value in one matrix: its last layer is half as wide as that."""
    for name, first in tensors.items():
        last = tensors.get(name.replace(".mlp.fc1.", ".mlp.fc2."))
        if ".mlp.fc1.weight" in name and last is not None and first.dim() == last.dim() == 2:
            return first.shape[0] == 2 * last.shape[1]
    return False


meta = MetaDinoV2Format(
    "dinov2/meta",
    keymap=_meta({**MLP, **PACKED}),
    packed=_meta({**PACKED, **MLP}),
    marks=("blocks.0.ls1.gamma", "blocks.0.attn.qkv.weight", "pos_embed"),
    ignored=("mask_token",),
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-6},
        "pos_embed": {"resample": "bicubic_offset"},
        "pool": "class",
    },
    network={"blocks": BLOCKS, "positions": None},
)
transformers = TransformersDinoV2Format(
    "dinov2/transformers",
    keymap=_transformers({**MLP, **PACKED_TRANSFORMERS}),
    packed=_transformers({**PACKED_TRANSFORMERS, **MLP}),
    marks=(
        "embeddings.patch_embeddings.projection.weight",
        "encoder.layer.0.layer_scale1.lambda1",
    ),
    ignored=("embeddings.mask_token",),
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-6},
        "pos_embed": {"resample": "bicubic"},
        "pool": "class",
    },
    network={"blocks": BLOCKS, "positions": None, "pools": ()},
)
