"""The names of transformers' ViT, and shared names of other formats of transformers."""

from __future__ import annotations

from typing import Any

from vitzoo.errors import CheckpointError
from vitzoo.formats.base import Config, Format, Keys
from vitzoo.formats.keymap import KeyMap, Tensors

PATCHES = "embeddings.patch_embeddings.projection."
RELEASE_5 = {  # names of release 5, to those of release 4
    "layers.{}.attention.q_proj.": "encoder.layer.{}.attention.attention.query.",
    "layers.{}.attention.k_proj.": "encoder.layer.{}.attention.attention.key.",
    "layers.{}.attention.v_proj.": "encoder.layer.{}.attention.attention.value.",
    "layers.{}.attention.o_proj.": "encoder.layer.{}.attention.output.dense.",
    "layers.{}.mlp.fc1.": "encoder.layer.{}.intermediate.dense.",
    "layers.{}.mlp.fc2.": "encoder.layer.{}.output.dense.",
    "layers.{}.": "encoder.layer.{}.",
}
TRANSFORMERS_STEM = {
    "embeddings.cls_token": "cls_token",
    PATCHES: "patch_embed.proj.",
    "layernorm.": "norm.",
}
TRANSFORMERS_LAYER = {
    "layernorm_before.": "norm1.",
    "attention.output.dense.": "attn.proj.",
    "layernorm_after.": "norm2.",
    "intermediate.dense.": "mlp.fc1.",
    "output.dense.": "mlp.fc2.",
}
TRANSFORMERS_QKV = tuple(f"attention.attention.{x}." for x in ("query", "key", "value"))
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
ACTIVATIONS |= {"quick_gelu": "quick_gelu"}


class TransformersFormat(Format):
    """A format of transformers, in names that `save_pretrained` of releases 4 and 5 writes."""

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        return {"block": _block(config)} if config else super().overrides(config, keys)

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        heads = config.get("num_attention_heads")
        return heads if type(heads) is int and heads > 0 else None


def check_config(
    good: bool, key: str, expected: str, value: object, file: str = "config.json"
) -> None:
    """Raise CheckpointError with the value that a config states for a key, unless it is good."""
    if not good:
        raise CheckpointError(f"{file}: {key} must be {expected}, got {ascii(value)[:100]}")


def _block(config: Config) -> dict[str, Any]:
    block: dict[str, Any] = {}
    if "hidden_act" in config:
        stated = config["hidden_act"]
        good = isinstance(stated, str) and stated in ACTIVATIONS
        check_config(good, "hidden_act", f"one of {', '.join(ACTIVATIONS)}", stated)
        block["activation"] = ACTIVATIONS[stated]
    if "layer_norm_eps" in config:
        stated = config["layer_norm_eps"]
        good = isinstance(stated, int | float) and 0 < stated < 1
        check_config(good, "layer_norm_eps", "between 0 and 1", stated)
        block["norm_eps"] = float(stated)
    if isinstance(config.get("qkv_bias"), bool):
        block["qkv_bias"] = config["qkv_bias"]
    return block


transformers_vit = TransformersFormat(
    "transformers_vit",
    keymap=KeyMap(
        {
            **TRANSFORMERS_STEM,
            "embeddings.position_embeddings": "pos_embed",
            "pooler.dense.": "head.pre_logits.",
            "classifier.": "head.",
        },
        {**TRANSFORMERS_LAYER, TRANSFORMERS_QKV: "attn.qkv."},
        "encoder.layer.{}.",
        aliases=RELEASE_5,
        prefixes=("vit.",),
        bare=("classifier.",),
    ),
    marks=(f"{PATCHES}weight", "encoder.layer.0.attention.attention.query.weight"),
    excludes=(
        "*relative_position_bias_table",  # of a BEiT
        "embeddings.distillation_token",  # of a DeiT, which has another head
        "encoder.layer.0.layer_scale1.lambda1",  # of a DINOv2
    ),
    ignored=("decoder.mask_token", "decoder.decoder_*"),  # of `ViTMAEForPreTraining`
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-12},
        "pos_embed": {"resample": "bicubic"},  # its `interpolate_pos_encoding`
    },
    network={"block.qkv_bias": (True, False)},
)
