"""The layout of transformers' ViT."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from vitzoo.errors import CheckpointError
from vitzoo.formats import unsupported
from vitzoo.formats.base import Format
from vitzoo.formats.keymap import block_of, invert, split_qkv, stack_qkv, unheld, unique
from vitzoo.schema.spec import Spec

PATCHES = "embeddings.patch_embeddings.projection.weight"
DISTILLATION = "embeddings.distillation_token"  # of a DeiT, whose heads are not a ViT's
SCALE = "encoder.layer.0.layer_scale1.lambda1"  # of a DINOv2
RELATIVE = "relative_position_bias_table"  # of a BEiT, which has no bias of the key
DECODER = "decoder."  # of MAE's pre-training, whose encoder is a ViT
QUERY = "encoder.layer.0.attention.attention.query.weight"
TABLES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
}
STEM = {
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
    "pooler.dense": "head.pre_logits",
    "classifier": "head",
}
LAYER = {
    "layernorm_before": "norm1",
    "attention.output.dense": "attn.proj",
    "layernorm_after": "norm2",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}
PROJECTIONS = ("query", "key", "value")
# Module names of release 5, which its `save_pretrained` writes under the names of release 4.
RELEASE_5 = {
    "attention.q_proj": "attention.attention.query",
    "attention.k_proj": "attention.attention.key",
    "attention.v_proj": "attention.attention.value",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}


class TransformersViTFormat(Format):
    """The layout of transformers' `ViTModel` and `ViTForImageClassification`.

    `ViTMAEModel` has it too, and `ViTMAEForPreTraining`, whose decoder is left out. Query, key and
    value are separate; `pooler.dense` is the paper's pre-logits layer; keys may start with `vit.`.
    The names of release 4 are read and written, which `save_pretrained` of release 5 writes too;
    the state dict of a model of release 5 is read.
    """

    def matches(self, keys: Collection[str]) -> bool:
        """Tell whether patch projection and first query are there, and no other family's key."""
        if (
            DISTILLATION in keys
            or SCALE in keys
            or any(key.endswith(RELATIVE) for key in keys)
            or not any(f"{pre}{PATCHES}" in keys for pre in ("", "vit."))
        ):
            return False
        return QUERY in {_plain(key) for key in keys}

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, and stack query, key and value."""
        beside = set(self.ignored_keys(tensors))
        plain = unique((_plain(name), t) for name, t in tensors.items() if name not in beside)
        renamed = unique((_rename(name), t) for name, t in plain.items() if not _is_qkv(name))
        stacked: set[str] = set()
        for query in [name for name in plain if ".attention.query." in name]:
            keys = [query.replace("query", part) for part in PROJECTIONS]
            match = re.fullmatch(
                r"encoder\.layer\.(\d+)\.attention\.attention\.query\.(\w+)", query
            )
            rows = stack_qkv(plain.get(key) for key in keys)
            if match and rows is not None:
                renamed[f"blocks.{match[1]}.attn.qkv.{match[2]}"] = rows
                stacked.update(keys)
        left = {n: t for n, t in plain.items() if _is_qkv(n) and n not in stacked}
        return renamed | left

    def from_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename and split; with `vit.` in front where there is a classifier.

        Raises:
            CheckpointError: tensors that ViTModel and ViTForImageClassification do not have, such
                as a classifier behind a pre-logits layer.
        """
        prefix = "vit." if {"head.weight", "head.bias"} & tensors.keys() else ""
        written: dict[str, Tensor] = {}
        left = []
        for name, tensor in tensors.items():
            found = _inverse(name, tensor)
            if not found:
                left.append(name)
            for key, value in found.items():
                written[key if key.startswith("classifier.") else prefix + key] = value
        if left:
            raise unheld("transformers_vit", left)
        return written

    def ignored_keys(self, keys: Collection[str]) -> list[str]:
        """Return the decoder of MAE."""
        masked = f"{DECODER}mask_token" in keys
        return [key for key in keys if masked and key.startswith(DECODER)]

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what transformers' ViT lacks: it is the paper's, biases of queries by choice."""
        return [
            *unsupported.class_token(spec),
            *unsupported.patch_bias(spec),
            *unsupported.plain_blocks(spec, allowed=("qkv_bias",)),
            *unsupported.one_learned_table(spec),
            *unsupported.pooled(spec, "class"),
        ]

    def overrides(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return norm epsilon, activation and query bias, the library's defaults without config.

        Positions are resampled as its `interpolate_pos_encoding` does: bicubic, not antialiased.
        """
        if config:
            return {"block": _stated(config)}
        return {
            "block": {"activation": "gelu", "norm_eps": 1e-12},
            "pos_embed": {"resample": "bicubic"},
        }

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return `num_attention_heads` of the config."""
        heads = config.get("num_attention_heads")
        return heads if type(heads) is int and heads > 0 else None


def _stated(config: Mapping[str, Any]) -> dict[str, Any]:
    block: dict[str, Any] = {}
    if "hidden_act" in config:
        stated = config["hidden_act"]
        if not isinstance(stated, str) or stated not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise CheckpointError(f"config.json: hidden_act {stated!a} is none of {known}")
        block["activation"] = ACTIVATIONS[stated]
    if "layer_norm_eps" in config:
        epsilon = config["layer_norm_eps"]
        if type(epsilon) not in (int, float) or not 0 < epsilon < 1:
            raise CheckpointError(
                f"config.json: layer_norm_eps must lie between 0 and 1, got {epsilon!a}"
            )
        block["norm_eps"] = float(epsilon)
    if isinstance(config.get("qkv_bias"), bool):
        block["qkv_bias"] = config["qkv_bias"]
    return block


def _plain(name: str) -> str:
    """Return a key without its prefix and with the module names of release 4."""
    name = name.removeprefix("vit.")
    match = re.fullmatch(r"layers\.(\d+)\.(.+)\.(weight|bias)", name)
    if match is None:
        return name
    return f"encoder.layer.{match[1]}.{RELEASE_5.get(match[2], match[2])}.{match[3]}"


def _rename(name: str) -> str:
    match = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)", name)
    if match and match[2] in LAYER:
        return f"blocks.{match[1]}.{LAYER[match[2]]}.{match[3]}"
    if name in TABLES:
        return TABLES[name]
    layer, _, kind = name.rpartition(".")
    return f"{STEM[layer]}.{kind}" if layer in STEM else name


def _inverse(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the tensors that one of the model's becomes, none if there is no place for it."""
    stem = invert(STEM)
    if block := block_of(name):
        number, part, kind = block
        layer = f"encoder.layer.{number}"
        if part != "attn.qkv":
            return {f"{layer}.{invert(LAYER)[part]}.{kind}": tensor}
        rows = split_qkv(tensor) or ()
        keys = (f"{layer}.attention.attention.{which}.{kind}" for which in PROJECTIONS)
        return dict(zip(keys, rows, strict=False))
    if name in TABLES.values():
        return {invert(TABLES)[name]: tensor}
    part, _, kind = name.rpartition(".")
    known = part in stem and kind in ("weight", "bias")
    return {f"{stem[part]}.{kind}": tensor} if known else {}


def _is_qkv(name: str) -> bool:
    return re.search(r"\.attention\.attention\.(query|key|value)\.", name) is not None


transformers_vit = TransformersViTFormat("transformers_vit", ignored=(DECODER,))
