"""Image files and Pillow images of any mode to 8-bit grey or RGB pixels.

Only regular files of known formats and limited size are opened. Every error of Pillow becomes an
`ImageError` that names the file.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from io import BytesIO
from threading import Lock, RLock

import numpy as np
from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from vitzoo.errors import ImageError, InvalidOption, printable
from vitzoo.images.file_bytes import read_bytes
from vitzoo.settings import max_scans

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "AVIF", "JPEG2000")
DEEP = ("I", "F")  # first letters of the modes with more than 8 bits
STRAIGHT = {"La": "LA", "RGBa": "RGBA"}  # premultiplied modes, and the modes without
UNNAMED = "the image"  # name of a Pillow image in messages
UNNAMED_BYTES = "the data"  # name of the bytes of an image file in messages
LARGE = 2**24  # px; of larger images, one at a time is in memory
REDUCED = "vitzoo: colours of 16 bits"  # key of the information on an image
TILE = 2**11  # px; width and height of what is converted at once
MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")  # of a JPEG: a segment, or the end
MAX_SIDE = 2**16 - 1  # px, as of a JPEG
MAX_DECODED = 2**30  # bytes of the decoded pixels
MAX_COMMENTS = 2**16  # bytes of the comments and spaces of a PPM, which Pillow reads one by one
MAX_EXIF = 256  # segments of a JPEG, which Pillow copies again for each
MAX_PIECES = 2**18  # tiles and strips, each with a fixed cost
BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}  # px; others: 4
PPM, PLAIN = re.compile(rb"P[0-6fy]"), re.compile(rb"P[123]\s")
COMMENT = re.compile(rb"#[^\r\n]*[\r\n]?")
HEADER = 64  # bytes of the header of a PPM without comments and spaces, at most
JPEG, EXIF = b"\xff\xd8", b"Exif\0\0"
BITS, SAMPLES, TILE_WIDTH, TILE_HEIGHT = 258, 277, 322, 323  # tags of TIFF
START_OF_SCAN, END_OF_IMAGE = b"\xff\xda", b"\xff\xd9"
_OPENING = Lock()  # filters of warnings belong to the process
DECODING_LARGE = RLock()  # other processes of vitzoo may have another lock


def read_image(
    image: Image.Image | np.ndarray | str | os.PathLike[str],
    mode: str,
    held: ExitStack | None = None,
) -> Image.Image:
    """Return an image with 8-bit pixels of mode `L` or `RGB`, with transparency over white.

    EXIF orientation is applied to files and to results of `Image.open`, but not to images that the
    program made or changed. The next large image waits until `held` is closed. Raises ImageError if
    the image cannot be read, or the range of its values is unknown.
    """
    found, name = opened(image, held)
    return flatten(image_of_array(found) if isinstance(found, np.ndarray) else found, mode, name)


def opened(image: object, held: ExitStack | None = None) -> tuple[Image.Image | np.ndarray, str]:
    """Return an image with its pixels, or an array as it is, and its name for messages."""
    if isinstance(image, str | os.PathLike):
        return open_image(image, held), printable(image)
    if isinstance(image, np.ndarray):
        return image, UNNAMED
    if not isinstance(image, Image.Image):
        raise InvalidOption(
            "expected a Pillow image, the path of one, or an array of numpy, got "
            f"{type(image).__name__}"
        )
    return loaded(image, held), UNNAMED


def loaded(image: Image.Image, held: ExitStack | None = None) -> Image.Image:
    """Read the pixels of a Pillow image; apply the EXIF orientation of a result of `Image.open`."""
    with explained(UNNAMED), ExitStack() as own:
        _check_work(image, UNNAMED)
        _wait(image, held or own)
        _check_scans(image, UNNAMED)
        _mark_colours(image)
        image.load()
        return ImageOps.exif_transpose(image) if isinstance(image, ImageFile.ImageFile) else image


def open_image(path: str | os.PathLike[str], held: ExitStack | None = None) -> Image.Image:
    """Read the first frame of an image file and apply its EXIF orientation."""
    return decode_bytes(read_bytes(path), printable(path), held)


def decode_bytes(
    data: bytes, name: str = UNNAMED_BYTES, held: ExitStack | None = None
) -> Image.Image:
    """Decode the bytes of an image file as `open_image` does; `name` is for messages."""
    if not data:
        raise ImageError(f"{name} is empty, expected an image file")
    with explained(name), ExitStack() as own:
        data = _checked(data, name)
        with _OPENING, warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            image = Image.open(BytesIO(data), formats=_formats())
        with image:
            _check_work(image, name)
            _wait(image, held or own)
            _check_scans(image, name)
            _mark_colours(image)
            image.load()
            ImageOps.exif_transpose(image, in_place=True)  # a copy would double the memory
        return image


def image_of_array(array: np.ndarray) -> Image.Image:
    """Return an array of pixels, (h, w) or (h, w, c), as an image of grey values or colours.

    Three channels of uint16 or floats are scaled to 8 bits, as grey images of these types are.

    Raises:
        ImageError: it has another type, another shape, no pixels, or values out of range.
    """
    shape, eight = array.shape, array.dtype == np.uint8
    deep = array.dtype.kind == "f" or array.dtype.str[1:] == "u2"
    counts = (1, 2, 3, 4) if eight else (1, 3)
    if not (eight or deep) or len(shape) not in (2, 3) or (len(shape) == 3 and not shape[2]):
        raise ImageError(
            f"the array is {array.dtype} of the shape {shape}, expected uint8, uint16 or float, "
            "and (h, w) or (h, w, c) with 1 to 4 channels"
        )
    if shape[2:] and shape[2] not in counts:
        raise ImageError(
            f"the array is {array.dtype} of the shape {shape}, expected 1 to 4 channels of uint8, "
            "or 1 or 3 of uint16 or float; pass bands=, the index of a band for each channel"
        )
    if 0 in shape:
        raise ImageError(f"the array has no pixels: {shape[1]}x{shape[0]}")
    with explained(UNNAMED):
        plain = array[..., 0] if shape[2:] == (1,) else array
        if deep:
            plain = plain.astype(np.float32 if plain.dtype.kind == "f" else np.uint16)
        if plain.ndim == 2 or eight:
            return Image.fromarray(plain)
        top = range_of([(plain.min(), plain.max())], UNNAMED) if plain.dtype.kind == "f" else 65535
        return Image.fromarray(np.rint(plain * np.float32(255 / top)).astype(np.uint8))


def _mark_colours(image: Image.Image) -> None:
    """Note that an image that is not loaded has 16-bit colours, of which Pillow keeps 8 bits."""
    tiles = getattr(image, "tile", ())
    if any(";16" in str(tile[3]) for tile in tiles) and not image.mode.startswith(DEEP):
        image.info[REDUCED] = True


def _wait(image: Image.Image, held: ExitStack) -> None:
    """Wait until no other thread decodes a large image, if the image is large."""
    if image.width * image.height > LARGE:
        held.enter_context(DECODING_LARGE)


def _checked(data: bytes, name: str) -> bytes:
    """Return the bytes of an image file, of a plain PPM without comments.

    Raises:
        ImageError: they have metadata for which Pillow needs much time.
    """
    if data.startswith(JPEG) and data.count(EXIF) > MAX_EXIF:
        raise ImageError(
            f"{name} has more than {MAX_EXIF} Exif segments, expected one; save it without metadata"
        )
    if not PPM.match(data):
        return data
    head = data[: MAX_COMMENTS + HEADER]
    numbers = 2 if data[1:2] in b"14" else 3
    if len(head) < len(data) and len(COMMENT.sub(b"", head).split(None, numbers)) <= numbers:
        raise _long_comments(name)
    if not PLAIN.match(data):
        return data
    _check_comments(data, name)
    return COMMENT.sub(b"", data)


def _check_comments(data: bytes, name: str) -> None:
    """Check the comments of a plain PPM, which may be among its pixels."""
    sizes = itertools.accumulate(len(found[0]) for found in COMMENT.finditer(data))
    if any(size > MAX_COMMENTS for size in sizes):
        raise _long_comments(name)


def _long_comments(name: str) -> ImageError:
    return ImageError(
        f"{name} has comments and spaces of more than {MAX_COMMENTS} bytes before or among its "
        "pixels; save it without comments"
    )


def _check_work(image: Image.Image, name: str) -> None:
    """Check how much work and memory it takes to load an image that is not loaded."""
    if not isinstance(image, ImageFile.ImageFile) or not image.tile:
        return
    if max(image.size) > MAX_SIDE:
        raise ImageError(
            f"{name} has {image.width}x{image.height} px, the most is {MAX_SIDE} px per side; "
            "shrink it, or cut it into several images"
        )
    size = image.width * image.height * BYTES.get(image.mode, 4) + _tile_bytes(image)
    if size > MAX_DECODED:
        raise ImageError(
            f"{name} takes {size} bytes when it is decoded, the most is {MAX_DECODED}; shrink it, "
            "or save it with smaller tiles"
        )
    if len(image.tile) > MAX_PIECES:
        raise ImageError(
            f"{name} has {len(image.tile)} tiles or strips, the most is {MAX_PIECES}; save it with "
            "larger ones"
        )
    if image.tile[0].codec_name == "ppm_plain" and image.fp is not None:
        image.fp.seek(image.tile[0].offset)
        _check_comments(image.fp.read(), name)


def _tile_bytes(image: ImageFile.ImageFile) -> int:
    """Return the bytes of a tile of a TIFF, which may be larger than the image; else 0."""
    tags = getattr(image, "tag_v2", {})
    sides = [tags.get(tag, 0) for tag in (TILE_WIDTH, TILE_HEIGHT)]
    if not all(isinstance(side, int) for side in sides):
        return 0  # Pillow refuses it
    bits = tags.get(BITS, (8,))
    return math.prod(sides) * tags.get(SAMPLES, 1) * max(bits) // 8


def _check_scans(image: Image.Image, name: str) -> None:
    """Check the number of scans of a JPEG that is not loaded: each costs that of a whole image."""
    if image.format not in ("JPEG", "MPO") or not isinstance(image, ImageFile.ImageFile):
        return
    if not image.tile or image.fp is None:
        return
    image.fp.seek(image.tile[0].offset)
    data, most, scans, position = image.fp.read(), max_scans(), 0, 2
    while (found := MARKER.search(data, position)) and found[0] != END_OF_IMAGE:
        scans += found[0] == START_OF_SCAN
        position = found.end() + max(2, int.from_bytes(data[found.end() : found.end() + 2], "big"))
        if scans > most:
            raise ImageError(
                f"{name} has more than {most} scans, each with the work of a whole image; save it "
                "again, or set VITZOO_MAX_SCANS if you trust it"
            )


def flatten(image: Image.Image, mode: str, name: str) -> Image.Image:
    """Return an image of any mode as 8-bit `L` or `RGB`, with transparency over white."""
    if 0 in image.size:
        raise ImageError(f"{name} has no pixels: {image.width}x{image.height}")
    with explained(name):
        if image.mode == mode and not image.has_transparency_data:
            return image
        scale = _scale(image, name) if image.mode.startswith(DEEP) else None
        if image.width * image.height <= TILE**2:
            return _flat(image, mode, scale)
        flat = Image.new(mode, image.size)
        for box in _tiles(image):  # whole copies would take gigabytes
            flat.paste(_flat(image.crop(box), mode, scale), box)
        return flat


def _tiles(image: Image.Image) -> Iterator[tuple[int, int, int, int]]:
    for top in range(0, image.height, TILE):
        for left in range(0, image.width, TILE):
            yield left, top, min(left + TILE, image.width), min(top + TILE, image.height)


def _flat(image: Image.Image, mode: str, scale: float | None) -> Image.Image:
    if scale is not None:
        scaled = np.asarray(image).astype(np.float32) * np.float32(scale)
        image = Image.fromarray(np.rint(scaled, out=scaled).astype(np.uint8))
    elif image.has_transparency_data:
        image = image.convert(STRAIGHT.get(image.mode, image.mode)).convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image).convert("RGB")
    elif image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    return image.convert(mode)


@cache
def _formats() -> tuple[str, ...]:
    """Return those of `FORMATS` that this Pillow reads; other formats may start programs."""
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Convert exceptions of Pillow and of the disk to an `ImageError` that names the image."""
    try:
        yield
    except (ImageError, InvalidOption):
        raise
    except UnidentifiedImageError as error:
        known = ", ".join(_formats())
        raise ImageError(f"{name} is not an image that can be read here ({known})") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            f"{name} is too large: more than {Image.MAX_IMAGE_PIXELS} pixels; shrink it, "
            "or raise PIL.Image.MAX_IMAGE_PIXELS if you trust it"
        ) from error
    except Exception as error:  # Pillow's decoders raise OSError, struct.error and others
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if "MAX_TEXT" in reason:
            reason = "its text chunks are too large; save it without metadata"
        what = name if name in (UNNAMED, UNNAMED_BYTES) else f"the image {name}"
        raise ImageError(f"cannot read {what}: {printable(reason)}") from error


