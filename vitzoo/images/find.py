"""Image files by their names, for `predict`; without Pillow, NumPy and torch.

`apps/embed/sources.py` reads folders with subfolders, patterns, lists, archives and Parquet files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from vitzoo.errors import ImageError, printable

SUFFIXES = (
    ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm", ".avif",
    ".jp2",
)  # fmt: skip


def find_images(
    paths: Iterable[Path], on_error: Callable[[ImageError], object] | None = None
) -> list[Path]:
    """Replace each folder by the image files directly in it, sorted by name.

    A missing path, an unreadable folder and a folder without images raise ImageError, or are passed
    to `on_error`.
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
        inside = [p for p in path.iterdir() if p.suffix.lower() in SUFFIXES]
    except OSError as error:
        raise ImageError(f"cannot read {name}: {error.strerror}") from error
    inside = [p for p in inside if not os.path.isdir(p)]  # noqa: PTH112  # never raises
    if not inside:
        raise ImageError(
            f"the folder {name} contains no images ({', '.join(SUFFIXES)}); its subfolders are not "
            "searched"
        )
    return sorted(inside, key=lambda p: p.name)  # Windows compares paths without case
