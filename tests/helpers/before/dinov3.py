"""The layouts of DINOv3: timm's and transformers'; `dinov3_meta` has Meta's own."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from before import unsupported
from before.dino_names import Names, parameters, parted, stacked, without
from before.keymap import unique
from before.transformers import transformers_vit
from vitzoo.errors import CheckpointError
from vitzoo.schema.spec import Spec

TEMPERATURE = 100.0
ROPE = {
    "name": "rope",
    "temperature": TEMPERATURE,
    "coordinates": "centered",
    "layout": "half",
}
MODULES = {
    "norm1": "norm1",
    "attn.qkv": "attn.qkv",
    "attn.proj": "attn.proj",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
BIASES = {"attn.q_bias": "attn.q_bias", "attn.v_bias": "attn.v_bias"}
STEM = {"cls_token": "cls_token"} | parameters({"patch_embed.proj": "patch_embed.proj"})
NORM = parameters({"norm": "norm"})
GATE = {"mlp.fc1_g": "mlp.fc1_g", "mlp.fc1_x": "mlp.fc1_x"}
TIMM = Names(
    STEM | NORM | {"reg_token": "reg_token"} | parameters({"head": "head"}),
    {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"} | BIASES | parameters(MODULES | GATE),
)
TRANSFORMERS = Names(
    {"embeddings.cls_token": "cls_token", "embeddings.register_tokens": "reg_token"}
    | NORM
    | parameters({"embeddings.patch_embeddings": "patch_embed.proj"}),
    {
        "layer_scale1.lambda1": "ls1.gamma",
        "layer_scale2.lambda1": "ls2.gamma",
        "attention.q_proj.bias": "attn.q_bias",
        "attention.v_proj.bias": "attn.v_bias",
    }
    | parameters(
        {
            "norm1": "norm1",
            "attention.qkv_proj": "attn.qkv",
            "attention.o_proj": "attn.proj",
            "norm2": "norm2",
            "mlp.up_proj": "mlp.fc1",
            "mlp.down_proj": "mlp.fc2",
        }
    ),
    before="layer.",
)
GATED_TRANSFORMERS = Names(
    TRANSFORMERS.stem,
    {theirs: ours for theirs, ours in TRANSFORMERS.layer.items() if "up_proj" not in theirs}
    | parameters({"mlp.gate_proj": "mlp.fc1_g", "mlp.up_proj": "mlp.fc1_x"}),
    before="layer.",
)
QKV = tuple(f".attention.{part}_proj." for part in "qkv")
MASK = "attn.qkv.bias_mask"  # of Meta's files: biases of queries and values only


class TimmDinoV3Format:
    """timm's DINOv3, in the names of its EVA: `gamma_1` and `gamma_2` instead of modules."""

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether EVA's factors and registers are there, and no table of positions."""
        needed = ("blocks.0.gamma_1", "reg_token", "blocks.0.attn.qkv.weight", "norm.weight")
        return all(key in keys for key in needed) and "pos_embed" not in keys

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename."""
        return TIMM.read(tensors)

    def inverse(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename back.

        Raises:
            CheckpointError: tensors that timm's DINOv3 does not have.
        """
        return TIMM.written(tensors, "dinov3/timm")

    def expresses(self, spec: Spec) -> list[str]:
        """Return what timm's DINOv3 lacks of a spec; it has no biases of keys."""
        bias = ["block.qkv_bias = true"] if spec.block.qkv_bias is True else []
        return [*lacks(spec), *bias, *unsupported.pooled(spec, "class", "mean")]

    def facts(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
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
        return {} if config else usual(keys) | {"pool": "mean"}


class TransformersDinoV3Format:
    """transformers' `DINOv3ViTModel`: no classifier, biases as the config says."""

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether the patch projection and the LayerScale of a DINOv3 are there."""
        plain = {_plain(key) for key in keys}
        needed = ("embeddings.patch_embeddings.weight", "layer.0.layer_scale1.lambda1")
        return all(key in plain for key in needed)

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, and stack query, key and value."""
        kept = without(tensors, self.left_out(tensors))
        plain = unique((_plain(name), tensor) for name, tensor in kept.items())
        gated = any(".mlp.gate_proj." in name for name in plain)
        names = GATED_TRANSFORMERS if gated else TRANSFORMERS
        return names.read(stacked(plain, QKV, ".attention.qkv_proj."))

    def left_out(self, keys: Collection[str]) -> list[str]:
        """Return the mask token."""
        return [key for key in keys if _plain(key) == "embeddings.mask_token"]

    def inverse(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename and split, with a mask token of zeros, as a new model has it.

        Raises:
            CheckpointError: tensors that transformers' DINOv3 does not have.
        """
        gated = any(".mlp.fc1_g." in name or ".mlp.fc1_x." in name for name in tensors)
        names = GATED_TRANSFORMERS if gated else TRANSFORMERS
        written = parted(names.written(tensors, "dinov3/transformers"), ".attention.qkv_proj.", QKV)
        token = tensors.get("cls_token")
        if token is not None:
            written["embeddings.mask_token"] = torch.zeros_like(token)
        return written

    def expresses(self, spec: Spec) -> list[str]:
        """Return what transformers' DINOv3 lacks of a spec; the base of its rotations is free."""
        return [*lacks(spec, temperature=None), *unsupported.pooled(spec, "class")]

    def facts(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return what transformers computes, and which biases the file has.

        Raises:
            CheckpointError: the config states what the model cannot do.
        """
        if not config:
            return usual(keys) | {"pool": "class"}
        stated = dict(config)
        if stated.get("use_gated_mlp") is True:
            activation = stated.pop("hidden_act", "gelu")
            if activation != "silu":
                raise CheckpointError(
                    f"config.json: hidden_act {str(activation)[:50]!a} gates the MLP, the model's "
                    "is gated by silu"
                )
        facts = transformers_vit.facts(stated, keys)
        if "rope_theta" in config:
            facts["pos_embed"] = {"temperature": _base(config["rope_theta"])}
        return facts

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return `num_attention_heads` of the config."""
        return transformers_vit.num_heads(config, tensors)


def _base(stated: object) -> float:
    if type(stated) not in (int, float) or not 1 < stated < float("inf"):  # type: ignore[operator]
        raise CheckpointError(
            f"config.json: rope_theta must be a number above 1, got {str(stated)[:50]!a}"
        )
    return float(stated)  # type: ignore[arg-type]  # one of the two


def _plain(name: str) -> str:
    return name.removeprefix("model.")


def usual(keys: Collection[str]) -> dict[str, Any]:
    """Return the facts of all DINOv3, with the biases that keys of a file show."""
    block: dict[str, Any] = {"activation": "gelu", "norm_eps": 1e-5}
    if keys:
        block["qkv_bias"] = _biases(keys)
    return {"block": block, "pos_embed": ROPE}


def _biases(keys: Collection[str]) -> bool | str:
    first = [key for key in keys if re.search(r"\.0\.att", key)]
    masked = any(key.endswith((MASK, "attn.q_bias")) for key in first)
    if masked or any(key.endswith("q_proj.bias") for key in first):
        return True if any(key.endswith("k_proj.bias") for key in first) else "qv"
    return any(key.endswith("attn.qkv.bias") for key in first)


def lacks(spec: Spec, temperature: float | None = TEMPERATURE) -> list[str]:
    """Return what no DINOv3 has: registers, factors of the channels, rotations."""
    allowed = ("layer_scale", "num_registers", "qkv_bias", "qv_bias", "mlp")
    options = dict(spec.pos_embed.options)
    other = {key: value for key, value in options.items() if key in ROPE and value != ROPE[key]}
    if temperature is None:
        other.pop("temperature", None)
    rope = spec.pos_embed.name == "rope" and not other and not options.get("absolute", False)
    mlp = spec.block.mlp not in ("mlp", "swiglu")
    return [
        *unsupported.class_token(spec),
        *unsupported.patch_bias(spec),
        *unsupported.plain_blocks(spec, allowed=allowed),
        *([] if spec.num_registers else ["num_registers = 0"]),
        *(["block.layer_scale = none"] if spec.block.layer_scale is None else []),
        *([f"block.mlp = {spec.block.mlp}"] if mlp else []),
        *([] if rope else [unsupported.part("pos_embed", spec.pos_embed)]),
    ]


timm_eva = TimmDinoV3Format()
transformers = TransformersDinoV3Format()
