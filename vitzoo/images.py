"""Images to inputs: reading files and the preprocessing that a row of weights states."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from vitzoo.catalogue import Preprocessing
from vitzoo.errors import ImageError, InvalidOption
from vitzoo.spec import Spec

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
MODES = {1: "L", 3: "RGB"}
INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


class Transform:
    """Turns an image into the (c, h, w) input of a model.

    Args:
        spec: says the input's size and channels.
        preprocessing: None means bicubic, crop 0.9, mean and std 0.5.
    """

    def __init__(self, spec: Spec, preprocessing: Preprocessing | None) -> None:
        row = preprocessing or Preprocessing(
            mean=(0.5,) * spec.in_chans, std=(0.5,) * spec.in_chans
        )
        if spec.in_chans not in MODES:
            raise InvalidOption(
                f"images have 1 or 3 channels, the model takes {spec.in_chans}; "
                "prepare its inputs yourself"
            )
        if len(row.mean) != spec.in_chans:
            raise InvalidOption(
                f"the preprocessing has statistics of {len(row.mean)} channels, the model takes "
                f"{spec.in_chans}; set model.preprocessing"
            )
        self.image_size = spec.image_size
        self.mode = MODES[spec.in_chans]
        self.preprocessing = row

    def __call__(self, image: Image.Image | str | os.PathLike[str]) -> Tensor:
        """Return the input of one image: (c, h, w), float32."""
        if isinstance(image, str | os.PathLike):
            image = open_image(image)
        if not isinstance(image, Image.Image):
            raise InvalidOption(
                f"expected a Pillow image or the path of one, got {type(image).__name__}"
            )
        image = self._fit(image.convert(self.mode))
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
        (height, width), row = self.image_size, self.preprocessing
        resample = INTERPOLATIONS[row.interpolation]
        if row.crop_mode == "squash":
            return image.resize((width, height), resample)
        image = image.resize(self._size_before_crop(image), resample)
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        return image.crop((left, top, left + width, top + height))

    def _size_before_crop(self, image: Image.Image) -> tuple[int, int]:
        """Return the (width, height) that covers the uncropped input, rounded as torchvision's."""
        height, width = (math.floor(n / self.preprocessing.crop_pct) for n in self.image_size)
        if height * image.width >= width * image.height:  # the height decides
            return image.width * height // image.height, height
        return width, image.height * width // image.width


def open_image(path: str | os.PathLike[str]) -> Image.Image:
    """Read an image file whole, turned upright as its EXIF data says.

    Raises:
        ImageError: the file is missing, no image, truncated or unreasonably large.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                image.load()
                return ImageOps.exif_transpose(image)
    except UnidentifiedImageError as error:
        raise ImageError(f"{path} is not an image that Pillow can read") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{path} is unreasonably large: {error}") from error
    except IsADirectoryError as error:
        raise ImageError(f"{path} is a folder, expected an image file") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ImageError(f"cannot read the image {path}: {reason}") from error
    except (SyntaxError, ValueError, EOFError) as error:
        raise ImageError(f"{path} is a damaged image: {error}") from error


def find_images(paths: list[Path]) -> list[Path]:
    """Replace each folder by the image files in it, sorted by name.

    Raises:
        ImageError: a path does not exist, or a folder holds no images.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ImageError(f"there is no file {path}")
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
        if not inside:
            raise ImageError(f"the folder {path} holds no images ({', '.join(SUFFIXES)})")
        found += inside
    return found
