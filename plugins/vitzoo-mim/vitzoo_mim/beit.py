"""The names of BEiT: timm's, Microsoft's and transformers'.

The model stacks the positions of all blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from vitzoo import formats
from vitzoo.errors import CheckpointError
from vitzoo.formats import Config, Format, KeyMap, Keys, Tensors, TransformersFormat, without
from vitzoo_mim.relative import RelativePositions

TABLE = "relative_position_bias_table"
INDEX = "relative_position_index"  # a buffer of older files, which follows from the grid
SHARED = f"rel_pos_bias.{TABLE}"
OWN = re.compile(rf"blocks\.([0-9]+)\.attn\.{TABLE}")
SHARED_TRANSFORMERS = f"encoder.relative_position_bias.{TABLE}"
RELATIVE = "attention.attention.relative_position_bias."
OWN_TRANSFORMERS = f"{RELATIVE}{TABLE}"
NORMED_MEAN = {"name": "mean", "norm_first": False}


class BeitFormat(Format):
    """A format of BEiT, whose key map names the tables as timm does."""

    def to_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, and stack the tables; tables that are not alike stay as they are."""
        for name, tensor in tensors.items():
            if name.endswith(INDEX) and not tensor.is_meta and not _is_usual(tensor):
                raise CheckpointError(
                    f"{name!a} {tuple(tensor.shape)} is not the index of a square grid with a "
                    "class token, by which the model reads the tables"
                )
        found = super().to_model(tensors)
        names = {int(match[1]): name for name in found if (match := OWN.fullmatch(name))}
        tables = [name for _, name in sorted(names.items())] + [SHARED] * (SHARED in found)
        alike = len({(found[name].shape, found[name].dtype) for name in tables}) == 1
        whole = sorted(names) == list(range(len(tables))) or tables == [SHARED]
        if not (alike and whole) or found[tables[0]].dim() != 2 or "pos_embed" in found:
            return found
        if tables != [SHARED] and not found[tables[0]].numel():
            return found
        return without(found, tables) | {"pos_embed": torch.stack([found[n] for n in tables])}

    def from_model(self, tensors: Tensors) -> dict[str, Tensor]:
        """Rename, split and unstack; positions must be those of one block or of all blocks."""
        if left := [name for name in tensors if name.endswith((TABLE, INDEX))]:
            raise formats.unheld(self.name, left)
        table = tensors.get("pos_embed")
        if table is None:
            return super().from_model(tensors)
        depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
        if table.dim() != 3 or (depth and table.shape[0] not in (1, depth)):
            raise CheckpointError(
                f"the checkpoint format {self.name} needs relative positions of shape (1 or "
                f"{depth}, distances, heads), got pos_embed {tuple(table.shape)}; timm, the "
                "model's own format, has a place for other positions"
            )
        names = [f"blocks.{layer}.attn.{TABLE}" for layer in range(len(table))]
        names = [SHARED] if len(table) == 1 and depth != 1 else names
        rest = without(tensors, ["pos_embed"])
        return super().from_model(rest | dict(zip(names, table, strict=True)))

    def num_heads(self, config: Config, tensors: Tensors) -> int | None:
        """Return what the config states, or the width of a table; both must agree."""
        tables = [t for name, t in tensors.items() if name.endswith(TABLE) and t.dim() == 2]
        found = tables[0].shape[1] if tables and tables[0].shape[1] else None
        stated = super().num_heads(config, tensors)
        same = not stated or found in (None, stated)
        formats.check_config(same, "num_attention_heads", f"{found}, as in the tables", stated)
        return stated or found


