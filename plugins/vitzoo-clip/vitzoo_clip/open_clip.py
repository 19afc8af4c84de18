"""The layout of open_clip's and OpenAI's CLIP: `visual.*` beside a text tower."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import Tensor

from vitzoo.errors import CheckpointError
from vitzoo.formats import Format, unsupported
from vitzoo.formats.keymap import block_of, invert, unheld, unique
from vitzoo.schema.spec import Spec
from vitzoo_clip.keys import BIAS, PATCH_BIAS, check_bias, plain_tokens, projection, tokens
from vitzoo_clip.transformers import transformers_clip

PREFIX = "visual."
MARKS = (
    "visual.conv1.weight",
    "visual.class_embedding",
    "visual.transformer.resblocks.0.attn.in_proj_weight",
)
TEXT = ("transformer.", "token_embedding.", "ln_final.", "text_projection.", "text.")
SCALARS = ("positional_embedding", "text_projection", "attn_mask", "logit_scale", "logit_bias")
OPENAI = ("input_resolution", "context_length", "vocab_size")  # which only its own files hold
TOKENS = {"class_embedding": "cls_token", "positional_embedding": "pos_embed"}
STEM = {"conv1": "patch_embed.proj", "ln_pre": "norm_pre", "ln_post": "norm"}
LAYER = {
    "ln_1": "norm1",
    "attn.out_proj": "attn.proj",
    "ln_2": "norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
POOLS = {"tok": "class", "avg": "mean"}


class OpenClipFormat(Format):
    """The image tower of open_clip's `CLIP`, and of OpenAI's, which has the same names.

    Query, key and value are one tensor; the projection is stored inputs first and has no bias.
    """

    def matches(self, keys: Collection[str]) -> bool:
        """Tell whether a Vision Transformer's stem and first block are there."""
        return all(mark in keys for mark in MARKS)

    def ignored_keys(self, keys: Collection[str]) -> list[str]:
        """Return the keys of the text tower, of the temperature and of OpenAI's scalars."""
        return [key for key in keys if key.startswith(TEXT) or key in (*SCALARS, *OPENAI)]

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename and transpose; what is beside the image tower is left out."""
        beside = set(self.ignored_keys(tensors))
        return unique(
            pair
            for name, tensor in tensors.items()
            if name not in beside
            for pair in _canonical(name, tensor)
        )

    def from_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename and transpose, with `visual.` in front.

        Raises:
            CheckpointError: tensors that the tower does not have, such as a bias of the head.
        """
        check_bias("clip/open_clip", tensors)
        written: dict[str, Tensor] = {}
        left = []
        for name, tensor in tensors.items():
            if name == BIAS:
                continue  # zeros, which reading gives back
            found = dict(_inverse(name, tensor))
            if not found:
                left.append(name)
            written |= {PREFIX + key: value for key, value in found.items()}
        if left:
            raise unheld("clip/open_clip", left)
        return written

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what open_clip's tower lacks; it can average the patches, too."""
        return [
            *unsupported.class_token(spec),
            *([] if spec.pre_norm else ["pre_norm = false"]),
            *unsupported.patch_bias(spec, bias=False),
            *unsupported.plain_blocks(spec, allowed=("pre_norm",)),
            *unsupported.one_learned_table(spec),
            *unsupported.pooled(spec, "class", "mean"),
        ]

    def overrides(self, config: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
        """Return activation, epsilon and pool.

        They stand in an `open_clip_config.json`, or in the `config.json` of transformers that many
        repositories have for the same weights. Without either it is open_clip's exact GELU, and in
        OpenAI's own files quick GELU, with an epsilon of 1e-5.

        Raises:
            CheckpointError: the config states something that the model cannot do.
        """
        if not config:
            activation = "quick_gelu" if any(key in keys for key in OPENAI) else "gelu"
            return {"block": {"activation": activation, "norm_eps": 1e-5}}
        model, tower = _tables(config)
        if tower is None:
            return {
                k: v for k, v in transformers_clip.overrides(config, keys).items() if k == "block"
            }
        return {"block": _block(model, tower), "pool": _pool(tower)}

    def num_heads(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int | None:
        """Return the heads that an `open_clip_config.json` states: one for so much width."""
        _, tower = _tables(config)
        if tower is None:
            return transformers_clip.num_heads(config, tensors)
        width, each = tower.get("width", 768), tower.get("head_width", 64)
        whole = all(type(number) is int and number > 0 for number in (width, each))
        return width // each if whole and width >= each else None


def _canonical(key: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield what one of their tensors becomes; it stays as it is if it is not known."""
    name = key.removeprefix(PREFIX)
    part, _, kind = name.rpartition(".")
    match = re.fullmatch(r"transformer\.resblocks\.(\d+)\.(.+)", part)
    fused = re.fullmatch(r"transformer\.resblocks\.(\d+)\.attn\.in_proj_(weight|bias)", name)
    if name == key:
        yield key, tensor
    elif name in TOKENS:
        yield TOKENS[name], tokens(TOKENS[name], tensor)
    elif name == "proj":
        yield from projection(tensor.T.contiguous() if tensor.dim() == 2 else tensor)
    elif fused:
        yield f"blocks.{fused[1]}.attn.qkv.{fused[2]}", tensor
    elif match and match[2] in LAYER and kind in ("weight", "bias"):
        yield f"blocks.{match[1]}.{LAYER[match[2]]}.{kind}", tensor
    elif part in STEM and kind in ("weight", "bias"):
        yield f"{STEM[part]}.{kind}", tensor
    else:
        yield key, tensor


def _inverse(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield what one of the model's tensors becomes, nothing if there is no place for it."""
    part, _, kind = name.rpartition(".")
    if block := block_of(name):
        number, module, kind = block
        layer = f"transformer.resblocks.{number}"
        if module == "attn.qkv":
            yield f"{layer}.attn.in_proj_{kind}", tensor
        else:
            yield f"{layer}.{invert(LAYER)[module]}.{kind}", tensor
    elif name in TOKENS.values():
        bare = plain_tokens(name, tensor)
        if bare is not None:
            yield invert(TOKENS)[name], bare
    elif name == "head.weight":
        if tensor.dim() == 2:
            yield "proj", tensor.T
    elif part in STEM.values() and kind in ("weight", "bias") and name != PATCH_BIAS:
        yield f"{invert(STEM)[part]}.{kind}", tensor


def _tables(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return what an `open_clip_config.json` says of the model, and of its image tower if it is."""
    model = config.get("model_cfg", config)
    tower = model.get("vision_cfg") if isinstance(model, Mapping) else None
    return (model, tower) if isinstance(tower, Mapping) else ({}, None)


def _block(model: Mapping[str, Any], tower: Mapping[str, Any]) -> dict[str, Any]:
    quick = model.get("quick_gelu", False)
    given = (tower.get("act_kwargs") or {}, tower.get("norm_kwargs") or {})
    if not isinstance(quick, bool) or not all(isinstance(table, Mapping) for table in given):
        raise CheckpointError(
            "open_clip_config.json: quick_gelu must be true or false, act_kwargs and norm_kwargs "
            f"tables; got {quick!a}, {given[0]!a}, {given[1]!a}"[:300]
        )
    tanh = given[0].get("approximate", "none") == "tanh"
    epsilon = given[1].get("eps", 1e-5)
    if type(epsilon) not in (int, float) or not 0 < epsilon < 1:
        raise CheckpointError(
            f"open_clip_config.json: norm_kwargs.eps must lie between 0 and 1, got {epsilon!a}"
        )
    activation = "quick_gelu" if quick else "gelu_tanh" if tanh else "gelu"
    return {"activation": activation, "norm_eps": float(epsilon)}


def _pool(tower: Mapping[str, Any]) -> str:
    kind = "avg" if tower.get("global_average_pool") is True else tower.get("pool_type", "tok")
    if not isinstance(kind, str) or kind not in POOLS:
        known = ", ".join(POOLS)
        raise CheckpointError(f"open_clip_config.json: pool_type {kind!a} is none of {known}")
    if kind == "avg" and tower.get("final_ln_after_pool", False) is not False:
        raise CheckpointError(
            "open_clip_config.json: final_ln_after_pool with pool_type 'avg' is not read here; "
            "only a mean of normed patches is"
        )
    return POOLS[kind]


open_clip = OpenClipFormat("clip/open_clip", ignored=TEXT)
