"""The names of transformers' AIMv2: the whole model, and its image tower alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitzoo import Spec, formats
from vitzoo.formats import Config, ConfigTable, KeyMap
from vitzoo_clip.transformers import IGNORED, PROJECTION, TowerFormat
from vitzoo_clip.types import PREFIX

QUERY = "aimv2/query"
NATIVE = {"name": "sincos_2d", "endpoint": False}
BLOCK = {"norm": "rms", "norm_eps": 1e-5, "mlp": "swiglu"}
BOTH = (True, False)


class Aimv2Format(TowerFormat):
    """transformers' AIMv2."""

    def own_config(self, config: Config) -> Config:
        """Return the config of the image tower, alone or in that of the whole model."""
        tower = config.get("vision_config", config)
        formats.check_config(isinstance(tower, Mapping), "vision_config", "a table", tower)
        shared = {key: config[key] for key in ("model_type", "projection_dim") if key in config}
        return super().own_config({**tower, **shared})

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states; `qkv_bias` belongs to the pool, too."""
        found, table = super().stated(config), self.own_config(config)
        if found.get("pool") == QUERY:
            found["pool"] = {"name": QUERY, "bias": table.get("qkv_bias", False)}
        return found

    def head(self, config: Config) -> dict[str, Any]:
        """Return the projection of the whole model."""
        if config.get("model_type") != "aimv2":
            return {"num_classes": 0}
        table = self.own_config(config)
        expected = "true in a whole model, whose projection reads the pooled vector"
        formats.check_config(table.get("use_head") is True, "use_head", expected, False)
        width = table.get("projection_dim", 512)
        return formats.whole("projection_dim", "num_classes")(width)


def _epsilon(value: Any) -> dict[str, Any]:
    block = formats.number("rms_norm_eps", "norm_eps")(value)
    norm = {"name": "conv", "norm": "rms", "norm_eps": block["block"]["norm_eps"]}
    return block | {"patch_embed": norm}


def _one_bias(spec: Spec) -> bool:
    """Return whether queries, keys, values and the output have biases, or none of them."""
    pool = dict(spec.pool.options).get("bias", False) if spec.pool.name == QUERY else None
    return spec.block.qkv_bias == spec.block.proj_bias and pool in (None, spec.block.qkv_bias)


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_channels")
CONFIG = ConfigTable(
    applied={
        **{key: formats.WITH_MLP.applied[key] for key in (*SIZES, "image_size", "patch_size")},
        "intermediate_size": formats.WITH_MLP.applied["intermediate_size"],
        "rms_norm_eps": _epsilon,
        "qkv_bias": formats.choice(
            "qkv_bias", {v: {"block": {"qkv_bias": v, "proj_bias": v}} for v in BOTH}
        ),
        "mlp_bias": formats.choice("mlp_bias", {v: {"block": {"mlp_bias": v}} for v in BOTH}),
        "use_head": formats.choice("use_head", {True: {"pool": QUERY}, False: {"pool": "mean"}}),
        "is_native": formats.choice(
            "is_native", {True: {"pos_embed": NATIVE}, False: {"pos_embed": "learned"}}
        ),
        "projection_dim": formats.read_with,
    },
    fixed={**formats.WITH_MLP.fixed, "hidden_act": ("silu",)},
    irrelevant={
        **formats.WITH_MLP.irrelevant,
        "is of the whole model": ("text_config", "logit_scale_init_value", "max_logit_scale"),
    },
    defaults={
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 14,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "qkv_bias": False,
        "mlp_bias": False,
        "use_head": True,
        "is_native": False,
    },
    network={"class_token": False, "block": BLOCK},
)
aimv2 = Aimv2Format(
    "aimv2/transformers",
    configs=dict.fromkeys(("aimv2_vision_model", "aimv2"), CONFIG),
    keymap=KeyMap(
        {
            "embeddings.patch_embed.": "patch_embed.proj.",
            "embeddings.rms_norm.": "patch_embed.norm.",
            "embeddings.position_embedding.weight": "pos_embed",
            "rms_norm.": "norm.",
            "head.cls_token": "attn_pool.latent",
            ("head.k_proj.", "head.v_proj."): "attn_pool.kv.",
            "head.output_proj.": "attn_pool.proj.",
            PROJECTION: "head.weight",
        },
        {
            "rms_norm1.": "norm1.",
            ("attention.q_proj.", "attention.k_proj.", "attention.v_proj."): "attn.qkv.",
            "attention.out_proj.": "attn.proj.",
            "rms_norm2.": "norm2.",
            "ffn.gate_proj.": "mlp.fc1_g.",
            "ffn.up_proj.": "mlp.fc1_x.",
            "ffn.down_proj.": "mlp.fc2.",
        },
        "encoder.layers.{}.",
        prefixes=(PREFIX,),
        bare=(PROJECTION,),
    ),
    marks=("embeddings.rms_norm.weight", "encoder.layers.0.ffn.gate_proj.weight"),
    ignored=IGNORED,
    beside=("text_model.",),
    defaults={"block": BLOCK, "patch_embed": {"norm": "rms", "norm_eps": 1e-5}},
    network={
        **dict.fromkeys(("block.qkv_bias", "block.proj_bias"), (_one_bias,)),
        "class_token": (False,),
        "block.norm": ("rms",),
        "block.mlp": ("swiglu",),
        "block.mlp_bias": BOTH,
        "patch_embed.norm": ("rms",),
        **formats.free("pos_embed.endpoint"),
        "pos_embed": ("learned", NATIVE),
        "pool": ("mean", QUERY),
    },
)
