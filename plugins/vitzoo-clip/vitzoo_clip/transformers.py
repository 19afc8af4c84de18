"""The names of transformers' CLIP and SigLIP: whole models, and their image towers alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitzoo import Spec
from vitzoo.errors import CheckpointError
from vitzoo.formats import (
    Config,
    KeyMap,
    Keys,
    Names,
    Tensors,
    TransformersFormat,
    prefixed,
    unique,
    without,
)

BIAS = "head.bias"
PREFIX = "vision_model."
PROJECTION = "visual_projection.weight"
TOKEN = "embeddings.class_embedding"
TABLE = "embeddings.position_embedding.weight"
MARKS = ("encoder.layers.0.self_attn.q_proj.weight", "post_layernorm.weight", TABLE)
TABLES = ("positional_embedding", "position_embedding.weight")  # open_clip's and its own
IGNORED = (  # parts of a whole model, and a table of 0, 1, 2, ... that older files hold
    *("text_model.", "text_projection.", "logit_scale", "logit_bias", "embeddings.position_ids"),
)
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
    "pre_layrnorm.": "norm_pre.",  # its authors' spelling
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
    """The image tower of a model of two towers.

    Args:
        projects: whether the head is a projection without bias.
    """

    projects: bool = True

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        result = super().to_model(tensors)
        weight = result.get("head.weight")
        if not self.projects or weight is None or weight.dim() != 2:
            return result
        return unique([*result.items(), (BIAS, weight.new_zeros(weight.shape[0]))])

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename back, without the head's bias.

        Raises:
            CheckpointError: the bias is not zero, or as `Format.from_model`.
        """
        bias = tensors.get(BIAS) if self.projects else None
        if bias is not None and not bias.is_meta and bias.any():
            raise CheckpointError(
                f"the layout {self.name} has no place for {BIAS}, which is not zero: its "
                "projection has no bias; timm, the model's own layout, has"
            )
        return super().from_model(without(tensors, [BIAS] if self.projects else []))

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Give a class token (d) and a position table (n, d) their leading axes."""
        if key.endswith("class_embedding") and tensor.dim() == 1:
            return tensor[None, None]
        return tensor[None] if key.endswith(TABLES) and tensor.dim() == 2 else tensor

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Take leading axes of length 1 away; None where they have another length."""
        lead = 2 if key.endswith("class_embedding") else int(key.endswith(TABLES))
        if lead and (tensor.dim() != 3 or any(side != 1 for side in tensor.shape[:lead])):
            return None
        return tensor[(0,) * lead] if lead else tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class TransformersTower(TowerFormat):
    """The image tower of one of transformers' two-tower models.

    Args:
        kinds: the `model_type`s of whole models, and of their image towers.
        config: what the library takes for what their `config.json` leaves out.
    """

    kinds: tuple[str, ...]
    config: Config

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        return prefixed(super().from_model(tensors), PREFIX, (PROJECTION,))

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what the tower lacks: its class token, norms, pool and biases are fixed."""
        fixed = {"class_token": spec.class_token, "pre_norm": spec.pre_norm}
        return [
            *(f"{key} = {value}".lower() for key, value in fixed.items() if value != self.projects),
            *super().unsupported(spec),
        ]

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return activation and epsilon, the library's defaults without config."""
        kind = config.get("model_type")
        if isinstance(kind, str) and kind.startswith("siglip2"):
            raise CheckpointError(
                f"config.json: model_type {kind!a} is SigLIP 2 NaFlex, which brings positions to "
                "the shape of every image; the models of one size have model_type 'siglip'"
            )
        table = self._tower(config)
        return super().overrides(table, keys) if table or not config else {}

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        return super().num_heads(self._tower(config), tensors)

    def _tower(self, config: Config) -> Config:
        """Return what a `config.json` of a whole model, or of its tower, says of the tower."""
        table = config.get("vision_config", config)
        if not isinstance(table, Mapping):
            return {}
        return {**self.config, **table} if config.get("model_type") in self.kinds else table


transformers_clip = TransformersTower(
    "clip/transformers",
    keymap=KeyMap(CLIP, LAYER, "encoder.layers.{}.", prefixes=(PREFIX,)),
    marks=(*MARKS, TOKEN),
    ignored=IGNORED,
    defaults={
        "block": {"activation": "quick_gelu", "norm_eps": 1e-5},
        "pos_embed": {"resample": "bicubic"},  # its `interpolate_pos_encoding`
    },
    network={"token": False, "bias": False, "blocks": ("pre_norm",)},
    kinds=("clip", "clip_vision_model"),
    config={"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 12},
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
    network={"token": False, "blocks": ("pre_norm",), "pools": ("attention",)},
    projects=False,
    kinds=("siglip", "siglip_vision_model"),
    config={"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "num_attention_heads": 12},
)
