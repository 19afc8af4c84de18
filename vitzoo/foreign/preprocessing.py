"""Preprocessing in the configs of timm and open_clip.

`vitzoo.foreign.processors` reads the image processors of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitzoo.errors import InvalidOption
from vitzoo.foreign.processors import CLIP, Unread, sides_of
from vitzoo.schema.preprocessing import OF_TIMM, Preprocessing

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # timm's statistics for missing ones
OF_OPEN_CLIP = ("mean", "std", "interpolation", "resize_mode", "size")


def of_timm(config: Mapping[str, Any]) -> Preprocessing | None:
    """Return the preprocessing in the `pretrained_cfg` of timm's `config.json`, if it has one.

    A missing value is that of timm.

    Raises:
        Unread: a value is not possible here.
    """
    table = config.get("pretrained_cfg")
    if not isinstance(table, Mapping) or not any(table.get(key) is not None for key in OF_TIMM):
        return None
    shape = table.get("input_size")
    channels = shape[0] if isinstance(shape, list | tuple) and shape else 3
    mode = table.get("crop_mode") or "center"
    if mode not in ("center", "squash"):
        raise Unread("crop_mode", mode, "expected center or squash")
    share = table.get("crop_pct") or 0.875
    return _read(table, IMAGENET, crop_pct=share, crop_mode=mode, channels=channels)


def of_open_clip(config: Mapping[str, Any]) -> Preprocessing | None:
    """Return the preprocessing in an `open_clip_config.json`, if it has one.

    A missing value is that of open_clip.

    Raises:
        Unread: a value is not possible here.
    """
    table = config.get("preprocess_cfg")
    if not isinstance(table, Mapping) or not any(table.get(key) for key in OF_OPEN_CLIP):
        return None
    modes = {"shortest": "center", "squash": "squash"}
    mode = table.get("resize_mode") or "shortest"
    if not isinstance(mode, str) or mode not in modes:
        raise Unread("resize_mode", mode, "expected shortest or squash")
    row = _read(table, CLIP, crop_pct=1.0, crop_mode=modes[mode], channels=3)
    if table.get("size") is None:
        return row
    sides = sides_of("size", table["size"], square=True)
    return row.with_values(image_size=(sides.get("height", 0), sides.get("width", 0)))


def _read(
    table: Mapping[str, Any],
    usual: tuple[Sequence[float], Sequence[float]],
    *,
    crop_pct: float,
    crop_mode: str,
    channels: int,
) -> Preprocessing:
    values: dict[str, Any] = {
        "mean": _statistic(table.get("mean"), usual[0], channels),
        "std": _statistic(table.get("std"), usual[1], channels),
        "interpolation": table.get("interpolation") or "bicubic",
        "crop_pct": crop_pct,
        "crop_mode": crop_mode,
    }
    try:
        return Preprocessing(**values)
    except InvalidOption as error:
        reason = str(error).removeprefix("Preprocessing(): ")
        key = reason.split()[0]
        raise Unread(key, table.get(key), reason) from error


def _statistic(value: Any, usual: Sequence[float], channels: int) -> Any:
    """Return mean or std: one number counts for all channels, a missing one is the usual."""
    if value is None or value == []:
        return tuple(usual)
    numbers = [value] if type(value) in (int, float) else value
    one = isinstance(numbers, list | tuple) and len(numbers) == 1 and type(channels) is int
    return tuple(numbers) * channels if one else numbers
