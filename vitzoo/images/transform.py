"""Images to inputs: the preprocessing that a row of weights states, pixel for pixel as timm's."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitzoo.errors import InvalidOption
from vitzoo.images.decode import read_picture
from vitzoo.schema.manifest import read_preprocessing
from vitzoo.schema.reader import Reader, describe, pair
from vitzoo.schema.rows import Preprocessing
from vitzoo.schema.spec import Spec

log = logging.getLogger("vitzoo")

MODES = {1: "L", 3: "RGB"}
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
MAX_RESIZED = 2**26  # px; a longer strip is cut before it is resized, not after


class Transform:
    """Turns an image into the (c, h, w) input of a model.

    Args:
        spec: says the input's size and channels.
        preprocessing: None means bicubic, crop 0.9, mean and std 0.5.
        image_size: (h, w) px, if not the spec's.
    """

    def __init__(
        self,
        spec: Spec,
        preprocessing: Preprocessing | None,
        image_size: tuple[int, int] | None = None,
    ) -> None:
        row = preprocessing or default_preprocessing(spec)
        if spec.in_chans not in MODES:
            raise InvalidOption(
                f"images have 1 or 3 channels, the model takes {spec.in_chans}; "
                "prepare its inputs yourself"
            )
        if len(row.mean) != spec.in_chans:
            raise InvalidOption(
                f"the preprocessing has statistics of {len(row.mean)} channels, the model takes "
                f"{spec.in_chans}; set model.preprocessing, or pass mean= and std="
            )
        self.image_size = image_size or spec.image_size
        self.mode = MODES[spec.in_chans]
        self.preprocessing = row

    def __call__(self, image: Image.Image | str | os.PathLike[str]) -> Tensor:
        """Return the input of one image: (c, h, w), float32.

        Raises:
            ImageError: the picture cannot be read.
            InvalidOption: neither a path nor a Pillow image.
        """
        image = self._fit(read_picture(image, self.mode))
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255)  # (h, w) or (h, w, c)
        pixels = pixels.reshape(*self.image_size, -1).permute(2, 0, 1)  # (c, h, w)
        mean, std = (torch.tensor(v)[:, None, None] for v in self._statistics())
        return (pixels - mean) / std

    def __repr__(self) -> str:
        h, w = self.image_size
        return f"Transform(image_size={h}x{w}, mode={self.mode}, {self.preprocessing})"

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.preprocessing.mean, self.preprocessing.std

    def _fit(self, image: Image.Image) -> Image.Image:
        height, width = self.image_size
        size = self._size_before_crop(image)
        left, top = round((size[0] - width) / 2), round((size[1] - height) / 2)
        resample = FILTERS[self.preprocessing.interpolation]
        if size[0] * size[1] <= MAX_RESIZED:
            return image.resize(size, resample).crop((left, top, left + width, top + height))
        x, y = image.width / size[0], image.height / size[1]  # px of the image for one of the input
        box = (left * x, top * y, (left + width) * x, (top + height) * y)
        return image.resize((width, height), resample, box=box)

    def _size_before_crop(self, image: Image.Image) -> tuple[int, int]:
        """Return (width, height) to resize to, rounded as torchvision and timm round it."""
        height, width = (math.floor(n / self.preprocessing.crop_pct) for n in self.image_size)
        if self.preprocessing.crop_mode == "squash":
            return width, height
        if height == width:  # the shorter side decides
            short = min(image.size)
            return image.width * height // short, image.height * height // short
        ratio = min(image.height / height, image.width / width)
        return round(image.width / ratio), round(image.height / ratio)


def default_preprocessing(spec: Spec) -> Preprocessing:
    """Return what is used where nothing is known."""
    return Preprocessing(mean=(0.5,) * spec.in_chans, std=(0.5,) * spec.in_chans)


@cache
def warn_of_default(spec: Spec) -> None:
    """Log, once for a network, that nobody said how its images become inputs."""
    log.warning(
        "no preprocessing is known for %s; its images are prepared with %s. Set "
        "model.preprocessing = vitzoo.Preprocessing(...), or pass mean=, std= and so on",
        spec.variant or "this model",
        default_preprocessing(spec),
    )


def check_preprocessing(preprocessing: object) -> Preprocessing | None:
    """Return what a model has as its preprocessing.

    Raises:
        InvalidOption: it is something else.
    """
    if isinstance(preprocessing, Preprocessing | None):
        return preprocessing
    raise InvalidOption(
        "model.preprocessing must be a vitzoo.Preprocessing or None, got "
        f"{describe(preprocessing)}; vitzoo.transform(name).preprocessing is one"
    )


def make_transform(
    spec: Spec, preprocessing: Preprocessing | None, changes: Mapping[str, Any]
) -> Transform:
    """Return the transform of a model with some of its preprocessing, or its size, changed.

    Raises:
        InvalidOption: a value that cannot be right.
        UnknownOption: a name that is none.
    """
    row = asdict(preprocessing or default_preprocessing(spec)) | dict(changes)
    image_size = row.pop("image_size", spec.image_size)
    row |= {key: list(row[key]) for key in ("mean", "std") if isinstance(row[key], tuple)}
    reader = Reader(row, "transform()", InvalidOption)
    changed = read_preprocessing(reader)
    reader.done()
    return Transform(spec, changed, pair(image_size, "transform(): image_size", InvalidOption))
