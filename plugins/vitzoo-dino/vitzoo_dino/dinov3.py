"""The names of DINOv3: timm's and transformers'; `dinov3_meta` has Meta's own."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitzoo import Spec
from vitzoo.errors import CheckpointError
from vitzoo.formats import Config, Format, KeyMap, Keys, Tensors, TransformersFormat, unsupported

TEMPERATURE = 100.0
ROPE = {
    "name": "rope",
    "temperature": TEMPERATURE,
    "coordinates": "centered",
    "layout": "half",
}
MASK = "attn.qkv.bias_mask"  # of Meta's files: biases of queries and values only
STEM = {key: key for key in ("cls_token", "patch_embed.proj.", "norm.")}
LAYER = {
    key: key
    for key in ("norm1.", "attn.qkv.", "attn.q_bias", "attn.v_bias", "attn.proj.", "norm2.")
} | {key: key for key in ("mlp.fc1.", "mlp.fc2.")}
TRANSFORMERS = KeyMap(
    {
        "embeddings.cls_token": "cls_token",
        "embeddings.register_tokens": "reg_token",
        "embeddings.patch_embeddings.": "patch_embed.proj.",
        "norm.": "norm.",
    },
    {
        "norm1.": "norm1.",
        ("attention.q_proj.", "attention.k_proj.", "attention.v_proj."): "attn.qkv.",
        "attention.q_proj.bias": "attn.q_bias",  # without a bias of the key
        "attention.v_proj.bias": "attn.v_bias",
        "attention.o_proj.": "attn.proj.",
        "layer_scale1.lambda1": "ls1.gamma",
        "norm2.": "norm2.",
        "mlp.up_proj.": "mlp.fc1.",
        "mlp.down_proj.": "mlp.fc2.",
        "layer_scale2.lambda1": "ls2.gamma",
    },
    "layer.{}.",
    prefixes=("model.",),
)
GATE = {"mlp.gate_proj.": "mlp.fc1_g.", "mlp.up_proj.": "mlp.fc1_x."}
GATED = replace(TRANSFORMERS, layer={**TRANSFORMERS.layer, **GATE})


class DinoV3Format(Format):
    """What the formats of DINOv3 have in common: rotations, and biases as the keys show."""

    rope: ClassVar[Config] = ROPE

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return what the code computes, and which biases the file has."""
        found = super().overrides(config, keys)
        if not config and keys:
            found["block"]["qkv_bias"] = _biases(keys)
        return found

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what no DINOv3 has: registers, factors of the channels, rotations."""
        mlp, options = spec.block.mlp in ("mlp", "swiglu"), dict(spec.pos_embed.options)
        same = all(options.get(key, value) == value for key, value in self.rope.items())
        rope = spec.pos_embed.name == "rope" and same and not options.get("absolute", False)
        return [
            *super().unsupported(spec),
            *([] if spec.num_registers else ["num_registers = 0"]),
            *(["block.layer_scale = none"] if spec.block.layer_scale is None else []),
            *([] if mlp else [f"block.mlp = {spec.block.mlp}"]),
            *([] if rope else [unsupported.part("pos_embed", spec.pos_embed)]),
        ]


class TimmDinoV3Format(DinoV3Format):
    """timm's DINOv3, in the names of its EVA: `gamma_1` and `gamma_2` instead of modules."""

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what timm's DINOv3 lacks of a spec; it has no biases of keys."""
        bias = ["block.qkv_bias = true"] if spec.block.qkv_bias is True else []
        return [*super().unsupported(spec), *bias]

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return what timm computes: it averages the patch tokens, where Meta's code does not.

        Raises:
            CheckpointError: the config states another of timm's networks with these names.
        """
        stated = config.get("architecture")
        if isinstance(stated, str) and "dinov3" not in stated:
            raise CheckpointError(
                f"config.json: architecture {stated[:100]!a} is none of timm's DINOv3; create it "
                "as what it is"
            )
        return super().overrides(config, keys)


class TransformersDinoV3Format(DinoV3Format, TransformersFormat):
    """transformers' `DINOv3ViTModel`: no classifier; the base of the rotations is free."""

    rope: ClassVar[Config] = {k: v for k, v in ROPE.items() if k != "temperature"}

    def keymap_for(self, tensors: Tensors) -> KeyMap:
        """Return the names of a plain MLP or of a gated one."""
        marks = (".mlp.gate_proj.", ".mlp.fc1_g.", ".mlp.fc1_x.")
        return GATED if any(mark in key for key in tensors for mark in marks) else TRANSFORMERS

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename and split, with a mask token of zeros, as a new model has it."""
        token = tensors.get("cls_token")
        mask = {} if token is None else {self.ignored[0]: torch.zeros_like(token)}
        return super().from_model(tensors) | mask

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return what transformers computes, and which biases the file has.

        Raises:
            CheckpointError: the config states what the model cannot do.
        """
        stated = dict(config)
        if config.get("use_gated_mlp") is True:
            activation = stated.pop("hidden_act", "gelu")
            if activation != "silu":
                raise CheckpointError(
                    f"config.json: hidden_act {str(activation)[:50]!a} gates the MLP, the model's "
                    "is gated by silu"
                )
        found = super().overrides(stated, keys)
        if "rope_theta" in config:
            found["pos_embed"] = {"temperature": _base(config["rope_theta"])}
        return found


def _base(stated: object) -> float:
    if type(stated) not in (int, float) or not 1 < stated < float("inf"):  # type: ignore[operator]
        raise CheckpointError(
            f"config.json: rope_theta must be a number above 1, got {str(stated)[:50]!a}"
        )
    return float(stated)  # type: ignore[arg-type]  # one of the two


def _biases(keys: Keys) -> bool | str:
    first = [key for key in keys if re.search(r"\.0\.att", key)]
    masked = any(key.endswith((MASK, "attn.q_bias")) for key in first)
    if masked or any(key.endswith("q_proj.bias") for key in first):
        return True if any(key.endswith("k_proj.bias") for key in first) else "qv"
    return any(key.endswith("attn.qkv.bias") for key in first)


def usual(*pools: str) -> dict[str, Any]:
    """Return defaults and network of all DINOv3, with the pools of the library, its own first."""
    block = {"activation": "gelu", "norm_eps": 1e-5}
    blocks = ("layer_scale", "num_registers", "qkv_bias", "qv_bias", "mlp")
    return {
        "defaults": {"block": block, "pos_embed": ROPE, "pool": pools[0]},
        "network": {"blocks": blocks, "positions": None, "pools": pools},
    }


timm_eva = TimmDinoV3Format(
    "dinov3/timm",
    keymap=KeyMap(
        {**STEM, "reg_token": "reg_token", "head.": "head."},
        {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma", **LAYER}
        | {"mlp.fc1_g.": "mlp.fc1_g.", "mlp.fc1_x.": "mlp.fc1_x."},
    ),
    marks=("blocks.0.gamma_1", "reg_token", "blocks.0.attn.qkv.weight", "norm.weight"),
    excludes=("pos_embed",),
    **usual("mean", "class"),
)
transformers = TransformersDinoV3Format(
    "dinov3/transformers",
    keymap=TRANSFORMERS,
    marks=("embeddings.patch_embeddings.weight", "layer.0.layer_scale1.lambda1"),
    ignored=("embeddings.mask_token",),
    **usual("class"),
)
