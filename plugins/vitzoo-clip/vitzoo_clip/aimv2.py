"""The names of transformers' AIMv2: the whole model, and its image tower alone."""

from __future__ import annotations

from typing import Any

from vitzoo import Spec, formats
from vitzoo.formats import Config, KeyMap
from vitzoo_clip.transformers import IGNORED, PROJECTION, TowerFormat
from vitzoo_clip.types import PREFIX

QUERY = "aimv2/query"
NATIVE = {"name": "sincos_2d", "endpoint": False}
BLOCK = {"norm": "rms", "norm_eps": 1e-5, "mlp": "swiglu"}
BOTH = (True, False)


class Aimv2Format(TowerFormat):
    """transformers' AIMv2."""

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states; `qkv_bias` belongs to the pool, too."""
        found = super().stated(config)
        if found.get("pool") == QUERY:
            found["pool"] = {"name": QUERY, "bias": found.get("block", {}).get("qkv_bias", False)}
        return found


def _pooled(value: Any) -> dict[str, Any]:
    formats.expect(value is True, "true in a whole model, whose projection reads the pooled vector")
    return {"pool": QUERY}


def _epsilon(value: Any) -> dict[str, Any]:
    block = formats.number("norm_eps")(value)
    return block | {"patch_embed": {"name": "conv", "norm": "rms", **block["block"]}}


def _one_bias(spec: Spec) -> bool:
    """Return whether queries, keys, values and the output have biases, or none of them."""
    pool = dict(spec.pool.options).get("bias", False) if spec.pool.name == QUERY else None
    return spec.block.qkv_bias == spec.block.proj_bias and pool in (None, spec.block.qkv_bias)


CONFIG = formats.WITH_MLP.without("hidden_act", "layer_norm_eps").but(
    {
        "rms_norm_eps": (_epsilon, 1e-5),
        "qkv_bias": (formats.flag("block.qkv_bias", "block.proj_bias"), False),
        "mlp_bias": (formats.flag("block.mlp_bias"), False),
        "use_head": (formats.choice({True: QUERY, False: "mean"}, "pool"), True),
        "is_native": (formats.choice({True: NATIVE, False: "learned"}, "pos_embed"), False),
    },
    fixed={"hidden_act": ("silu",)},
    defaults={**formats.sizes(1024, 24, 8, 2816), "patch_size": 14},
    network={"class_token": False, "block": BLOCK},
)
WHOLE = CONFIG.but({"projection_dim": (formats.read_with, 512), "use_head": (_pooled, True)})
aimv2 = Aimv2Format(
    "aimv2/transformers",
    configs={"aimv2_vision_model": CONFIG, "aimv2": WHOLE},
    towers=("vision_config",),
    larger=("aimv2",),
    shared=("projection_dim",),
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
