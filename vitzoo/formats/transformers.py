"""The names of transformers' ViT, and what all formats of transformers share."""

from __future__ import annotations

from typing import Any

from vitzoo.errors import CheckpointError
from vitzoo.formats.base import Config, Format, Keys
from vitzoo.formats.keymap import KeyMap, Tensors

RELATIVE = "relative_position_bias_table"  # of a BEiT, which has no bias of the key
DECODER = "decoder."  # of MAE's pre-training, whose encoder is a ViT
RELEASE_5 = {
    "layers.{}.attention.q_proj.": "encoder.layer.{}.attention.attention.query.",
    "layers.{}.attention.k_proj.": "encoder.layer.{}.attention.attention.key.",
    "layers.{}.attention.v_proj.": "encoder.layer.{}.attention.attention.value.",
    "layers.{}.attention.o_proj.": "encoder.layer.{}.attention.output.dense.",
    "layers.{}.mlp.fc1.": "encoder.layer.{}.intermediate.dense.",
    "layers.{}.mlp.fc2.": "encoder.layer.{}.output.dense.",
    "layers.{}.": "encoder.layer.{}.",
}
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}


class TransformersFormat(Format):
    """A format of transformers, whose `config.json` states block options and attention heads.

    The names of release 4 are read and written, which `save_pretrained` of release 5 writes too;
    the state dict of a model of release 5 is read, with `RELEASE_5` as aliases.
    """

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return norm epsilon, activation and query bias, the defaults without config."""
        return {"block": _stated(config)} if config else super().overrides(config, keys)

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return `num_attention_heads` of the config."""
        heads = config.get("num_attention_heads")
        return heads if type(heads) is int and heads > 0 else None


class TransformersViTFormat(TransformersFormat):
    """transformers' `ViTModel` and `ViTForImageClassification`.

    `ViTMAEModel` has the same names, and `ViTMAEForPreTraining`, whose decoder is ignored.
    `pooler.dense` is the paper's pre-logits layer.
    """

    def matches(self, keys: Keys) -> bool:
        """Return whether it is a ViT, and no BEiT."""
        return super().matches(keys) and not any(key.endswith(RELATIVE) for key in keys)

    def ignored_keys(self, keys: Keys) -> list[str]:
        """Return the decoder of MAE."""
        return super().ignored_keys(keys) if f"{DECODER}mask_token" in keys else []


def checked_epsilon(stated: object, where: str) -> float:
    """Return the epsilon that a config states; `where` it does is for the error.

    Raises:
        CheckpointError: it does not lie between 0 and 1.
    """
    if not isinstance(stated, int | float) or not 0 < stated < 1:
        raise CheckpointError(f"{where} must lie between 0 and 1, got {stated!a}")
    return float(stated)


def _stated(config: Config) -> dict[str, Any]:
    block: dict[str, Any] = {}
    if "hidden_act" in config:
        stated = config["hidden_act"]
        if not isinstance(stated, str) or stated not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise CheckpointError(f"config.json: hidden_act {stated!a} is none of {known}")
        block["activation"] = ACTIVATIONS[stated]
    if "layer_norm_eps" in config:
        where = "config.json: layer_norm_eps"
        block["norm_eps"] = checked_epsilon(config["layer_norm_eps"], where)
    if isinstance(config.get("qkv_bias"), bool):
        block["qkv_bias"] = config["qkv_bias"]
    return block


transformers_vit = TransformersViTFormat(
    "transformers_vit",
    keymap=KeyMap(
        {
            "embeddings.cls_token": "cls_token",
            "embeddings.position_embeddings": "pos_embed",
            "embeddings.patch_embeddings.projection.": "patch_embed.proj.",
            "layernorm.": "norm.",
            "pooler.dense.": "head.pre_logits.",
            "classifier.": "head.",
        },
        {
            "layernorm_before.": "norm1.",
            tuple(f"attention.attention.{x}." for x in ("query", "key", "value")): "attn.qkv.",
            "attention.output.dense.": "attn.proj.",
            "layernorm_after.": "norm2.",
            "intermediate.dense.": "mlp.fc1.",
            "output.dense.": "mlp.fc2.",
        },
        "encoder.layer.{}.",
        aliases=RELEASE_5,
        prefixes=("vit.",),
        bare=("classifier.",),
    ),
    marks=(
        "embeddings.patch_embeddings.projection.weight",
        "encoder.layer.0.attention.attention.query.weight",
    ),
    excludes=(
        "embeddings.distillation_token",  # of a DeiT, whose heads are not a ViT's
        "encoder.layer.0.layer_scale1.lambda1",  # of a DINOv2
    ),
    ignored=(DECODER,),
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-12},
        "pos_embed": {"resample": "bicubic"},  # its `interpolate_pos_encoding`
    },
    network={"blocks": ("qkv_bias",)},
)
