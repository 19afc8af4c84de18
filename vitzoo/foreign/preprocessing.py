"""Preprocessing in the configs of transformers, timm and open_clip."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vitzoo.errors import InvalidOption
from vitzoo.schema.reader import MAX_PX, describe
from vitzoo.schema.rows import Preprocessing

NAFLEX = "max_num_patches"  # key of SigLIP 2 NaFlex
STEPS = (  # that are read, or that do not act on RGB images
    *("do_resize", "do_rescale", "do_normalize", "do_center_crop"),
    *("do_convert_rgb", "do_reduce_labels"),
)
FURTHER = ("keep_aspect_ratio", "crop_to_patches")  # besides all other names in do_
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # as Pillow numbers them


def of_timm(config: Mapping[str, Any]) -> Preprocessing | None:
    """Return the preprocessing in the `pretrained_cfg` of timm's `config.json`, if it has one.

    Raises:
        InvalidOption: a value is not possible here.
    """
    table = config.get("pretrained_cfg")
    if not isinstance(table, Mapping) or "mean" not in table:
        return None
    crop_pct = table.get("crop_pct", 0.875)  # timm's value for a missing key
    return _read(table, crop_pct, table.get("crop_mode") or "center")


def of_open_clip(config: Mapping[str, Any]) -> Preprocessing | None:
    """Return the preprocessing in an `open_clip_config.json`, if it has one.

    Raises:
        InvalidOption: a value is not possible here.
    """
    table = config.get("preprocess_cfg")
    if not isinstance(table, Mapping) or "mean" not in table:
        return None
    modes = {"shortest": "center", "squash": "squash"}
    mode = table.get("resize_mode", "shortest")
    if not isinstance(mode, str) or mode not in modes:
        raise InvalidOption(f"resize_mode must be shortest or squash, got {describe(mode)}")
    return _read(table, 1.0, modes[mode])


def _read(table: Mapping[str, Any], crop_pct: float, crop_mode: str) -> Preprocessing:
    return Preprocessing(
        mean=table["mean"],
        std=table.get("std"),  # type: ignore[arg-type]  # checked by it
        interpolation=table.get("interpolation", "bicubic"),
        crop_pct=crop_pct,
        crop_mode=crop_mode,
    )


def read_processor(table: Mapping[str, Any]) -> Preprocessing:
    """Return the preprocessing of an image processor of transformers.

    Raises:
        InvalidOption: it does more than resize, crop, scale to [0, 1] and normalise.
    """
    for step in ("do_resize", "do_rescale"):
        if table.get(step, True) is not True:
            raise InvalidOption(f"{step} is {describe(table[step])}")
    for step, value in table.items():
        further = step in FURTHER or (step.startswith("do_") and step not in STEPS)
        if further and value:
            raise InvalidOption(f"{step} is {describe(value)}, a step that vitzoo lacks")
    factor = table.get("rescale_factor", 1 / 255)
    if not isinstance(factor, float) or not math.isclose(factor, 1 / 255, rel_tol=1e-3):
        raise InvalidOption(f"rescale_factor is {describe(factor)}")
    resample = table.get("resample", 2)
    if type(resample) is not int or resample not in RESAMPLE:
        raise InvalidOption(f"resample must be 0, 1, 2 or 3, got {describe(resample)}")
    mean, std = table.get("image_mean"), table.get("image_std")
    if table.get("do_normalize", True) is False:
        mean, std = [0.0] * 3, [1.0] * 3
    crop_mode, crop_pct = _crop(table)
    return Preprocessing(
        mean=mean,  # type: ignore[arg-type]  # checked by it
        std=std,  # type: ignore[arg-type]
        interpolation=RESAMPLE[resample],
        crop_pct=crop_pct,
        crop_mode=crop_mode,
    )


def _crop(table: Mapping[str, Any]) -> tuple[str, float]:
    """Return crop mode and crop share of the resized image."""
    if NAFLEX in table:  # it has no size: the grid depends on the image
        return "squash", 1.0
    size = table.get("size")
    edge = size.get("shortest_edge") if isinstance(size, dict) else None
    mode = "squash" if edge is None else "center"
    if table.get("crop_pct") is not None:
        return mode, table["crop_pct"]
    if not table.get("do_center_crop", False):
        _sides(size, edge)
        return mode, 1.0
    (height, width), (h, w) = _sides(size, edge), _sides(table.get("crop_size"), None)
    if height * w != width * h or h > height:
        raise InvalidOption(f"a crop of {h}x{w} from {height}x{width} px keeps no single share")
    share = h / height
    return mode, share if math.floor(h / share) == height else math.nextafter(share, 0)


def _sides(size: object, edge: object) -> tuple[int, int]:
    """Return (height, width) from a table, one number or the shorter side."""
    sides: tuple[object, object] = (size, size) if edge is None else (edge, edge)
    if edge is None and isinstance(size, dict):
        sides = (size.get("height"), size.get("width"))
    h, w = (side if type(side) is int and 0 < side <= MAX_PX else 0 for side in sides)
    if not h or not w:
        raise InvalidOption(f"a size must be height and width in px, got {describe(size)}")
    return h, w
