"""Reads the patch embedder and the positions of a timm model."""

from __future__ import annotations

from typing import Any

import torch
from timm.layers.hybrid_embed import HybridEmbed
from timm.layers.patch_embed import PatchEmbed
from timm.layers.pos_embed_sincos import (
    RotaryEmbeddingCat,
    RotaryEmbeddingDinoV3,
    RotaryEmbeddingMixed,
)
from timm.models.resnetv2 import ResNetV2
from timm.models.vision_transformer_hybrid import _resnetv2
from torch import nn

from vitzoo_timm.look import PLAIN, Look, NotNative, name_of, present
from vitzoo_timm.settings import norm_of

STEMS = {(): "stem", (3, 4, 9): "resnet50", (3, 4, 6, 3): "resnet50_s32", (2, 2, 2, 2): "resnet26"}
INDEXING = {"ij": "yx", "xy": "xy"}


def read_patch_embed(embed: nn.Module, width: int, in_chans: int) -> dict[str, Any]:
    """Return sizes and patch embedder as keys of a spec."""
    look = Look(embed, "patch_embed", PatchEmbed, HybridEmbed)
    size, patch = look.take("img_size"), look.take("patch_size")
    stride, kernel = (1, 1), in_chans
    options: dict[str, Any] = {}
    name: str = "conv"
    if isinstance(embed, HybridEmbed):
        name, stride = _read_resnet(look, in_chans)
        kernel = look.take("feature_dim")
    elif present(norm := look.take("norm")):
        options["norm"], options["norm_eps"] = norm_of(norm, "patch_embed.norm", width)
    bias = _read_projection(look.take("proj"), (kernel, width), patch)
    if not bias and name != "conv":
        raise NotNative("vitzoo has no part for patch_embed.proj without a bias over a ResNet")
    patch = (patch[0] * stride[0], patch[1] * stride[1])
    if size[0] % patch[0] or size[1] % patch[1]:
        if name != "conv":
            raise NotNative(
                f"vitzoo has no part for images of {size[0]}x{size[1]} px under a stem of "
                f"{patch[0]}x{patch[1]} px"
            )
        name = "siglip/cropped"
    look.ignore("grid_size", "num_patches", "flatten", "output_fmt", "strict_img_size", "in_chans")
    look.ignore("dynamic_img_pad", "feature_size", "feature_ratio", "feature_dim")
    look.done()
    options |= {} if bias else {"bias": False}
    part = {"name": name, **options} if options else name
    sizes = {"image_size": plain(size), "patch_size": plain(patch), "in_chans": in_chans}
    return {**sizes, "patch_embed": part}


def plain(size: tuple[int, ...]) -> int | list[int]:
    """Return a size for a spec: one number if both sides are equal."""
    return size[0] if size[0] == size[1] else list(size)


def _read_projection(proj: nn.Module, shape: tuple[int, int], patch: tuple[int, int]) -> bool:
    """Check the projection of patches and return whether it has a bias."""
    look = Look(proj, "patch_embed.proj", nn.Conv2d)
    for name, value in {
        "in_channels": shape[0],
        "out_channels": shape[1],
        "kernel_size": tuple(patch),
        "stride": tuple(patch),
        "padding": (0, 0),
        "dilation": (1, 1),
        "groups": 1,
    }.items():
        look.expect(name, value)
    look.take("weight")
    look.ignore("transposed", "output_padding", "padding_mode", "_reversed_padding_repeated_twice")
    bias = look.take("bias") is not None
    look.done()
    return bias


def _read_resnet(look: Look, in_chans: int) -> tuple[str, tuple[int, int]]:
    """Return the part for a ResNet under the patches, and its stride in px."""
    backbone = look.take("backbone")
    layers: tuple[int, ...] = ()
    if isinstance(backbone, ResNetV2):
        layers = tuple(len(stage.blocks) for stage in backbone.stages)  # type: ignore[arg-type]  # a list
    elif type(backbone) is not nn.Sequential:
        raise NotNative(f"vitzoo has no part for patch_embed.backbone: {name_of(backbone)}")
    if layers not in STEMS:
        raise NotNative(f"vitzoo has no part for patch_embed.backbone with stages of {layers}")
    with torch.device("meta"):
        known = _resnetv2(layers, in_chans=in_chans)  # type: ignore[no-untyped-call]  # timm's own
    if problem := difference(backbone, known):
        raise NotNative(f"vitzoo has no part for patch_embed.backbone: {problem}")
    side = 4 * 2 ** max(len(layers) - 1, 0)
    return f"hybrid/resnet_{STEMS[layers]}".replace("resnet_resnet", "resnet"), (side, side)


