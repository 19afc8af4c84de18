"""The names of transformers' CLIP and SigLIP: whole models, and their image towers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitzoo import formats
from vitzoo.errors import CheckpointError
from vitzoo.formats import Config, KeyMap, Keys, Names, Tensors, TransformersFormat

BIAS = "head.bias"
PREFIX = "vision_model."
PROJECTION = "visual_projection.weight"
TOKEN = "embeddings.class_embedding"
TABLE = "embeddings.position_embedding.weight"
MARKS = ("encoder.layers.0.self_attn.q_proj.weight", "post_layernorm.weight", TABLE)
# Parts of a whole model, and a table of 0, 1, 2, ... in older files.
IGNORED = ("text_model.*", "text_projection.*", "logit_*", "embeddings.position_ids")
# Leading axes of length 1 that the model has and files do not have, by the end of the key.
LEADING = {"class_embedding": 2, "positional_embedding": 1, "position_embedding.weight": 1}
HEADS = {"num_attention_heads": 12}
CONFIGS = {  # the library's values for keys that a `config.json` does not have, by model_type
    "clip": HEADS | {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
    "siglip": HEADS | {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
}
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
}
SIGLIP: Names = {
    TABLE: "pos_embed",
    "embeddings.patch_embedding.": "patch_embed.proj.",
    "post_layernorm.": "norm.",
    "head.probe": "attn_pool.latent",
    "head.attention.out_proj.": "attn_pool.proj.",
    "head.layernorm.": "attn_pool.norm.",
    "head.mlp.fc1.": "attn_pool.mlp.fc1.",
    "head.mlp.fc2.": "attn_pool.mlp.fc2.",
    "head.attention.in_proj_weight": ("attn_pool.q.weight", *["attn_pool.kv.weight"] * 2),
    "head.attention.in_proj_bias": ("attn_pool.q.bias", *["attn_pool.kv.bias"] * 2),
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
        if not self.projects or weight is None or weight.dim() != 2:
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


def _leading(key: str) -> int:
    return next((axes for end, axes in LEADING.items() if key.endswith(end)), 0)


class TransformersTower(TowerFormat):
    """The image tower of transformers' CLIP or SigLIP."""

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        return formats.prefixed(super().from_model(tensors), PREFIX, (PROJECTION,))

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        kind = config.get("model_type")
        naflex = isinstance(kind, str) and kind.startswith("siglip2")
        expected = "siglip (SigLIP 2 NaFlex resamples positions for every image)"
        formats.check_config(not naflex, "model_type", expected, kind)
        table = _tower(config)
        return super().overrides(table, keys) if table or not config else {}

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        return super().num_heads(_tower(config), tensors)


def _tower(config: Config) -> Config:
    """Return the table of the image tower in the `config.json` of a whole model or of a tower."""
    table = config.get("vision_config", config)
    usual = CONFIGS.get(str(config.get("model_type")).removesuffix("_vision_model"), {})
    return {**usual, **table} if isinstance(table, Mapping) else {}


transformers_clip = TransformersTower(
    "clip/transformers",
    keymap=KeyMap(CLIP, LAYER, "encoder.layers.{}.", prefixes=(PREFIX,)),
    marks=(*MARKS, TOKEN),
    ignored=IGNORED,
    defaults={
        "block": {"activation": "quick_gelu", "norm_eps": 1e-5},
        "pos_embed": {"resample": "bicubic"},  # its `interpolate_pos_encoding`
    },
    network={"pre_norm": (True,), "patch_embed.bias": (False,)},
)
transformers_siglip = TransformersTower(
    "siglip/transformers",
    keymap=KeyMap(SIGLIP, LAYER, "encoder.layers.{}.", prefixes=(PREFIX,)),
    marks=MARKS,
    excludes=(TOKEN,),
    ignored=IGNORED,
    defaults={
        "block": {"activation": "gelu_tanh", "norm_eps": 1e-6},
        "pos_embed": {"resample": "bicubic"},
    },
    network={"class_token": (False,), "pool": (formats.attention_like_blocks,)},
    projects=False,
)
