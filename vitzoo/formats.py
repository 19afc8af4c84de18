"""Checkpoint formats: layouts of keys, recognised and brought to the model's own.

A format is an object with three methods (`Format`). They work on real tensors and on tensors of the
`meta` device alike, so that a file is checked against a model before its data is touched.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError


@runtime_checkable
class Format(Protocol):
    """What a contribution to `vitzoo_checkpoint_formats` must offer."""

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether keys are in this layout."""
        ...

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors under the model's own keys; keys it does not know stay as they are."""
        ...

    def facts(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return block options that files of this layout are evaluated with.

        Args:
            config: the file's sibling `config.json`; with an empty one, the layout's defaults
                are returned, else what it states of them.

        Raises:
            CheckpointError: it states something that the model cannot do.
        """
        ...


class TimmFormat:
    """timm's layout, which is the model's own: fused qkv, `blocks.N`, `norm`, `head`."""

    MARKS = ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight")

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether at least two of the layout's typical keys are there."""
        return sum(mark in keys for mark in self.MARKS) >= 2

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors as they are."""
        return dict(tensors)

    def facts(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing: a file in timm's layout is evaluated as its variant is."""
        return {}


MARK = "embeddings.patch_embeddings.projection.weight"
STEM = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
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
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
}


class TransformersViTFormat:
    """The layout of transformers' `ViTModel` and `ViTForImageClassification`.

    Query, key and value are separate; `pooler.dense` is the paper's pre-logits layer; keys may
    start with `vit.`.
    """

    def claims(self, keys: Collection[str]) -> bool:
        """Tell whether the patch projection and a first query are there."""
        query = "encoder.layer.0.attention.attention.query.weight"
        return any(f"{p}{MARK}" in keys and f"{p}{query}" in keys for p in ("", "vit."))

    def canonical(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, and stack query, key and value."""
        plain = _unique((name.removeprefix("vit."), t) for name, t in tensors.items())
        renamed = _unique((_rename(name), t) for name, t in plain.items() if not _is_qkv(name))
        stacked: set[str] = set()
        for query in [name for name in plain if ".attention.query." in name]:
            keys = [query.replace("query", part) for part in ("query", "key", "value")]
            parts = [plain[key] for key in keys if key in plain]
            match = re.fullmatch(
                r"encoder\.layer\.(\d+)\.attention\.attention\.query\.(\w+)", query
            )
            alike = len(parts) == 3 and len({(part.shape, part.dtype) for part in parts}) == 1
            if match and alike and parts[0].dim():
                renamed[f"blocks.{match[1]}.attn.qkv.{match[2]}"] = torch.cat(parts)
                stacked.update(keys)
        left = {n: t for n, t in plain.items() if _is_qkv(n) and n not in stacked}
        return renamed | left

    def facts(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return norm epsilon, activation and query bias, the library's defaults without config."""
        if not config:
            return {"activation": "gelu", "norm_eps": 1e-12}
        facts: dict[str, Any] = {}
        if "hidden_act" in config:
            stated = config["hidden_act"]
            if not isinstance(stated, str) or stated not in ACTIVATIONS:
                known = ", ".join(ACTIVATIONS)
                raise CheckpointError(f"config.json: hidden_act {stated!a} is none of {known}")
            facts["activation"] = ACTIVATIONS[stated]
        if "layer_norm_eps" in config:
            epsilon = config["layer_norm_eps"]
            if type(epsilon) not in (int, float) or not 0 < epsilon < 1:
                raise CheckpointError(
                    f"config.json: layer_norm_eps must lie between 0 and 1, got {epsilon!a}"
                )
            facts["norm_eps"] = float(epsilon)
        if isinstance(config.get("qkv_bias"), bool):
            facts["qkv_bias"] = config["qkv_bias"]
        return facts


def _unique(pairs: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, tensor in pairs:
        if name in tensors:
            raise CheckpointError(f"two tensors of the file are the model's {name!a}")
        tensors[name] = tensor
    return tensors


def _rename(name: str) -> str:
    match = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)", name)
    if match and match[2] in LAYER:
        return f"blocks.{match[1]}.{LAYER[match[2]]}.{match[3]}"
    if name in STEM:
        return STEM[name]
    layer, _, kind = name.rpartition(".")
    return f"{STEM[layer]}.{kind}" if layer in STEM else name


def _is_qkv(name: str) -> bool:
    return re.search(r"\.attention\.attention\.(query|key|value)\.", name) is not None


timm = TimmFormat()
transformers_vit = TransformersViTFormat()