def difference(module: nn.Module, known: nn.Module) -> str:
    """Return the first difference between two modules except weights, empty if there is none."""
    ours, theirs = dict(module.named_modules()), dict(known.named_modules())
    if ours.keys() != theirs.keys():
        return f"{sorted(ours.keys() ^ theirs.keys())[:3]} are in one of the two only"
    for name, part in ours.items():
        other = theirs[name]
        if type(part) is not type(other):
            return f"{name} is {name_of(part)}, not {name_of(other)}"
        settings, wanted = (
            {key: v for key, v in vars(m).items() if key not in PLAIN and key != "feature_info"}
            for m in (part, other)
        )
        if settings != wanted:
            keys = [k for k in {**settings, **wanted} if settings.get(k) != wanted.get(k)]
            return f"{name}.{keys[0]} = {settings.get(keys[0])!r}"
    return ""


def read_table(table: Any, *, patches: int, prefix: int, without_prefix: bool) -> Any:
    """Return the part for a learned table of positions, or for none."""
    if table is None:
        return "none"
    if table.shape[0] != 1 or table.shape[1] != patches + (0 if without_prefix else prefix):
        raise NotNative(f"vitzoo has no part for pos_embed of shape {tuple(table.shape)}")
    if without_prefix and prefix:
        return {"name": "learned", "prefix": False}
    return "learned"


def read_rope(rope: nn.Module, half: bool, grid: tuple[int, int], head_dim: int) -> dict[str, Any]:
    """Return the part for rotary positions.

    Args:
        rope: module of timm.
        half: whether the attention rotates halves.
        grid: patches, (h, w).
        head_dim: width of a head.
    """
    look = Look(rope, "rope", *ROPES)
    for name in ("shift_coords", "jitter_coords", "rescale_coords", "aug_active"):
        look.ignore(name)  # in training only
    options = ROPES[type(rope)](look, grid, head_dim)
    look.done()
    if options.pop("half") != half:
        raise NotNative("vitzoo has no part for rope whose angles and attention differ in layout")
    if isinstance(rope, RotaryEmbeddingMixed):
        return {"name": "rope_mixed", **options}
    return {"name": "rope", "layout": "half" if half else "interleaved", **options}


def _read_cat(look: Look, grid: tuple[int, int], head_dim: int) -> dict[str, Any]:
    look.expect("dim", head_dim)
    look.expect("in_pixels", False)
    look.expect("grid_type", "index")
    _expect_grid(look, grid)
    look.ignore("max_res", "linear_bands", "normalize_coords", "_use_cached_embed")
    look.ignore("bands", "pos_embed")
    options = {
        "half": look.take("rotate_half"),
        "coordinates": "index",
        "temperature": float(look.take("temperature")),
    }
    reference, offset = look.take("ref_feat_shape"), look.take("grid_offset")
    indexing = INDEXING[look.expect("grid_indexing", *INDEXING)]
    options |= {"reference_grid": list(reference)} if reference else {}
    options |= {"offset": float(offset)} if offset else {}
    return options | ({"indexing": indexing} if indexing != "yx" else {})


def _read_dinov3(look: Look, grid: tuple[int, int], head_dim: int) -> dict[str, Any]:
    look.expect("dim", head_dim)
    look.expect("min_period", None)
    look.expect("max_period", None)
    look.expect("normalize_coords", "separate")
    look.expect("grid_offset", 0.0)
    look.expect("grid_indexing", "ij")
    _expect_grid(look, grid)
    look.ignore("periods", "pos_embed_cached")
    return {"half": look.take("rotate_half"), "temperature": look.take("temperature")}


def _read_mixed(look: Look, grid: tuple[int, int], head_dim: int) -> dict[str, Any]:
    look.ignore("depth", "temperature", "t_x", "t_y")
    look.expect("dim", head_dim * look.take("num_heads"))
    look.expect("grid_indexing", "xy")
    _expect_grid(look, grid)
    look.take("freqs")
    return {"half": False}


def _expect_grid(look: Look, grid: tuple[int, int]) -> None:
    shape = look.take("feat_shape")
    if shape is not None and tuple(shape) != grid:
        raise NotNative(f"vitzoo has no part for rope on a grid of {tuple(shape)}, not {grid}")


ROPES = {
    RotaryEmbeddingCat: _read_cat,
    RotaryEmbeddingDinoV3: _read_dinov3,
    RotaryEmbeddingMixed: _read_mixed,
}
