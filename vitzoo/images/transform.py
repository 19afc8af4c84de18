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
from vitzoo.images.native import check_max_patches, native_size
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
        pixels = pixels.reshape(image.height, image.width, -1).permute(2, 0, 1)  # (c, h, w)
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


class NativeTransform(Transform):
    """Converts an image to the (c, h, w) input of its native size, see `native_size`.

    The image keeps its aspect ratio, up to whole patches, and is not cropped. Other arguments and
    attributes are those of `Transform`; `image_size` is that of the network.

    Args:
        max_patches: largest number of patches; None: as many as the network has at its image size.

    Raises:
        InvalidOption: the number of patches is not possible, or arguments of `Transform` are not.
    """

    def __init__(
        self, spec: Spec, preprocessing: Preprocessing | None, max_patches: int | None = None
    ) -> None:
        super().__init__(spec, preprocessing)
        self.patch_size = spec.patch_size
        sides = zip(spec.image_size, spec.patch_size, strict=True)
        own = math.prod(px // patch for px, patch in sides)
        self.max_patches = check_max_patches(own if max_patches is None else max_patches)

    def __repr__(self) -> str:
        limit = f"max_patches={self.max_patches}"
        return f"NativeTransform({limit}, mode={self.mode}, {self.preprocessing})"

    def _fit(self, image: Image.Image) -> Image.Image:
        size = image.height, image.width
        height, width = native_size(*size, patch_size=self.patch_size, max_patches=self.max_patches)
        resample = Image.Resampling[self.preprocessing.interpolation.upper()]
        return image.resize((width, height), resample)


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
    image_size, native = row.pop("image_size", spec.image_size), row.pop("native_size", None)
    row |= {key: list(row[key]) for key in ("mean", "std") if isinstance(row[key], tuple)}
    reader = Reader(row, "transform()", InvalidOption)
    changed = read_preprocessing(reader)
    reader.done()
    if native is not None:
        _check_native(spec, changes)
        return NativeTransform(spec, changed, None if native is True else native)
    return Transform(spec, changed, pair(image_size, "transform(): image_size", InvalidOption))


def _check_native(spec: Spec, changes: Mapping[str, Any]) -> None:
    """Refuse native sizes for a network without a stated patch, and arguments that fix the size."""
    if not spec.embed_dim:
        raise InvalidOption(
            f"native_size: {spec.variant} is built by a plugin that does not state its patches, so "
            "it has no native sizes; leave native_size (--native-size) out"
        )
    for name in ("image_size", "crop_pct", "crop_mode"):
        if name in changes:
            raise InvalidOption(
                f"transform(): {name}={changes[name]!r} does not act on native sizes, which keep "
                f"the whole image; leave out {name} or native_size"
            )
