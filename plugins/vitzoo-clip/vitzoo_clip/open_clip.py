"""The names of open_clip's and OpenAI's CLIP: `visual.*` beside a text tower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitzoo import formats
from vitzoo.formats import Config, ConfigTable, Format, KeyMap, Tensors, timm_vit
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

    def own_config(self, config: Config) -> Config:
        """Return the table of the image tower, with keys of the whole model that concern it."""
        model, tower = _tables(config)
        if tower is None:
            return transformers_clip.own_config(config)
        return {**tower, **{key: model[key] for key in MODEL if key in model}}

    def config_table(self, config: Config) -> ConfigTable | None:
        _, tower = _tables(config)
        return transformers_clip.config_table(config) if tower is None else TOWER

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what an `open_clip_config.json` states, or else the config of transformers."""
        _, tower = _tables(config)
        if tower is None:
            return transformers_clip.stated(config)
        table = {**USUAL, **self.own_config(config)}
        found = TOWER.read(table)
        width, ratio, each = (table[key] for key in ("width", "mlp_ratio", "head_width"))
        for key, value in (("width", width), ("head_width", each), ("mlp_ratio", ratio)):
            good = type(value) in (int, float) and value > 0
            formats.check_config(good, key, "a positive number", value, CONFIG)
        block = {"activation": _activation(table), "norm_eps": _epsilon(table)}
        sizes = {"mlp_dim": int(width * ratio), "num_heads": int(width // each)}
        return formats.merged(found, sizes, {"block": block, "pool": _pool(table)})

    def head(self, config: Config) -> dict[str, Any]:
        model, tower = _tables(config)
        if tower is None:
            return transformers_clip.head(config)
        return {"num_classes": formats.count_of("embed_dim", model.get("embed_dim"), CONFIG)}

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return the heads that an `open_clip_config.json` states as the width of one head."""
        _, tower = _tables(config)
        if tower is None:
            return transformers_clip.num_heads(config, tensors)
        width, each = tower.get("width", 768), tower.get("head_width", 64)
        whole = type(width) is type(each) is int and 0 < each <= width
        return width // each if whole else None


class TimmTowerFormat(Format):
    """A tower of timm in a model of open_clip, with the projection of open_clip after it."""

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return the tensors under the keys of the model; a projection has a bias, often zero."""
        found = super().to_model(tensors)
        for layer in ("head", "head.fc"):
            weight = found.get(f"{layer}.weight")
            if weight is not None and weight.dim() == 2:
                found.setdefault(f"{layer}.bias", weight.new_zeros(len(weight)))
        return found


def _tables(config: Config) -> tuple[Config, Config | None]:
    """Return the tables of the model and of its image tower in an `open_clip_config.json`."""
    model = config.get("model_cfg", config)
    tower = model.get("vision_cfg") if isinstance(model, Mapping) else None
    return (model, tower) if isinstance(tower, Mapping) else ({}, None)


def _activation(table: Config) -> str:
    quick, act = table.get("quick_gelu", False), table.get("act_kwargs") or {}
    formats.check_config(isinstance(quick, bool), "quick_gelu", "true or false", quick, CONFIG)
    formats.check_config(isinstance(act, Mapping), "act_kwargs", "a table", act, CONFIG)
    gelu = "gelu_tanh" if act.get("approximate", "none") == "tanh" else "gelu"
    return "quick_gelu" if quick else gelu


def _epsilon(table: Config) -> float:
    norm = table.get("norm_kwargs") or {}
    formats.check_config(isinstance(norm, Mapping), "norm_kwargs", "a table", norm, CONFIG)
    epsilon = norm.get("eps", 1e-5)
    good = isinstance(epsilon, int | float) and 0 < epsilon < 1
    formats.check_config(good, "norm_kwargs.eps", "between 0 and 1", epsilon, CONFIG)
    return float(epsilon)


def _pool(tower: Config) -> str:
    kind = "avg" if tower.get("global_average_pool") is True else tower.get("pool_type", "tok")
    known = isinstance(kind, str) and kind in POOLS
    formats.check_config(known, "pool_type", f"one of {', '.join(POOLS)}", kind, CONFIG)
    late = tower.get("final_ln_after_pool", False)
    expected = "false if pool_type is 'avg', because the model averages normed patches"
    formats.check_config(
        kind != "avg" or late is False, "final_ln_after_pool", expected, late, CONFIG
    )
    return POOLS[kind]


def _layer_scale(value: Any) -> dict[str, Any]:
    return {} if value is None else formats.positive("layer_scale")(value)


MODEL = ("quick_gelu",)
USUAL = {"width": 768, "layers": 12, "head_width": 64, "mlp_ratio": 4.0, "patch_size": 16}
USUAL |= {"image_size": 224, "no_ln_pre": False}
TOWER = ConfigTable(
    applied={
        "width": formats.whole("embed_dim"),
        "layers": formats.whole("depth"),
        "image_size": formats.size("image_size"),
        "patch_size": formats.size("patch_size"),
        "ls_init_value": replace(formats.positive("layer_scale"), read=_layer_scale),
        "no_ln_pre": formats.choice({True: False, False: True}, "pre_norm"),
        **dict.fromkeys(("head_width", "mlp_ratio", "quick_gelu", "act_kwargs"), formats.read_with),
        **dict.fromkeys(("norm_kwargs", "pool_type", "global_average_pool"), formats.read_with),
        "final_ln_after_pool": formats.read_with,
    },
    fixed={
        **dict.fromkeys(("attentional_pool", "input_patchnorm", "scaled_cosine_attn"), (False,)),
        **dict.fromkeys(("scale_heads", "scale_attn_inner", "scale_attn", "scale_fc"), (False,)),
        **dict.fromkeys(("qk_norm", "inner_norm"), (False, None)),
        **dict.fromkeys(("block_type", "timm_model_name", "attn_type"), (None,)),
        "pos_embed_type": ("learnable",),
    },
    irrelevant={
        "acts in training only": ("patch_dropout", "timm_drop", "timm_drop_path"),
        "is of attentional_pool, or of towers of timm": (
            *("attn_pooler_queries", "attn_pooler_heads", "output_tokens"),
            *("timm_pool", "timm_proj", "timm_proj_bias", "timm_model_pretrained"),
        ),
    },
    network={"patch_embed": {"name": "conv", "bias": False}},
    file=CONFIG,
)
open_clip = OpenClipFormat(
    "clip/open_clip",
    configs={"open_clip": TOWER},
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
    beside=("transformer.",),  # of the text tower
    ignored=(
        *("transformer.*", "token_embedding.*", "ln_final.*", "text_projection*", "text.*"),
        *("positional_embedding", "attn_mask", "logit_*", *OPENAI),
    ),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-5}},
    defaults_with={key: {"block": {"activation": "quick_gelu"}} for key in OPENAI},
    network={"pre_norm": (True,), "patch_embed.bias": (False,), "pool": ("class", "mean")},
)
open_clip_timm = TimmTowerFormat(
    "clip/open_clip_timm",
    keymap=KeyMap(
        {
            "visual.head.proj.": "head.",
            "visual.head.mlp.fc1.": "head.pre_logits.",
            "visual.head.mlp.fc2.": "head.fc.",
        },
        prefixes=("visual.trunk.",),
        bare=("visual.head.",),
        others=True,
    ),
    marks=(
        "blocks.0.attn.qkv.weight",
        ("visual.head.proj.weight", "visual.head.mlp.fc2.weight"),
    ),
    excludes=timm_vit.excludes,
    ignored=open_clip.ignored,
    network=timm_vit.network,
)
