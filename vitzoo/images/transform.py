"""Images to model inputs, with the same pixel values as timm's evaluation transform."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitzoo.errors import InvalidOption
from vitzoo.images.decode import read_image
from vitzoo.log import log
from vitzoo.schema.entries import read_preprocessing
from vitzoo.schema.reader import Reader, describe, pair
from vitzoo.schema.rows import Preprocessing
from vitzoo.schema.spec import Spec

MODES = {1: "L", 3: "RGB"}
MAX_RESIZED = 2**26  # px; an image whose resized version is larger is cropped first


class Transform:
    """Converts an image to the (c, h, w) input of a model.

    Size and channels are those of the spec; `image_size` (h, w) in px replaces the size. Without
    `preprocessing` it uses the defaults of `Preprocessing`.
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
                f"mean and std of the preprocessing have {len(row.mean)} channels, the model takes "
                f"{spec.in_chans}; set model.preprocessing, or pass mean= and std="
            )
        self.image_size = image_size or spec.image_size
        self.mode = MODES[spec.in_chans]
        self.preprocessing = row

    def __call__(self, image: Image.Image | str | os.PathLike[str]) -> Tensor:
        """Return the (c, h, w) float32 input of an image; raise ImageError if it is damaged."""
        with ExitStack() as held:
            return self.prepare(read_image(image, self.mode, held))

    def prepare(self, image: Image.Image) -> Tensor:
        """Return the (c, h, w) float32 input of an image of the transform's `mode`."""
        image = self._fit(image)
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255)  # (h, w) or (h, w, c)
        pixels = pixels.reshape(*self.image_size, -1).permute(2, 0, 1)  # (c, h, w)
        mean, std = statistics(self.preprocessing)
        return (pixels - mean) / std

    def __repr__(self) -> str:
        h, w = self.image_size
        return f"Transform(image_size={h}x{w}, mode={self.mode}, {self.preprocessing})"

    def _fit(self, image: Image.Image) -> Image.Image:
        height, width = self.image_size
        size = self._size_before_crop(image)
        left, top = round((size[0] - width) / 2), round((size[1] - height) / 2)
        resample = Image.Resampling[self.preprocessing.interpolation.upper()]
        if size[0] * size[1] <= MAX_RESIZED:
            return image.resize(size, resample).crop((left, top, left + width, top + height))
        x, y = image.width / size[0], image.height / size[1]  # px of the image for each input px
        box = (left * x, top * y, (left + width) * x, (top + height) * y)
        return image.resize((width, height), resample, box=box)

    def _size_before_crop(self, image: Image.Image) -> tuple[int, int]:
        """Return the (width, height) to resize to, rounded as in torchvision and timm."""
        height, width = (math.floor(n / self.preprocessing.crop_pct) for n in self.image_size)
        if self.preprocessing.crop_mode == "squash":
            return width, height
        if height == width:  # the shorter side gets this length
            short = min(image.size)
            return image.width * height // short, image.height * height // short
        ratio = min(image.height / height, image.width / width)
        return round(image.width / ratio), round(image.height / ratio)


def statistics(row: Preprocessing) -> tuple[Tensor, Tensor]:
    """Return mean and std, (c, 1, 1) float32 on the CPU each, whatever torch's defaults are."""
    mean, std = np.array([row.mean, row.std], dtype=np.float32)[..., None, None]
    return torch.from_numpy(mean), torch.from_numpy(std)


def default_preprocessing(spec: Spec) -> Preprocessing:
    """Return the preprocessing for a model whose preprocessing is unknown."""
    return Preprocessing(mean=(0.5,) * spec.in_chans, std=(0.5,) * spec.in_chans)


@cache
def warn_of_default(spec: Spec) -> None:
    """Log a warning, once for each network, that its preprocessing is unknown."""
    log.warning(
        "no preprocessing is known for %s; its images are prepared with %s. Set "
        "model.preprocessing = vitzoo.Preprocessing(...), or pass mean=, std= and so on",
        spec.variant or "this model",
        default_preprocessing(spec),
    )


def check_preprocessing(preprocessing: object) -> Preprocessing | None:
    """Return `preprocessing`; raise InvalidOption if it has another type."""
    if isinstance(preprocessing, Preprocessing | None):
        return preprocessing
    raise InvalidOption(
        "model.preprocessing must be a vitzoo.Preprocessing or None, got "
        f"{describe(preprocessing)}; vitzoo.transform(name).preprocessing is an example"
    )


def make_transform(
    spec: Spec, preprocessing: Preprocessing | None, changes: Mapping[str, Any]
) -> Transform:
    """Return the transform of a model with changes of its preprocessing or image size."""
    row = asdict(preprocessing or default_preprocessing(spec)) | dict(changes)
    image_size = row.pop("image_size", spec.image_size)
    row |= {key: list(row[key]) for key in ("mean", "std") if isinstance(row[key], tuple)}
    reader = Reader(row, "transform()", InvalidOption)
    changed = read_preprocessing(reader)
    reader.done()
    return Transform(spec, changed, pair(image_size, "transform(): image_size", InvalidOption))
