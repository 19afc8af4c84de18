"""The layouts of transformers' CLIP and SigLIP: whole models, and their image towers alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError
from vitzoo.formats import Format, unsupported
from vitzoo.formats.keymap import block_of, invert, split_qkv, stack_qkv, unheld, unique
from vitzoo.formats.transformers import transformers_vit
from vitzoo.schema.spec import Spec
from vitzoo_clip.keys import (
    BIAS,
    PATCH_BIAS,
    POOL_KEYS,
    POOL_QUERY,
    check_bias,
    plain_tokens,
    projection,
    tokens,
    vision_config,
)

PREFIX = "vision_model."
PROJECTION = "visual_projection.weight"
BESIDE = ("text_model.", "text_projection.", "logit_scale", "logit_bias")  # parts of a whole model
POSITION_IDS = "embeddings.position_ids"  # a table of 0, 1, 2, ... that older files hold
TOKENS = {
    "embeddings.class_embedding": "cls_token",
    "embeddings.position_embedding.weight": "pos_embed",
    "head.probe": "attn_pool.latent",
}
STEM = {
    "embeddings.patch_embedding": "patch_embed.proj",
    "pre_layrnorm": "norm_pre",  # its authors' spelling
    "post_layernorm": "norm",
}
POOL = {
    "head.attention.out_proj": "attn_pool.proj",
    "head.layernorm": "attn_pool.norm",
    "head.mlp.fc1": "attn_pool.mlp.fc1",
    "head.mlp.fc2": "attn_pool.mlp.fc2",
}
LAYER = {
    "layer_norm1": "norm1",
    "self_attn.out_proj": "attn.proj",
    "layer_norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}
PROJECTIONS = ("q_proj", "k_proj", "v_proj")
QUERY = "encoder.layers.0.self_attn.q_proj.weight"
POOLED = "head.attention.in_proj_"  # query, key and value of the pooling, in one tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class TransformersTower(Format):
    """The image tower of one of transformers' two-tower models.

    Args:
        tokens, modules: names outside the blocks, theirs to the model's.
        projects: whether a projection without bias may follow the tower.
        kinds: `model_type` of whole models to that of their image towers.
        defaults: what the library takes for what such a config leaves out.
    """

    tokens: Mapping[str, str]
    modules: Mapping[str, str]
    projects: bool
    kinds: Mapping[str, str]
    defaults: Mapping[str, Any]

    def matches(self, keys: Collection[str]) -> bool:
        """Tell whether the tower's first query is there, and a class token as the layout says."""
        plain = {key.removeprefix(PREFIX) for key in keys}
        needed = {QUERY, "post_layernorm.weight", "embeddings.position_embedding.weight"}
        return needed <= plain and ("embeddings.class_embedding" in plain) == self.projects

    def ignored_keys(self, keys: Collection[str]) -> list[str]:
        """Return the keys of the text tower, of the temperature, and of what is only counted."""
        return [
            key
            for key in keys
            if key.startswith(BESIDE) or key.removeprefix(PREFIX) == POSITION_IDS
        ]

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename, and stack query, key and value; what is beside the image tower is left out."""
        beside = set(self.ignored_keys(tensors))
        own = {name: t for name, t in tensors.items() if name not in beside}
        plain = unique((name.removeprefix(PREFIX), tensor) for name, tensor in own.items())
        renamed: list[tuple[str, Tensor]] = []
        stacked: set[str] = set()
        for key in plain:
            match = re.fullmatch(r"encoder\.layers\.(\d+)\.self_attn\.q_proj\.(weight|bias)", key)
            keys = [key.replace("q_proj", part) for part in PROJECTIONS] if match else []
            rows = stack_qkv(plain.get(k) for k in keys)
            if match and rows is not None:
                renamed.append((f"blocks.{match[1]}.attn.qkv.{match[2]}", rows))
                stacked.update(keys)
        for key, tensor in plain.items():
            if key not in stacked:
                renamed += self._canonical(key, tensor)
        return unique(renamed)

    def from_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename and split, with `vision_model.` in front.

        Raises:
            CheckpointError: tensors that the tower does not have, such as a bias of the head.
        """
        if self.projects:
            check_bias(self.name, tensors)
        written: dict[str, Tensor] = {}
        left = []
        for name, tensor in tensors.items():
            if name == BIAS and self.projects:
                continue  # zeros, which reading gives back
            found = self._inverse(name, tensor, tensors)
            if not found:
                left.append(name)
            written |= {k if k == PROJECTION else PREFIX + k: t for k, t in found.items()}
        if left:
            raise unheld(self.name, left)
        return written

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what the tower lacks: its class token, norms, pool and biases are fixed."""
        token = spec.class_token != self.projects
        return [
            *([f"class_token = {str(spec.class_token).lower()}"] if token else []),
            *([] if spec.pre_norm == self.projects else [f"pre_norm = {spec.pre_norm}".lower()]),
            *unsupported.patch_bias(spec, bias=not self.projects),
            *unsupported.plain_blocks(spec, allowed=("pre_norm",)),
            *unsupported.one_learned_table(spec),
            *unsupported.pooled(spec, "class" if self.projects else "attention"),
            *unsupported.attention_pool(spec),
        ]

    def overrides(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return activation and epsilon, the library's defaults without config.

        Positions are resampled as its `interpolate_pos_encoding` does: bicubic, not antialiased.

        Raises:
            CheckpointError: the config is of a model that resizes positions for every image.
        """
        if config:
            self._check_kind(config)
            table = vision_config(config, self.kinds, self.defaults)
            return transformers_vit.overrides(table, ()) if table else {}
        return transformers_vit.overrides(self.defaults, ()) | {
            "pos_embed": {"resample": "bicubic"}
        }

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return `num_attention_heads` of the config."""
        table = vision_config(config, self.kinds, self.defaults)
        return transformers_vit.num_heads(table, tensors)

    def _check_kind(self, config: Mapping[str, Any]) -> None:
        kind = config.get("model_type")
        if isinstance(kind, str) and kind.startswith("siglip2"):
            raise CheckpointError(
                f"config.json: model_type {kind!a} is SigLIP 2 NaFlex, which brings positions to "
                "the shape of every image; the models of one size have model_type 'siglip'"
            )

    def _canonical(self, key: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield what one of their tensors becomes; it stays as it is if it is not known."""
        if key in self.tokens:
            yield self.tokens[key], tokens(self.tokens[key], tensor)
            return
        if self.projects and key == PROJECTION:
            yield from projection(tensor)
            return
        part, _, kind = key.rpartition(".")
        match = re.fullmatch(r"encoder\.layers\.(\d+)\.(.+)", part)
        if match and match[2] in LAYER and kind in ("weight", "bias"):
            yield f"blocks.{match[1]}.{LAYER[match[2]]}.{kind}", tensor
        elif part in self.modules and kind in ("weight", "bias"):
            yield f"{self.modules[part]}.{kind}", tensor
        elif not self.projects and (rows := _pool_rows(key, tensor)):
            yield from rows
        else:
            yield key, tensor

    def _inverse(
        self, name: str, tensor: Tensor, tensors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return what one of the model's tensors becomes, nothing if there is no place for it."""
        if block := block_of(name):
            number, part, kind = block
            layer = f"encoder.layers.{number}"
            if part != "attn.qkv":
                return {f"{layer}.{invert(LAYER)[part]}.{kind}": tensor}
            names = (f"{layer}.self_attn.{which}.{kind}" for which in PROJECTIONS)
            return dict(zip(names, split_qkv(tensor) or (), strict=False))
        if name in self.tokens.values():
            bare = tensor if name == "attn_pool.latent" else plain_tokens(name, tensor)
            return {} if bare is None else {invert(self.tokens)[name]: bare}
        part, _, kind = name.rpartition(".")
        if self.projects and name == "head.weight":
            return {PROJECTION: tensor}
        if not self.projects and part in (POOL_QUERY, POOL_KEYS):
            return _pooled(kind, tensors)
        known = part in self.modules.values() and kind in ("weight", "bias")
        known = known and not (self.projects and name == PATCH_BIAS)
        return {f"{invert(self.modules)[part]}.{kind}": tensor} if known else {}


def _pool_rows(key: str, tensor: Tensor) -> list[tuple[str, Tensor]]:
    """Cut the rows of query, key and value of the pooling; none if the tensor is something else."""
    kind = key.removeprefix(POOLED)
    rows = split_qkv(tensor) if key.startswith(POOLED) and kind in ("weight", "bias") else None
    if not rows:
        return []
    query, *others = rows
    return [(f"{POOL_QUERY}.{kind}", query), (f"{POOL_KEYS}.{kind}", torch.cat(others))]


def _pooled(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stack query, key and value of the pooling; nothing if one is missing or does not fit."""
    query, keys = (tensors.get(f"{part}.{kind}") for part in (POOL_QUERY, POOL_KEYS))
    if kind not in ("weight", "bias") or query is None or keys is None:
        return {}
    rows = [query, *(keys.chunk(2) if keys.dim() and keys.shape[0] % 2 == 0 else ())]
    stacked = stack_qkv(rows)
    return {} if stacked is None else {f"{POOLED}{kind}": stacked}


transformers_clip = TransformersTower(
    name="clip/transformers",
    ignored=BESIDE,
    tokens={key: name for key, name in TOKENS.items() if name != "attn_pool.latent"},
    modules=STEM,
    projects=True,
    kinds={"clip": "clip_vision_model"},
    defaults={"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_attention_heads": 12},
)
transformers_siglip = TransformersTower(
    name="siglip/transformers",
    ignored=BESIDE,
    tokens={key: name for key, name in TOKENS.items() if name != "cls_token"},
    modules={key: name for key, name in STEM.items() if name != "norm_pre"} | POOL,
    projects=False,
    kinds={"siglip": "siglip_vision_model"},
    defaults={"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6, "num_attention_heads": 12},
)
