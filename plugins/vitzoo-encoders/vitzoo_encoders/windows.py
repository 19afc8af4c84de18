"""The names of SAM's and ViTDet's image encoders, which have window attention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vitzoo import Spec, formats
from vitzoo.formats import Config, Format, KeyMap, TransformersFormat, same

INDICES = "a list of indices of blocks, from 0"
TABLES = ("pos_embed", "position_embeddings")
BOTH = (False, True)


class WithGrid:
    """A format whose table of positions has the axes of a square grid: (1, h, w, d)."""

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        if key not in TABLES:
            return tensor
        return tensor.flatten(1, 2) if tensor.dim() == 4 else None

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        if key not in TABLES:
            return tensor
        side = math.isqrt(tensor.shape[1]) if tensor.dim() == 3 else 0
        if not side or side**2 != tensor.shape[1]:
            return None
        return tensor.reshape(-1, side, side, tensor.shape[2])


class WithClassRow:
    """A format whose table has the row of a class token first, which the network does not read."""

    def read_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        if not key.endswith(TABLES):
            return tensor
        return tensor[:, 1:] if tensor.dim() == 3 and tensor.shape[1] > 1 else None

    def write_axes(self, key: str, tensor: Tensor) -> Tensor | None:
        if not key.endswith(TABLES):
            return tensor
        if tensor.dim() != 3:
            return None
        return torch.cat((torch.zeros_like(tensor[:, :1]), tensor), dim=1)


class SamFormat(WithGrid, TransformersFormat):
    """transformers' image encoder of SAM, alone or in the whole model."""

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states; windows and positions have several keys each."""
        found, table = super().stated(config), {**SAM.defaults, **self.own_config(config)}
        if table.get("mlp_dim") is not None:
            found["mlp_dim"] = formats.count_of("mlp_dim", table["mlp_dim"])
        everywhere = _indices(table, "global_attn_indexes")
        inside = [i for i in _layers(table) if i not in everywhere]
        changes = _windows(table, inside), _positions(table, "use_rel_pos", "use_abs_pos")
        return formats.merged(found, *changes)


class VitDetFormat(WithClassRow, TransformersFormat):
    """transformers' ViTDet."""

    def stated(self, config: Config) -> dict[str, Any]:
        """Return what a config states; windows and positions have several keys each."""
        found, table = super().stated(config), {**VITDET.defaults, **self.own_config(config)}
        key = "residual_block_indices"
        expected = "empty (vitzoo has no convolutions between blocks)"
        formats.check_config(not _indices(table, key), key, expected, table[key])
        key = "pretrain_image_size"
        found.pop(key, None)
        rows, columns = _grid(table, key)
        side = math.isqrt(rows * columns)
        expected = "a size with a square number of patches"
        formats.check_config(side**2 == rows * columns, key, expected, table[key])
        windows = _indices(table, "window_block_indices")
        inside = [i for i in _layers(table) if i in windows]
        names = "use_relative_position_embeddings", "use_absolute_position_embeddings"
        return formats.merged(
            found, _windows(table, inside), _positions(table, *names, absolute_grid=side)
        )


class TimmSamFormat(WithGrid, Format):
    """timm's encoder of SAM, whose blocks have norms of epsilon 1e-5."""


class Detectron2Format(WithClassRow, Format):
    """The ViT of detectron2's ViTDet."""


def _indices(table: Config, key: str) -> set[int]:
    found = table[key]
    good = isinstance(found, list | tuple) and all(type(i) is int for i in found)
    formats.check_config(good, key, INDICES, found)
    return set(found)


def _layers(table: Config) -> range:
    return range(min(table["num_hidden_layers"], 1024))  # a spec with more is refused


def _windows(table: Config, inside: list[int]) -> dict[str, Any]:
    """Return the window, and the blocks without one."""
    window = table["window_size"]
    good = type(window) is int and 0 <= window <= 512
    formats.check_config(good, "window_size", "a whole number of patches, 0 to 512", window)
    if not window or not inside:
        return {"block": {"window": 0}}
    blocks = [i for i in _layers(table) if i not in inside]
    return {"block": {"window": window, "global_blocks": blocks}}