class TransformersBeitFormat(BeitFormat, TransformersFormat):
    """transformers' BEiT and data2vec-vision, with or without a head."""

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states; the position embedding depends on two keys."""
        size = config.get("image_size")
        square = not isinstance(size, list) or len({repr(side) for side in size}) < 2
        expected = "square (transformers swaps height and width of other tables)"
        formats.check_config(square, "image_size", expected, size)
        found, table = super().stated(config), self.own_config(config)
        own, shared = (table.get(key) for key in RELATIVE_KEYS)
        if own is None and shared is None:
            return found
        one = bool(own) != bool(shared)
        expected = "one true and one false"
        formats.check_config(one, ", ".join(RELATIVE_KEYS), expected, (own, shared))
        return formats.merged(found, {"pos_embed": {"shared": bool(shared)}})

    def spec_in(self, config: Config) -> dict[str, Any]:
        """Return the network of a config; the class that wrote it decides on the pool."""
        found = super().spec_in(config)
        if any("MaskedImageModeling" in name for name in formats.architectures(config)):
            return found | {"pool": "mean"}
        pooled = found["num_classes"] and self.own_config(config)["use_mean_pooling"]
        return found | {"pool": NORMED_MEAN if pooled else "class"}

    def overrides_in(self, keys: Keys, read: Callable[[str], Tensor]) -> dict[str, Any]:
        """Return that there is no final norm if there is none, as in a mean without pooler."""
        normed = self.plain(keys) & {"layernorm.weight", "pooler.layernorm.weight"}
        return {} if normed else {"final_norm": False, "pool": "mean"}


def _is_usual(index: Tensor) -> bool:
    side = isqrt(max(len(index) - 1, 0)) if index.dim() == 2 else 0
    if not side or index.shape != (side**2 + 1, side**2 + 1):
        return False
    part = RelativePositions(grid_size=(side, side), num_prefix_tokens=1, num_heads=1, depth=1)
    return torch.equal(index.long(), part.index)


RELATIVE_KEYS = ("use_relative_position_bias", "use_shared_relative_position_bias")


def _layer_scale(value: Any) -> dict[str, Any]:
    """Return LayerScale; transformers has none where its initial value is 0."""
    good = type(value) in (int, float) and 0 <= value < float("inf")
    formats.expect(good, "a number from 0")
    return {"block": {"layer_scale": float(value)}} if value else {}


LAYER_SCALE = replace(formats.positive("layer_scale"), read=_layer_scale)
CONFIG = formats.WITH_MLP.but(
    {
        "layer_scale_init_value": (LAYER_SCALE, 0.1),
        "use_mean_pooling": (formats.flag(), True),
        **dict.fromkeys(RELATIVE_KEYS, (formats.read_with, False)),
    },
    fixed={"use_absolute_position_embeddings": (False,)},
    irrelevant={
        "the queries and values always have biases": ("qkv_bias",),
        "is of segmentation": (
            *("pool_scales", "use_auxiliary_head", "auxiliary_loss_weight", "auxiliary_channels"),
            *("auxiliary_num_convs", "auxiliary_concat_input", "semantic_loss_ignore_index"),
            *("add_fpn", "segmentation_indices"),
        ),
    },
    network={
        "pos_embed": {"name": "mim/relative", "resample": "bilinear"},
        "block": {"qkv_bias": "qv"},
    },
)
NETWORK = {
    **formats.free("block.layer_scale"),
    "pos_embed": ("mim/relative",),
    "head": ("linear", "none"),
}
TABLES = {
    f"blocks.0.attn.{TABLE}": {"pos_embed": {"shared": False}},
    SHARED: {"pos_embed": {"shared": True}},
}
timm_beit = BeitFormat(
    "beit/timm",
    keymap=KeyMap(layer={"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma"}, others=True),
    marks=(*formats.timm_vit.marks, (f"blocks.0.attn.{TABLE}", SHARED)),
    excludes=("mask_token",),  # of Microsoft's files
    ignored=(f"*{INDEX}",),
    defaults_with=TABLES,
    network={
        **NETWORK,
        **formats.free("block.mlp_norm"),
        "block.qkv_bias": (False, "qv"),
        "block.mlp": ("mlp", "swiglu"),
        "pool": ("class", "mean"),
    },
)
microsoft = BeitFormat(  # in pre-training, with timm's names beside a mask token
    "beit/microsoft",
    keymap=timm_beit.keymap,
    marks=(*timm_beit.marks, "mask_token"),
    ignored=(*timm_beit.ignored, "mask_token", "lm_head.*"),
    mask_token=("mask_token", 3),
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-6},
        "pos_embed": {"resample": "geometric_cubic"},  # its `run_class_finetuning.py`
    },
    defaults_with={**TABLES, "lm_head.weight": {"pool": "mean"}},  # before fine-tuning
    authors=True,
    network={**NETWORK, "block.qkv_bias": (False, "qv"), "pool": ("class", "mean")},
)
transformers_beit = TransformersBeitFormat(
    "beit/transformers",
    configs={"beit": CONFIG, "data2vec-vision": CONFIG},
    keymap=KeyMap(
        {
            **formats.TRANSFORMERS_STEM,
            SHARED_TRANSFORMERS: SHARED,
            "pooler.layernorm.": "fc_norm.",
            "classifier.": "head.",
        },
        {
            **formats.TRANSFORMERS_LAYER,
            tuple(f"{key}weight" for key in formats.TRANSFORMERS_QKV): "attn.qkv.weight",
            "attention.attention.query.bias": "attn.q_bias",
            "attention.attention.value.bias": "attn.v_bias",
            OWN_TRANSFORMERS: f"attn.{TABLE}",
            "lambda_1": "ls1.gamma",
            "lambda_2": "ls2.gamma",
        },
        "encoder.layer.{}.",
        aliases={
            "shared_position_bias.": "encoder.relative_position_bias.",
            "layers.{}.relative_position_bias.": f"encoder.layer.{{}}.{RELATIVE}",
            **formats.RELEASE_5,
        },
        prefixes=("beit.", "data2vec_vision."),
        bare=("classifier.",),
    ),
    marks=(
        *formats.transformers_vit.marks,
        (f"encoder.layer.0.{OWN_TRANSFORMERS}", SHARED_TRANSFORMERS),
    ),
    ignored=("lm_head.*", "embeddings.mask_token", f"*{INDEX}"),
    defaults={
        "block": {"activation": "gelu", "norm_eps": 1e-12},
        "pos_embed": {"resample": "bilinear"},
    },
    defaults_with={
        f"encoder.layer.0.{OWN_TRANSFORMERS}": {"pos_embed": {"shared": False}},
        SHARED_TRANSFORMERS: {"pos_embed": {"shared": True}},
        "embeddings.cls_token": {"pool": "class"},
        "lm_head.weight": {"pool": "mean"},  # of masked image modelling, before fine-tuning
        "pooler.layernorm.weight": {"pool": NORMED_MEAN},
    },
    network={**NETWORK, "block.qkv_bias": ("qv",), "pool": ("class", NORMED_MEAN)},
)
