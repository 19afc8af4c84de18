"""The names of open_clip's and OpenAI's CLIP: `visual.*` beside a text tower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitzoo import Spec
from vitzoo.errors import CheckpointError
from vitzoo.formats import Config, KeyMap, Keys, Tensors, checked_epsilon
from vitzoo_clip.transformers import TowerFormat, transformers_clip

BLOCK = "visual.transformer.resblocks.{}."
OPENAI = ("input_resolution", "context_length", "vocab_size")  # which only its own files hold
POOLS = {"tok": "class", "avg": "mean"}


class OpenClipFormat(TowerFormat):
    """The image tower of open_clip's `CLIP`, and of OpenAI's, which has the same names."""

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Return the projection outputs first, tokens with their leading axes."""
        if key == "visual.proj":
            return tensor.T.contiguous() if tensor.dim() == 2 else tensor
        return super().read_axes(key, tensor)

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        """Undo `read_axes`."""
        if key == "visual.proj":
            return tensor.T if tensor.dim() == 2 else None
        return super().write_axes(key, tensor)

    def unsupported(self, spec: Spec) -> list[str]:
        """Return what open_clip's tower lacks; it can average the patches, too."""
        return [*([] if spec.pre_norm else ["pre_norm = false"]), *super().unsupported(spec)]

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
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
            found = transformers_clip.overrides(config, keys)
            return {key: value for key, value in found.items() if key == "block"}
        return {"block": _block(model, tower), "pool": _pool(tower)}

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return the heads that an `open_clip_config.json` states: one for so much width."""
        _, tower = _tables(config)
        if tower is None:
            return transformers_clip.num_heads(config, tensors)
        width, each = tower.get("width", 768), tower.get("head_width", 64)
        whole = all(type(number) is int and number > 0 for number in (width, each))
        return width // each if whole and width >= each else None


def _tables(config: Config) -> tuple[Config, Config | None]:
    """Return what an `open_clip_config.json` says of the model, and of its image tower if it is."""
    model = config.get("model_cfg", config)
    tower = model.get("vision_cfg") if isinstance(model, Mapping) else None
    return (model, tower) if isinstance(tower, Mapping) else ({}, None)


def _block(model: Config, tower: Config) -> dict[str, Any]:
    quick = model.get("quick_gelu", False)
    given = (tower.get("act_kwargs") or {}, tower.get("norm_kwargs") or {})
    if not isinstance(quick, bool) or not all(isinstance(table, Mapping) for table in given):
        raise CheckpointError(
            "open_clip_config.json: quick_gelu must be true or false, act_kwargs and norm_kwargs "
            f"tables; got {quick!a}, {given[0]!a}, {given[1]!a}"[:300]
        )
    tanh = given[0].get("approximate", "none") == "tanh"
    epsilon = given[1].get("eps", 1e-5)
    where = "open_clip_config.json: norm_kwargs.eps"
    activation = "quick_gelu" if quick else "gelu_tanh" if tanh else "gelu"
    return {"activation": activation, "norm_eps": checked_epsilon(epsilon, where)}


def _pool(tower: Config) -> str:
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


open_clip = OpenClipFormat(
    "clip/open_clip",
    keymap=KeyMap(
        {
            "visual.class_embedding": "cls_token",
            "visual.positional_embedding": "pos_embed",
            "visual.conv1.weight": "patch_embed.proj.weight",
            "visual.ln_pre.": "norm_pre.",
            "visual.ln_post.": "norm.",
            "visual.proj": "head.weight",
        },
        {
            "ln_1.": "norm1.",
            "attn.in_proj_weight": "attn.qkv.weight",
            "attn.in_proj_bias": "attn.qkv.bias",
            "attn.out_proj.": "attn.proj.",
            "ln_2.": "norm2.",
            "mlp.c_fc.": "mlp.fc1.",
            "mlp.c_proj.": "mlp.fc2.",
        },
        BLOCK,
    ),
    marks=(
        "visual.conv1.weight",
        "visual.class_embedding",
        f"{BLOCK.format(0)}attn.in_proj_weight",
    ),
    ignored=(
        *("transformer.", "token_embedding.", "ln_final.", "text_projection.", "text."),
        *("positional_embedding", "text_projection", "attn_mask", "logit_scale", "logit_bias"),
        *OPENAI,
    ),
    network={"bias": False, "blocks": ("pre_norm",), "pools": ("class", "mean")},
)