def _grid(table: Config, key: str) -> tuple[int, int]:
    """Return the (h, w) patches of a size of images that a config states."""
    values = (formats.size(name)(table[name])[name] for name in (key, "patch_size"))
    image, patch = ([one, one] if isinstance(one, int) else one for one in values)
    return image[0] // patch[0], image[1] // patch[1]


def _positions(
    table: Config, relative: str, absolute: str, absolute_grid: int = 0
) -> dict[str, Any]:
    """Return the position embedding that two flags of a config state."""
    for key in (relative, absolute):
        formats.check_config(type(table[key]) is bool, key, "true or false", table[key])
    both: dict[str, Any] = {"resample": "bicubic"} if absolute_grid else {}
    if table[relative]:
        own = {"absolute_grid": absolute_grid} if absolute_grid and table[absolute] else {}
        grid = list(_grid(table, "image_size"))
        part = {"name": "decomposed", "reference_grid": grid, "absolute": table[absolute]}
        return {"pos_embed": part | both | own}
    if not table[absolute]:
        return {"pos_embed": "none"}
    own = {"reference_grid": absolute_grid} if absolute_grid else {}
    return {"pos_embed": {"name": "learned"} | both | own}


def _neck(value: Any) -> dict[str, Any]:
    return {"pool": {"name": "sam/neck"} | formats.whole("channels")(value)}


def _of_grid(spec: Spec) -> bool:
    """Whether the tables have the grid of the images, as those of SAM."""
    options, (h, w) = dict(spec.pos_embed.options), spec.patch_size
    grid = spec.image_size[0] // h, spec.image_size[1] // w
    reference = options.get("reference_grid", 14 if spec.pos_embed.name == "decomposed" else grid)
    pair = (reference, reference) if isinstance(reference, int) else reference
    own = spec.pos_embed.name in ("learned", "decomposed", "none")
    return own and pair == grid and options.get("absolute_grid") is None


