"""Images to model inputs, with the same pixel values as timm's evaluation transform."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitzoo.errors import InvalidOption
from vitzoo.images.bands import Bands
from vitzoo.images.decode import opened
from vitzoo.images.native import check_max_patches
from vitzoo.images.resize import MODES, Pixels, Resize
from vitzoo.keywords import short_errors
from vitzoo.log import log
from vitzoo.schema.preprocessing import (
    Preprocessing,
    StatedPreprocessing,
    UnreadPreprocessing,
    read_preprocessing,
)
from vitzoo.schema.reader import Reader, describe, pair
from vitzoo.schema.spec import Spec


class Transform:
    """Converts an image or an array to the (c, h, w) input of a model.

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
        if spec.in_chans not in MODES and row.bands is None and row.scale is None:
            raise InvalidOption(
                f"images have 1 or 3 channels, the model takes {spec.in_chans}; pass bands=, the "
                "index of a band for each channel, such as bands=(0, 1, 2, 3), and perhaps scale= "
                "(model.preprocessing or vitzoo.transform), or prepare its inputs yourself"
            )
        if len(row.mean) != spec.in_chans:
            raise InvalidOption(
                f"mean and std of the preprocessing have {len(row.mean)} channels, the model takes "
                f"{spec.in_chans}; set model.preprocessing, or pass mean= and std="
            )
        self.image_size = image_size or spec.image_size
        self.channels = spec.in_chans
        self.mode = MODES.get(spec.in_chans, "")
        self.preprocessing = row.fitted(self.image_size)
        self.resize = Resize(self.preprocessing, self.image_size, self.channels)

    @short_errors
    def __call__(self, image: Image.Image | np.ndarray | str | os.PathLike[str]) -> Tensor:
        """Return the (c, h, w) float32 input of an image; raise ImageError if it is damaged."""
        with ExitStack() as held:
            return self.prepare(self.resize.pixels(*opened(image, held)))

    def prepare(self, image: Pixels) -> Tensor:
        """Return the (c, h, w) float32 input of a result of `Resize.pixels`."""
        if not isinstance(image, Bands):
            return self._normalised(self.resize.resized(image), 255)
        values = np.stack([np.array(self.resize.fit(one)) for one in image.images], axis=-1)
        return self._normalised(values, image.scale)

    def table(self) -> Tensor:
        """Return what each pixel value becomes, (c, 256) float32, if images have 8 bits."""
        values = np.arange(256, dtype=np.uint8)[:, None, None].repeat(self.channels, axis=2)
        return self._normalised(values, 255)[..., 0]

    def _normalised(self, values: np.ndarray, scale: float) -> Tensor:
        """Map (h, w, c) values to a (c, h, w) float32 input."""
        row = self.preprocessing
        pixels = torch.from_numpy(self._scaled(values, scale)).permute(2, 0, 1)
        if row.channel_order == "bgr":
            pixels = pixels.flip(0)
        mean, std = statistics(row)
        return (pixels - mean) / std

    def __repr__(self) -> str:
        h, w = self.image_size
        return f"Transform(image_size={h}x{w}, mode={self.mode},\n    {self.preprocessing})"

    def _scaled(self, values: np.ndarray, scale: float) -> np.ndarray:
        """Return pixel values as float32, as stated or in [0, 1]."""
        factor = self.preprocessing.rescale_factor
        if factor is not None:  # in float64 as transformers
            return (values * np.float64(factor)).astype(np.float32)
        return values.astype(np.float32) / np.float32(scale)


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
        self.resize = replace(self.resize, native=(self.patch_size, self.max_patches))

    def __repr__(self) -> str:
        limit = f"max_patches={self.max_patches}"
        return f"NativeTransform({limit}, mode={self.mode},\n    {self.preprocessing})"


def whole_patches(size: tuple[int, int], spec: Spec) -> bool:
    """Return whether (height, width) is a whole number of patches of a network."""
    return not any(px % patch for px, patch in zip(size, spec.patch_size, strict=True))


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


def check_preprocessing(preprocessing: object) -> StatedPreprocessing | None:
    """Return `preprocessing`; raise InvalidOption if it has another type."""
    if isinstance(preprocessing, StatedPreprocessing | None):
        return preprocessing
    raise InvalidOption(
        "model.preprocessing must be a vitzoo.Preprocessing or None, got "
        f"{describe(preprocessing)}; vitzoo.transform(name).preprocessing is an example"
    )


def make_transform(
    spec: Spec,
    stated: StatedPreprocessing | None,
    changes: Mapping[str, Any],
    *,
    dynamic: bool = False,
) -> Transform:
    """Return the transform of a model with changes of its preprocessing or image size.

    Args:
        spec: the network.
        stated: its preprocessing, or a statement that cannot be followed.
        changes: arguments of `vitzoo.transform`.
        dynamic: whether the model takes any size that is a whole number of patches.

    Raises:
        InvalidOption: a value is not possible, or the statement cannot be followed and the changes
            do not replace it.
    """
    given = dict(changes)
    size, native = given.pop("image_size", None), given.pop("native_size", None)
    if isinstance(stated, UnreadPreprocessing):
        stated = _replaced(stated, given, native=native is not None)
    row = (stated or default_preprocessing(spec)).to_data()
    for name in {"crop_pct", "crop_mode"} & given.keys() and ("resize", "image_size"):
        row.pop(name, None)  # lengths of another crop
    for name, other in (("scale", "rescale_factor"), ("bands", "channel_order")):
        if name in given:
            row.pop(other, None)
    row |= {key: list(v) if isinstance(v, tuple) else v for key, v in given.items()}
    reader = Reader(row, "transform()", InvalidOption)
    changed = read_preprocessing(reader)
    reader.done()
    if native is not None:
        _check_native(spec, changes)
        return NativeTransform(spec, changed, None if native is True else native)
    if size is None:
        size = _own_size(changed, spec) if dynamic else spec.image_size
    return Transform(spec, changed, pair(size, "transform(): image_size", InvalidOption))


def _replaced(
    stated: UnreadPreprocessing, given: Mapping[str, Any], *, native: bool
) -> Preprocessing | None:
    """Return what is known; raise InvalidOption unless the arguments replace the rest."""
    needed = {"mean", "std", "interpolation"} if stated.known is None else set()
    if not native:
        needed |= {"crop_pct"}
    if needed <= given.keys():
        return stated.known
    raise InvalidOption(stated.message)


def _own_size(row: Preprocessing, spec: Spec) -> tuple[int, int]:
    """Return the size that the preprocessing states, if it has whole patches, or the network's."""
    stated = row.image_size
    if stated and whole_patches(stated, spec):
        return stated
    return spec.image_size


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
