"""Picture files and Pillow images, whatever they hold, to 8-bit grey or RGB pixels.

Files come from anywhere: what is opened is a regular file of a known format and of a bearable
size, and whatever goes wrong inside Pillow is an `ImageError` that names the file.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from vitzoo.errors import ImageError, InvalidOption, printable

SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".avif",
    ".jp2",
)  # fmt: skip
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF", "JPEG2000")
DEEP = ("I", "F")  # modes with more than 8 bits start so
STRAIGHT = {"La": "LA", "RGBa": "RGBA"}  # premultiplied modes and what they are made from
A_PICTURE = "the image"  # what a Pillow image is called in messages


def read_picture(image: Image.Image | str | os.PathLike[str], mode: str) -> Image.Image:
    """Return a picture as 8-bit pixels of one mode, upright, over white where it is transparent.

    Args:
        image: a file, or a Pillow image. One straight from `Image.open` is turned upright like a
            file; one that was made or changed in the program is taken as it is.
        mode: `L` or `RGB`.

    Raises:
        ImageError: the picture cannot be read, or its values have no agreed meaning.
        InvalidOption: neither a path nor a Pillow image.
    """
    if isinstance(image, str | os.PathLike):
        return flatten(open_image(image), mode, printable(image))
    if not isinstance(image, Image.Image):
        raise InvalidOption(
            f"expected a Pillow image or the path of one, got {type(image).__name__}"
        )
    with _explained(A_PICTURE):
        image.load()
        if isinstance(image, ImageFile.ImageFile):
            image = ImageOps.exif_transpose(image)
    return flatten(image, mode, A_PICTURE)


def open_image(path: str | os.PathLike[str]) -> Image.Image:
    """Read an image file whole, its first frame, turned upright as its EXIF data says.

    Raises:
        ImageError: the file is missing, no image, truncated or unreasonably large.
    """
    name = printable(path)
    with _open_regular(path, name) as file, _explained(name), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(file, formats=_formats()) as image:
            image.load()
            return ImageOps.exif_transpose(image)


def flatten(image: Image.Image, mode: str, name: str) -> Image.Image:
    """Return an image of any mode as 8-bit `L` or `RGB`, over white where it is transparent.

    Raises:
        ImageError: it has no pixels, or values of more than 8 bits outside the known ranges.
    """
    if 0 in image.size:
        raise ImageError(f"{name} has no pixels: {image.width}x{image.height}")
    with _explained(name):
        if image.mode.startswith(DEEP):
            image = _to_8_bit(image, name)
        elif image.has_transparency_data:
            image = image.convert(STRAIGHT.get(image.mode, image.mode)).convert("RGBA")
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image).convert("RGB")
        elif image.mode not in ("1", "L", "RGB"):
            image = image.convert("RGB")
        return image.convert(mode)


def find_images(
    paths: Iterable[Path], on_error: Callable[[ImageError], object] | None = None
) -> list[Path]:
    """Replace each folder by the image files right in it, sorted by name.

    Args:
        paths: files, which are not opened, and folders.
        on_error: called for a path that is not there, and for a folder that cannot be read or
            holds no images; without it the error is raised.

    Raises:
        ImageError: as above.
    """
    found: list[Path] = []
    for path in paths:
        try:
            found += _images_at(path)
        except ImageError as error:
            if on_error is None:
                raise
            on_error(error)
    return found


def _images_at(path: Path) -> list[Path]:
    name = printable(path)
    try:
        if not os.path.lexists(path):
            raise ImageError(f"there is no file {name}")
        if not path.is_dir():
            return [path]
        inside = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
    except OSError as error:
        raise ImageError(f"cannot read {name}: {error.strerror}") from error
    inside = [p for p in inside if not p.is_dir()]
    if not inside:
        raise ImageError(f"the folder {name} holds no images ({', '.join(SUFFIXES)})")
    return inside


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats that this Pillow reads; no others, some of which start programs."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _open_regular(path: str | os.PathLike[str], name: str) -> IO[bytes]:
    try:  # without waiting, should it be a pipe
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise ImageError(f"cannot read the image {name}: {error.strerror}") from error
    except ValueError as error:  # a name with a null byte
        raise ImageError(f"cannot read the image {name}: {error}") from error
    found = os.fstat(fd)
    kind = stat.S_IFMT(found.st_mode)
    wrong = {stat.S_IFDIR: "a folder", stat.S_IFREG: "" if found.st_size else "empty"}
    if said := wrong.get(kind, "a pipe or a device"):
        os.close(fd)
        raise ImageError(f"{name} is {said}, expected an image file")
    return os.fdopen(fd, "rb")


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Turn whatever Pillow raises into an `ImageError` that names the picture."""
    try:
        yield
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        known = ", ".join(_formats())
        raise ImageError(f"{name} is not an image that can be read here ({known})") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            f"{name} is unreasonably large: more than {Image.MAX_IMAGE_PIXELS} pixels; shrink it, "
            "or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        ) from error
    except Exception as error:  # its decoders raise whatever comes, OSError to struct.error
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if "MAX_TEXT" in reason:
            reason = "its text chunks are enormous; save it without metadata"
        what = name if name == A_PICTURE else f"the image {name}"
        raise ImageError(f"cannot read {what}: {printable(reason)}") from error


def _to_8_bit(image: Image.Image, name: str) -> Image.Image:
    """Scale 16-bit integers, and floats of [0, 1], to 8 bits; floats up to 255 keep their scale."""
    values = np.asarray(image)
    least, most = values.min(), values.max()
    if image.mode == "F":
        top, scale = (1, 255.0) if most <= 1 else (255, 1.0)
        expected = "expected 0 to 1, or 0 to 255"
    else:
        top, scale = 65535, 1 / 257
        expected = "expected 16 bits, 0 to 65535"
    if not (least >= 0 and most <= top):
        raise ImageError(
            f"{name} has values from {least:g} to {most:g}, {expected}; scale it to 8 bits first"
        )
    scaled = values.astype(np.float32) * np.float32(scale)
    return Image.fromarray(np.rint(scaled, out=scaled).astype(np.uint8))
