"""The values of an image or an array, band by band, without scaling them to 8 bits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from vitzoo.errors import ImageError
from vitzoo.images.decode import DEEP, REDUCED, explained, flatten, range_of
from vitzoo.schema.preprocessing import Preprocessing

FULL = {"u1": 255.0, "u2": 65535.0}  # the value that becomes 1, by type
INDEXED = ("1", "P", "PA")  # modes whose numbers are no values


@dataclass(frozen=True)
class Bands:
    """One image of mode `L` or `F` for each channel of a network.

    Args:
        images: of 8-bit values, or of floats.
        scale: the value that becomes 1.
    """

    images: tuple[Image.Image, ...]
    scale: float

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in px."""
        return self.images[0].size


def bands_of(
    image: Image.Image | np.ndarray, row: Preprocessing, channels: int, mode: str, name: str
) -> Bands:
    """Return the bands that a network reads of an image or an array (h, w) or (h, w, bands).

    Args:
        image: with its own values.
        row: its `bands` and `scale`.
        channels: of the network.
        mode: of Pillow, for colours without `bands`; empty for other numbers of channels.
        name: of the image, for messages.

    Raises:
        ImageError: it has not these bands, or no finite values.
    """
    if isinstance(image, np.ndarray):
        values = [check_array(image, name)[..., i] for i in range(_count(image))]
        values = values * channels if len(values) == 1 and row.bands is None else values
    elif row.bands is None:
        values = _colours(image, channels, mode, name)
    else:
        values = _own(image, name)
    chosen = range(channels) if row.bands is None else row.bands
    if max(chosen) >= len(values) or (row.bands is None and len(values) != channels):
        raise ImageError(
            f"{name} has {len(values)} bands, expected {max(chosen) + 1 if row.bands else channels}"
            f"; pass bands=, the index of a band for each of the {channels} channels"
        )
    kept = [values[i] for i in chosen]
    scale = row.scale or _full(kept, name)
    with explained(name):
        return Bands(tuple(map(_image, kept)), scale)


def check_array(array: np.ndarray, name: str) -> np.ndarray:
    """Return an array of pixels as (h, w, bands) of uint8, uint16 or float32.

    Raises:
        ImageError: it has another type, another shape, no pixels, or values that are not finite.
    """
    floating = array.dtype.kind == "f"
    known = floating or array.dtype.str[1:] in FULL
    if not known or array.ndim not in (2, 3) or (array.ndim == 3 and not array.shape[2]):
        raise ImageError(
            f"the array is {array.dtype} of the shape {array.shape}, expected uint8, uint16 or "
            "float, and (h, w) or (h, w, bands)"
        )
    if 0 in array.shape:
        raise ImageError(f"the array has no pixels: {array.shape[1]}x{array.shape[0]}")
    if floating:
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
        if not np.isfinite(array).all():
            raise ImageError(f"{name} has values that are nan or infinite; replace them first")
    return np.atleast_3d(array)


def _count(array: np.ndarray) -> int:
    return array.shape[2] if array.ndim == 3 else 1


def _colours(image: Image.Image, channels: int, mode: str, name: str) -> list[np.ndarray]:
    """Return the channels of a network for colour or grey images."""
    if not mode:
        raise ImageError(
            f"{name} has mode {image.mode}, and the model takes {channels} channels; pass bands=, "
            "the index of a band for each channel"
        )
    if image.mode.startswith(DEEP):
        return _own(image, name) * channels
    if image.info.get(REDUCED):
        return _own(image, name)  # raises
    values = np.atleast_3d(np.asarray(flatten(image, mode, name)))
    return [values[..., i] for i in range(channels)]


def _own(image: Image.Image, name: str) -> list[np.ndarray]:
    """Return every band of an image."""
    if image.info.get(REDUCED):
        raise ImageError(
            f"{name} has colours of 16 bits, of which Pillow keeps 8; pass an array of its values"
        )
    with explained(name):
        if image.mode in INDEXED:
            clear = image.has_transparency_data
            image = image.convert("L" if image.mode == "1" else "RGBA" if clear else "RGB")
        values = np.asarray(image)
    if image.mode == "I":  # 32 bits, in which older versions of Pillow read 16
        short = values.min() >= 0 and values.max() <= FULL["u2"]
        values = values.astype(np.uint16 if short else np.float32)
    values = check_array(values, name)
    return [values[..., i] for i in range(values.shape[2])]


def _full(values: list[np.ndarray], name: str) -> float:
    """Return the value that becomes 1 where none is stated: by type, of floats by their range."""
    kind = values[0].dtype.str[1:]
    return FULL[kind] if kind in FULL else range_of([(v.min(), v.max()) for v in values], name)


def _image(values: np.ndarray) -> Image.Image:
    """Return a band as an image: 8 bits as they are, others as floats."""
    eight = values.dtype == np.uint8
    return Image.fromarray(np.ascontiguousarray(values if eight else values.astype(np.float32)))
