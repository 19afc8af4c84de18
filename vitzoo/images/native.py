"""Native sizes: images that keep their aspect ratio, with at most a given number of patches."""

from __future__ import annotations

import math

from vitzoo.errors import ImageError, InvalidOption, short_repr
from vitzoo.schema.spec import LIMITS

SCALES = (1e-6, 100.0)  # of the image, between which the largest that fits is searched
STEP = 1e-5  # the search ends when its bounds are closer


def check_max_patches(value: object) -> int:
    """Return `value`; raise InvalidOption unless it is a possible number of patches."""
    most = LIMITS["patches"]
    if type(value) is int and 1 <= value <= most:
        return value
    raise InvalidOption(
        f"native_size must be a whole number of patches from 1 to {most}, got {short_repr(value)}"
    )


def native_size(
    height: int, width: int, *, patch_size: tuple[int, int], max_patches: int
) -> tuple[int, int]:
    """Return the size (h, w) in px to which an image is resized to keep its aspect ratio.

    Both sides are multiplied by one scale and rounded up to whole patches. The scale is the largest
    below 100 that gives at most `max_patches` patches.

    Args:
        height, width: of the image in px.
        patch_size: (height, width) in px.
        max_patches: largest number of patches.

    Raises:
        InvalidOption: `max_patches` is not possible.
        ImageError: the longer side is more than `max_patches` times the shorter one.

    Source: arXiv:2502.14786, section 2.4.2 (NaFlex). The sizes equal those of transformers'
    `Siglip2ImageProcessor`, whose bounds and steps of the bisection these are.

    >>> native_size(427, 640, patch_size=(16, 16), max_patches=256)
    (208, 304)
    """
    longer, shorter = max(height, width), min(height, width)
    if longer > check_max_patches(max_patches) * shorter:
        raise ImageError(
            f"an image of {height}x{width} px (height x width) has no native size of at most "
            f"{max_patches} patches: the longer side is more than {max_patches} times the shorter "
            "one; crop the image, or allow more patches"
        )

    def grid(scale: float) -> tuple[int, int]:
        sides = zip((height, width), patch_size, strict=True)
        return tuple(max(1, math.ceil(px * scale / patch)) for px, patch in sides)  # type: ignore[return-value]  # two

    low, high = SCALES
    while high - low >= STEP:
        middle = (low + high) / 2
        low, high = (middle, high) if math.prod(grid(middle)) <= max_patches else (low, middle)
    rows, columns = grid(low)
    return rows * patch_size[0], columns * patch_size[1]
