"""Files beside a weights file: `config.json`, `preprocessor_config.json` and open_clip's config.

A sidecar that cannot be used is never an error. The load report names it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitzoo.errors import InvalidOption, StoreError, printable
from vitzoo.files.access import open_regular
from vitzoo.files.strict_json import strict_json
from vitzoo.schema.reader import MAX_PX, describe
from vitzoo.schema.rows import Preprocessing

PROCESSOR = "preprocessor_config.json"
MAX_PROCESSOR = 64 * 1024
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # as Pillow numbers them


def labels_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the class names in a `config.json`, empty if it has none or only `LABEL_0` and so on.

    Keys must be 0 to k - 1, names must be printable and different.
    """
    table = config.get("id2label")
    if not isinstance(table, dict):
        return ()
    names = [table.get(str(i)) for i in range(len(table))]
    good = all(isinstance(name, str) and name.strip() and name.isprintable() for name in names)
    usual = names == [f"LABEL_{i}" for i in range(len(names))]
    if not good or usual or len(set(names)) < len(names):
        return ()
    return tuple(map(str, names))


def processor_beside(path: Path) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """Read the `preprocessor_config.json` beside a weights file.

    Returns:
        the preprocessing, None if there is none; and for the report, why a file is not used.
    """
    try:
        text = _read(path.with_name(PROCESSOR), MAX_PROCESSOR + 1)
        if text is None:
            return None, ()
        if len(text) > MAX_PROCESSOR:
            raise InvalidOption(f"it has more than {MAX_PROCESSOR} bytes")
        return read_processor(strict_json(text)), ()
    except (StoreError, ValueError) as error:  # InvalidOption is a ValueError
        return None, (f"{PROCESSOR} is not used: {printable(str(error), 200)}",)


def read_processor(table: object) -> Preprocessing:
    """Return the preprocessing of an image processor of transformers.

    Raises:
        InvalidOption: it does more than resize, crop, scale to [0, 1] and normalise.
    """
    if not isinstance(table, dict):
        raise InvalidOption(f"expected a table, got {describe(table)}")
    for step in ("do_resize", "do_rescale"):
        if table.get(step, True) is not True:
            raise InvalidOption(f"{step} is {describe(table[step])}")
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


CONFIGS = ("open_clip_config.json", "config.json")  # the last one counts
MAX_CONFIG = 1024 * 1024


def configs_beside(path: Path) -> Mapping[str, Any]:
    """Return the configs beside a file as one table, empty if none can be read."""
    stated: dict[str, Any] = {}
    for name in CONFIGS:
        try:
            data = json.loads((_read(path.with_name(name), MAX_CONFIG) or b"{}").decode())
        except (StoreError, ValueError, RecursionError):
            continue
        stated |= data if isinstance(data, dict) else {}
    return stated


def _read(path: Path, limit: int) -> bytes | None:
    """Return the first bytes of a file, None if there is no file."""
    fd = open_regular(path, follow=True)
    if fd is None:
        return None
    with os.fdopen(fd, "rb") as file:
        return file.read(limit)
