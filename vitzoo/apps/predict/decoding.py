"""Images of all kinds that a `Predictor` takes, to inputs of its network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitzoo.errors import ImageError, InvalidOption, printable, short_repr
from vitzoo.images.decode import (
    UNNAMED,
    decode_bytes,
    opened,
)
from vitzoo.images.file_bytes import read_bytes
from vitzoo.images.find import LeftOut, find_images
from vitzoo.images.resize import Pixels, Resize
from vitzoo.keywords import check_types

Input = str | os.PathLike[str] | bytes | np.ndarray | Image.Image
KINDS = (str, os.PathLike, bytes, bytearray, memoryview, np.ndarray, Image.Image)
EXPECTED = (
    "a path, the bytes of an image file, a uint8 array, an array of uint16 or floats, or a Pillow "
    "image"
)
IN_BUFFER = np.empty(0, np.uint8)  # the tensor of an image whose pixels are in a buffer


@dataclass(frozen=True)
class Decoded:
    """An image that is ready for the network, or the reason why it is not.

    Args:
        tensor: (c, h, w) float32 input, None if there is an error. For a GPU it is what
            `Normalise.stage` returns.
        error: why the image cannot be used; empty if it can.
        width, height: of the image in px, after its EXIF orientation; 0 with an error.
        sha256: of the bytes of the file; empty for an array, for a Pillow image, and for a file
            that cannot be read.
    """

    tensor: Any
    error: str = ""
    width: int = 0
    height: int = 0
    sha256: str = ""


def decoded(
    image: Input | ImageError, name: str, resize: Resize, stage: Callable[[Pixels], Any]
) -> Decoded:
    """Prepare an image; it raises no error about an image.

    Args:
        image: as for `Predictor`, or the error of a folder.
        name: of bytes, in messages.
        resize: of the transform of the network.
        stage: makes what `Decoded.tensor` is of a result of `resize.pixels`.
    """
    digest = ""
    if isinstance(image, ImageError):
        return Decoded(None, str(image))
    try:
        with ExitStack() as held:
            if isinstance(image, str | os.PathLike):
                name, image = printable(image), read_bytes(image)
            if isinstance(image, bytes | bytearray | memoryview):
                digest = sha256(image).hexdigest()
                found: Any = decode_bytes(bytes(image), name, held)
            else:
                name, found = UNNAMED, _pixels(image, held)
            found = resize.pixels(found, name)
            tensor = stage(found)
            width, height = found.size
            del found  # before another large image
    except ImageError as error:
        return Decoded(None, str(error), sha256=digest)
    except Exception as error:  # noqa: BLE001  # a `__fspath__`, a Pillow image that fails
        return Decoded(None, f"cannot prepare the image: {short_repr(error)}", sha256=digest)
    return Decoded(tensor, "", width, height, digest)


def is_image(images: object, resize: Resize | None = None) -> bool:
    """Return whether a value is one image; an array (n, h, w) is a list of images.

    With `resize` for bands or for more channels, an array (h, w, bands) is one image.
    """
    if isinstance(images, np.ndarray):
        chosen = resize is not None and resize.preprocessing.bands is not None
        most = max(4, resize.channels if resize else 0)
        return images.ndim == 2 or (images.ndim == 3 and (chosen or images.shape[2] <= most))
    return isinstance(images, KINDS)


def size_of_bytes(image: object) -> int:
    """Return how many bytes of an image are in memory before it is decoded."""
    return (
        image.nbytes
        if isinstance(image, np.ndarray)
        else len(image)
        if isinstance(image, bytes)
        else 0
    )


def as_list(called: str, images: Any, resize: Resize | None = None) -> list[Input]:
    """Return one image or several as a list; raise InvalidOption if one is of another kind.

    Args:
        called: name of the function, for the message.
        images: its argument.
        resize: of the transform of the network, which decides whether an array is one image.
    """
    if is_image(images, resize):
        return [images]
    check_types(called, images=(images, "an iterable"))
    given = list(images)
    for i, one in enumerate(given):
        if not isinstance(one, KINDS):
            raise InvalidOption(
                f"{called}(): images[{i}] must be {EXPECTED}, got {short_repr(one)} "
                f"({type(one).__name__})"
            )
    return given


def named(images: Iterable[Input], left_out: LeftOut) -> Iterator[tuple[Path, Input | ImageError]]:
    """Yield each image with its name: its path, or `image N` for the one at index N.

    A folder is replaced by the image files in it and in its subfolders, and one without images by
    its error; `left_out` counts the other files.
    """
    for i, image in enumerate(images):
        if not isinstance(image, str | os.PathLike):
            yield Path(f"image {i}"), image
        elif os.path.isdir(image):  # noqa: PTH112  # False for a name that is too long
            try:
                yield from ((file, file) for file in find_images([Path(image)], left_out=left_out))
            except ImageError as error:
                yield Path(image), error
        else:
            yield Path(image), image


def _pixels(image: object, held: ExitStack) -> Image.Image | np.ndarray:
    if isinstance(image, np.ndarray | Image.Image):
        return opened(image, held)[0]
    raise ImageError(f"expected {EXPECTED}, got {type(image).__name__}")
