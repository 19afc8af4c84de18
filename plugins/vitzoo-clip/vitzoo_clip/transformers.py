"""The names of transformers' CLIP, which SigLIP shares: whole models, and image towers alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitzoo import formats
from vitzoo.errors import CheckpointError
from vitzoo.formats import Config, KeyMap, Keys, Names, Tensors, TransformersFormat
from vitzoo_clip import types
from vitzoo_clip.types import PREFIX

BIAS = "head.bias"
PROJECTION = "visual_projection.weight"
CLASSIFIER = "classifier.weight"
NORM = "post_layernorm."
CROPPED = "siglip/cropped"
TOKEN = "embeddings.class_embedding"
TABLE = "embeddings.position_embedding.weight"
MARKS = ("encoder.layers.0.self_attn.q_proj.weight", "post_layernorm.weight")
ANGLE = "class_pos_emb"  # of MLCD, which has no table
# Parts of a whole model, and a table of 0, 1, 2, ... in older files.
IGNORED = ("text_model.*", "text_projection.*", "logit_*", "embeddings.position_ids")
# Leading axes of length 1 that the model has and files do not have, by the end of the key.
LEADING = {"class_embedding": 2, "positional_embedding": 1, "position_embedding.weight": 1}
LAYER: Names = {
    "layer_norm1.": "norm1.",
    ("self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."): "attn.qkv.",
    "self_attn.out_proj.": "attn.proj.",
    "layer_norm2.": "norm2.",
    "mlp.fc1.": "mlp.fc1.",
    "mlp.fc2.": "mlp.fc2.",
}
CLIP = {
    TOKEN: "cls_token",
    TABLE: "pos_embed",
    "embeddings.patch_embedding.weight": "patch_embed.proj.weight",
    "pre_layrnorm.": "norm_pre.",  # sic
    "post_layernorm.": "norm.",
    PROJECTION: "head.weight",
    "classifier.": "head.",
    ANGLE: "positions.prefix_angles",
}


@dataclass(frozen=True, eq=False, kw_only=True)
class TowerFormat(TransformersFormat):
    """The image tower of a model with an image tower and a text tower.

    Args:
        projects: whether the head is a projection without bias.
    """

    projects: bool = True

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        found = super().to_model(tensors)
        weight = found.get("head.weight")
        if not self.projects or BIAS in found or weight is None or weight.dim() != 2:
            return found
        return formats.unique([*found.items(), (BIAS, weight.new_zeros(len(weight)))])

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        bias = tensors.get(BIAS) if self.projects else None
        if bias is not None and not bias.is_meta and bias.any():
            raise CheckpointError(
                f"the checkpoint format {self.name} has no place for {BIAS}, which is not zero: "
                "its projection has no bias; timm, the model's own format, has a place for it"
            )
        return super().from_model(formats.without(tensors, [BIAS] if self.projects else []))

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        lead = _leading(key)
        return tensor[(None,) * lead] if lead and tensor.dim() == 3 - lead else tensor

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        lead = _leading(key)
        if lead and (tensor.dim() != 3 or any(side != 1 for side in tensor.shape[:lead])):
            return None
        return tensor[(0,) * lead]

    def head(self, config: Config) -> dict[str, Any]:
        """Return the classifier, or the projection, which an image tower alone does not have."""
        if formats.is_classifier(config):
            return {"num_classes": formats.classes_of(config)}
        alone = any(name.endswith("VisionModel") for name in formats.architectures(config))
        table = self.config_table(config)
        if alone or table is None or "projection_dim" not in table.defaults:
            return {"num_classes": 0}
        width = self.own_config(config).get("projection_dim")
        return {"num_classes": formats.count_of("projection_dim", width)}


def _leading(key: str) -> int:
    return next((axes for end, axes in LEADING.items() if key.endswith(end)), 0)


@dataclass(frozen=True, eq=False, kw_only=True)
class TransformersTower(TowerFormat):
    """The image tower of transformers' CLIP or SigLIP.

    Args:
        classifier: the network of the class for image classification, as changes to a spec.
    """

    classifier: Config = field(default_factory=dict)

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        return formats.prefixed(super().from_model(tensors), PREFIX, (PROJECTION, "classifier."))

    def ignored_keys(self, keys: Keys) -> list[str]:
        unused = CLASSIFIER in keys and self.classifier.get("final_norm") is False
        norm = [key for key in keys if unused and NORM in key]
        return [*super().ignored_keys(keys), *norm]

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states; pixels beyond the last whole patch are ignored."""
        found, table = super().stated(config), self.config_table(config)
        found = formats.merged(found, self.classifier if formats.is_classifier(config) else {})
        side, patch = found.get("image_size"), found.get("patch_size")
        if table is None or type(side) is not int or type(patch) is not int or not side % patch:
            return found
        return found | {"patch_embed": {**table.network.get("patch_embed", {}), "name": CROPPED}}


transformers_clip = TransformersTower(
    "clip/transformers",
    configs=types.TYPES,
    towers=("vision_config_dict", "vision_config"),  # transformers reads the older one alone
    larger=tuple(kind for kind in types.TYPES if not kind.endswith("_vision_model")),
    shared=("projection_dim",),
    keymap=KeyMap(
        *(CLIP, LAYER, "encoder.layers.{}.", types.ALIASES),
        prefixes=types.PREFIXES,
    ),
    marks=(*MARKS, TOKEN, (TABLE, ANGLE)),
    ignored=(*IGNORED, *types.BESIDE),
    beside=("text_model.",),
    classifier={"pool": "mean", "final_norm": False},  # it averages the patches before the norm
    defaults={
        "block": {"activation": "quick_gelu", "norm_eps": 1e-5},
        "pos_embed": {"resample": "bicubic"},  # its `interpolate_pos_encoding`
    },
    network={
        "pre_norm": (True,),
        "patch_embed.bias": (False,),
        "pos_embed": ("learned", "clip/rope_prefix"),
    },
)
