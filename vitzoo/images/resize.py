"""Pixels of images in the size of an input of a network; torch-free."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from vitzoo.errors import InvalidOption
from vitzoo.images.bands import Bands, bands_of
from vitzoo.images.decode import UNNAMED, flatten, image_of_array
from vitzoo.images.native import native_size
from vitzoo.schema.preprocessing import Preprocessing

MODES = {1: "L", 3: "RGB"}
Pixels = Image.Image | Bands
MAX_RESIZED = 2**26  # px; an image whose resized version is larger is cropped first


@dataclass(frozen=True)
class Resize:
    """Reads the pixels of an image, and resizes them.

    Args:
        preprocessing: of the network.
        image_size: (h, w) in px of an input.
        channels: of the network.
        native: (h, w) in px of a patch, and the largest number of patches of a native size. None:
            one size for all images.
    """

    preprocessing: Preprocessing
    image_size: tuple[int, int]
    channels: int
    native: tuple[tuple[int, int], int] | None = None

    @property
    def mode(self) -> str:
        """Mode of Pillow for the colours that the network takes; empty for other channels."""
        return MODES.get(self.channels, "")

    @property
    def of_8_bits(self) -> bool:
        """Whether `pixels` gives 8-bit colours of every image, and no bands."""
        row = self.preprocessing
        return row.bands is None and row.scale is None and bool(self.mode)

    def pixels(self, image: Image.Image | np.ndarray, name: str = UNNAMED) -> Pixels:
        """Return what the model reads of an image or an array: 8-bit colours, or bands."""
        if not self.of_8_bits:
            return bands_of(image, self.preprocessing, self.channels, self.mode, name)
        image = image_of_array(image) if isinstance(image, np.ndarray) else image
        return flatten(image, self.mode, name)

    def resized(self, image: Image.Image) -> np.ndarray:
        """Return the (h, w, c) uint8 pixels of an input, before they are normalised."""
        values = np.array(self.fit(image))
        return values.reshape(*values.shape[:2], -1)

    def fit(self, image: Image.Image) -> Image.Image:
        """Return an image that is resized, and cropped in the middle or filled up with black."""
        row, (height, width) = self.preprocessing, self.image_size
        resample = Image.Resampling[row.interpolation.upper()]
        if self.native is not None:
            patch_size, most = self.native
            size = image.height, image.width
            height, width = native_size(*size, patch_size=patch_size, max_patches=most)
            return image.resize((width, height), resample)
        size = size_before_crop(image, row, self.image_size)
        offset: Callable[[float], int] = round if row.crop_offset == "nearest" else math.floor
        left, top = offset((size[0] - width) / 2), offset((size[1] - height) / 2)
        box = (left, top, left + width, top + height)
        if row.crop_mode == "none":
            return image.crop(box)
        if size[0] * size[1] <= MAX_RESIZED:
            return image.resize(size, resample).crop(box)
        seen = (max(left, 0), max(top, 0), min(box[2], size[0]), min(box[3], size[1]))
        x, y = image.width / size[0], image.height / size[1]  # px of the image for each input px
        part = (seen[0] * x, seen[1] * y, seen[2] * x, seen[3] * y)
        image = image.resize((seen[2] - seen[0], seen[3] - seen[1]), resample, box=part)
        start = (left - seen[0], top - seen[1])
        return image.crop((*start, start[0] + width, start[1] + height))


def size_before_crop(
    image: Image.Image, row: Preprocessing, input_size: tuple[int, int]
) -> tuple[int, int]:
    """Return the (width, height) to resize an image to.

    It is rounded as in torchvision and timm, and with `row.resize` as in transformers.
    """
    (width, height), mode = image.size, row.crop_mode
    if mode == "none":
        return width, height
    if mode == "limit":
        return _limited(width, height, row)
    if mode == "fit":
        rows, columns = _pair(row)
        factor = min(rows / height, columns / width)
        return max(int(width * factor), 1), max(int(height * factor), 1)
    if isinstance(row.resize, tuple):  # squash
        return row.resize[1], row.resize[0]
    rows, columns = (math.floor(n / row.crop_pct) for n in input_size)
    if mode == "squash":
        return columns, rows
    if row.resize is not None or rows == columns:  # the shorter side gets this length
        short, length = min(width, height), row.resize or rows
        return width * length // short, height * length // short
    ratio = min(height / rows, width / columns)
    return round(width / ratio), round(height / ratio)


def _pair(row: Preprocessing) -> tuple[int, int]:
    """Return the two lengths that `limit` and `fit` have."""
    if not isinstance(row.resize, tuple):
        raise InvalidOption(f"crop_mode {row.crop_mode!r} needs resize with two lengths in px")
    return row.resize


def _limited(width: int, height: int, row: Preprocessing) -> tuple[int, int]:
    """Return the size whose shorter side has a length, unless the longer one exceeds the other."""
    shorter, longer = _pair(row)
    least, most = float(min(width, height)), float(max(width, height))
    exact: float = shorter
    if most / least * shorter > longer:
        exact = longer * least / most
        shorter = round(exact)
    if min(width, height) == shorter:
        return width, height
    if width < height:
        return max(shorter, 1), max(int(exact * height / width), 1)
    return max(int(exact * width / height), 1), max(shorter, 1)
