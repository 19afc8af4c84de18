"""The bytes of image files, read whole; neither numpy nor Pillow is imported."""

from __future__ import annotations

import os
from pathlib import Path

from vitzoo.errors import ImageError, printable
from vitzoo.files.access import read_regular

MAX_BYTES = 2**30  # of an image file


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of an image file; raise ImageError if it has more than `MAX_BYTES`."""
    try:
        data = read_regular(Path(path), MAX_BYTES, ImageError)
    except ImageError as error:
        raise ImageError(f"{error}; expected an image file") from error
    if data is None:
        raise ImageError(f"there is no file {printable(path)}")
    return data