def _scale(image: Image.Image, name: str) -> float:
    """Return the scale to 8 bits: of 16-bit integers, of floats of [0, 1] or up to 255."""
    parts = (np.asarray(image.crop(box)) for box in _tiles(image))
    ends = [(part.min(), part.max()) for part in parts]
    if image.mode == "F":
        return 255 / range_of(ends, name)
    _check_range(ends, 65535, "expected 16 bits, 0 to 65535", name)
    return 1 / 257


def range_of(ends: Sequence[tuple[float, float]], name: str) -> float:
    """Return the largest value that floats can have: 1, or 255 if one is above 1.

    Args:
        ends: the least and the largest value of each part of an image.
        name: of the image, for messages.

    Raises:
        ImageError: a value lies outside.
    """
    top = 1.0 if np.max(ends) <= 1 else 255.0
    _check_range(ends, top, "expected 0 to 1, or 0 to 255", name)
    return top


def _check_range(ends: Sequence[tuple[float, float]], top: float, expected: str, name: str) -> None:
    least, most = np.min(ends), np.max(ends)
    if not (least >= 0 and most <= top):
        raise ImageError(
            f"{name} has values from {least:g} to {most:g}, {expected}; scale it to 8 bits first, "
            "or pass scale=, the value that becomes 1 (model.preprocessing or vitzoo.transform)"
        )
