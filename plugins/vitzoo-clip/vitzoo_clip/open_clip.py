"""The names of open_clip's and OpenAI's CLIP: `visual.*` beside a text tower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitzoo.formats import Config, KeyMap, Keys, Tensors, check_config
from vitzoo_clip.transformers import TowerFormat, transformers_clip

BLOCK = "visual.transformer.resblocks.{}."
ATTENTION = f"{BLOCK.format(0)}attn.in_proj_weight"
CONFIG = "open_clip_config.json"
OPENAI = ("input_resolution", "context_length", "vocab_size")  # only in OpenAI's own files
POOLS = {"tok": "class", "avg": "mean"}


class OpenClipFormat(TowerFormat):
    """The image tower of open_clip's `CLIP`, and of OpenAI's, which has the same names."""

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        if key == "visual.proj":
            return tensor.T.contiguous() if tensor.dim() == 2 else tensor
        return super().read_axes(key, tensor)

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        if key == "visual.proj":
            return tensor.T if tensor.dim() == 2 else None
        return super().write_axes(key, tensor)

    def overrides(self, config: Config, keys: Keys) -> dict[str, Any]:
        """Return the settings in `open_clip_config.json`, or in the config of transformers."""
        if not config:
            return super().overrides(config, keys)
        model, tower = _tables(config)
        if tower is not None:
            return {"block": _block(model, tower), "pool": _pool(tower)}
        return transformers_clip.overrides(config, keys)

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return the heads that an `open_clip_config.json` states as the width of one head."""
        _, tower = _tables(config)
        if tower is None:
            return transformers_clip.num_heads(config, tensors)
        width, each = tower.get("width", 768), tower.get("head_width", 64)
        whole = type(width) is type(each) is int and 0 < each <= width
        return width // each if whole else None


def _tables(config: Config) -> tuple[Config, Config | None]:
    """Return the tables of the model and of its image tower in an `open_clip_config.json`."""
    model = config.get("model_cfg", config)
    tower = model.get("vision_cfg") if isinstance(model, Mapping) else None
    return (model, tower) if isinstance(tower, Mapping) else ({}, None)


def _block(model: Config, tower: Config) -> dict[str, Any]:
    quick = model.get("quick_gelu", False)
    act, norm = (tower.get(key) or {} for key in ("act_kwargs", "norm_kwargs"))
    check_config(isinstance(quick, bool), "quick_gelu", "true or false", quick, CONFIG)
    check_config(isinstance(act, Mapping), "act_kwargs", "a table", act, CONFIG)
    check_config(isinstance(norm, Mapping), "norm_kwargs", "a table", norm, CONFIG)
    epsilon = norm.get("eps", 1e-5)
    good = isinstance(epsilon, int | float) and 0 < epsilon < 1
    check_config(good, "norm_kwargs.eps", "between 0 and 1", epsilon, CONFIG)
    gelu = "gelu_tanh" if act.get("approximate", "none") == "tanh" else "gelu"
    return {"activation": "quick_gelu" if quick else gelu, "norm_eps": float(epsilon)}


def _pool(tower: Config) -> str:
    kind = "avg" if tower.get("global_average_pool") is True else tower.get("pool_type", "tok")
    known = isinstance(kind, str) and kind in POOLS
    check_config(known, "pool_type", f"one of {', '.join(POOLS)}", kind, CONFIG)
    late = tower.get("final_ln_after_pool", False)
    expected = "false if pool_type is 'avg', because the model averages normed patches"
    check_config(kind != "avg" or late is False, "final_ln_after_pool", expected, late, CONFIG)
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
        *("transformer.*", "token_embedding.*", "ln_final.*", "text_projection*", "text.*"),
        *("positional_embedding", "attn_mask", "logit_*", *OPENAI),
    ),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-5}},
    defaults_with={key: {"block": {"activation": "quick_gelu"}} for key in OPENAI},
    network={"pre_norm": (True,), "patch_embed.bias": (False,), "pool": ("class", "mean")},
)