KEYS = formats.COMMON.but(
    formats.BIAS,
    defaults={"layer_norm_eps": 1e-6},
    network={"class_token": False, "final_norm": False},
)
SAM = KEYS.but(
    {
        "mlp_ratio": (formats.read_with, 4.0),
        "use_abs_pos": (formats.read_with, True),
        "use_rel_pos": (formats.read_with, True),
        "window_size": (formats.read_with, 14),
        "global_attn_indexes": (formats.read_with, [2, 5, 8, 11]),
        "output_channels": (_neck, 256),
    },
    applied={
        "mlp_dim": formats.read_with,
        **{key: formats.size(key, square="one number") for key in ("image_size", "patch_size")},
    },
    irrelevant={"is of the mask decoder": ("num_pos_feats", "scale")},
    defaults={"image_size": 1024},
)
VITDET = KEYS.but(
    {
        "mlp_ratio": (formats.read_with, 4),
        "pretrain_image_size": (formats.size("pretrain_image_size"), 224),
        "window_block_indices": (formats.read_with, []),
        "residual_block_indices": (formats.read_with, []),
        "use_absolute_position_embeddings": (formats.read_with, True),
        "use_relative_position_embeddings": (formats.read_with, False),
        "window_size": (formats.read_with, 0),
    },
    irrelevant={"acts in training only": ("dropout_prob",)},
    network={"pool": "mean"},
)
BLOCK = same("norm1.", "attn.qkv.", "attn.proj.", "norm2.", "mlp.fc1.", "mlp.fc2.")
NETWORK: dict[str, tuple[Any, ...]] = {
    **formats.free("block.window", "block.global_blocks", "pos_embed.reference_grid"),
    "class_token": (False,),
    "block.qkv_bias": BOTH,
    "final_norm": (False,),
}
sam = SamFormat(
    "sam/transformers",
    configs={"sam_vision_model": SAM},
    keymap=KeyMap(
        {
            "pos_embed": "pos_embed",
            "patch_embed.projection.": "patch_embed.proj.",
            **{f"layers.{{}}.attn.rel_pos_{x}": f"positions.rel_pos_{x}.{{}}" for x in "hw"},
            "neck.conv1.weight": "attn_pool.neck.conv1.weight",
            "neck.layer_norm1.": "attn_pool.neck.norm1.",
            "neck.conv2.weight": "attn_pool.neck.conv2.weight",
            "neck.layer_norm2.": "attn_pool.neck.norm2.",
        },
        {
            "layer_norm1.": "norm1.",
            **same("attn.qkv.", "attn.proj."),
            "layer_norm2.": "norm2.",
            "mlp.lin1.": "mlp.fc1.",
            "mlp.lin2.": "mlp.fc2.",
        },
        "layers.{}.",
        prefixes=("vision_encoder.",),
    ),
    marks=("patch_embed.projection.weight", "layers.0.attn.qkv.weight", "neck.conv1.weight"),
    beside=("mask_decoder.", "prompt_encoder."),
    ignored=("mask_decoder.*", "prompt_encoder.*", "shared_image_embedding.*"),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-6}},
    network={**NETWORK, "pool": ("sam/neck",), "pos_embed": (_of_grid,)},
)
timm_sam = TimmSamFormat(
    "sam/timm",
    keymap=KeyMap(
        {
            **same("pos_embed", "patch_embed.proj."),
            **{f"blocks.{{}}.attn.rel_pos_{x}": f"positions.rel_pos_{x}.{{}}" for x in "hw"},
            "neck.0.weight": "attn_pool.neck.conv1.weight",
            "neck.1.": "attn_pool.neck.norm1.",
            "neck.2.weight": "attn_pool.neck.conv2.weight",
            "neck.3.": "attn_pool.neck.norm2.",
            "head.fc.": "head.",
        },
        BLOCK,
    ),
    marks=("blocks.0.attn.rel_pos_h", "neck.0.weight"),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-5}},
    network={
        **NETWORK,
        "pool": ("sam/neck",),
        "pos_embed": (lambda spec: spec.pos_embed.name == "decomposed" and _of_grid(spec),),
    },
)
vitdet = VitDetFormat(
    "vitdet/transformers",
    configs={"vitdet": VITDET},
    keymap=KeyMap(
        {
            "embeddings.position_embeddings": "pos_embed",
            "embeddings.projection.": "patch_embed.proj.",
            **{
                f"encoder.layer.{{}}.attention.rel_pos_{x}": f"positions.rel_pos_{x}.{{}}"
                for x in "hw"
            },
        },
        {
            **same("norm1.", "norm2.", "mlp.fc1.", "mlp.fc2."),
            "attention.qkv.": "attn.qkv.",
            "attention.proj.": "attn.proj.",
        },
        "encoder.layer.{}.",
    ),
    marks=("embeddings.projection.weight", "encoder.layer.0.attention.qkv.weight"),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-6}},
    network={
        **NETWORK,
        "pool": ("mean",),
        "pos_embed": ("learned", "decomposed", "none"),
    },
)
detectron2 = Detectron2Format(
    "vitdet/detectron2",
    keymap=KeyMap(
        {
            **same("pos_embed", "patch_embed.proj."),
            **{f"blocks.{{}}.attn.rel_pos_{x}": f"positions.rel_pos_{x}.{{}}" for x in "hw"},
        },
        BLOCK,
    ),
    marks=("patch_embed.proj.weight", "blocks.0.attn.rel_pos_h"),
    excludes=("neck.*",),
    defaults={"block": {"activation": "gelu", "norm_eps": 1e-6}},
    network={**NETWORK, "pool": ("mean",), "pos_embed": ("decomposed",)},
)
