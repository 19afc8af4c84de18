"""The images on which the ways are compared: the user's, photographs, digits or random numbers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vitzoo.apps.export.export import prepared
from vitzoo.images.transform import Transform
from vitzoo.schema.preprocessing import usable

COUNT = 16
RANDOM = "random numbers"


def samples(
    network: Any, paths: Iterable[str | os.PathLike[str]] | None
) -> tuple[Tensor, str, bool]:
    """Return prepared images (n, c, h, w), what they are, and whether they are random.

    Without paths these are 16 crops of scikit-learn's two photographs for a network of colour
    images, and 16 of its digits for one of grey images. Without scikit-learn, and for other numbers
    of channels, they are normal random numbers.

    Raises:
        InvalidOption: there are no images.
        ImageError: an image cannot be read.
    """
    if paths is not None:
        own = prepared(network, "images", paths)
        return own, f"{len(own)} images of yours", False
    channels = network.spec.in_chans
    try:
        kinds = {1: (_digits, "of scikit-learn's digits"),
                 3: (_photographs, "crops of scikit-learn's two photographs")}  # fmt: skip
        draw, what = kinds[channels]
        known = Transform(network.spec, usable(network.preprocessing))
        found = [known.prepare(image) for image in draw()]
    except (ImportError, KeyError):
        shape = (COUNT, channels, *network.spec.image_size)
        generator = torch.Generator().manual_seed(0)
        return torch.randn(shape, generator=generator), f"{COUNT} images of {RANDOM}", True
    return torch.stack(found), f"{len(found)} {what}", False


def _photographs() -> Iterator[Image.Image]:
    """Yield eight crops of each photograph, which lie side by side in two rows."""
    from sklearn.datasets import load_sample_images

    for pixels in load_sample_images().images:
        height, width = (n // k for n, k in zip(pixels.shape, (2, 4), strict=False))
        for i in range(8):
            y, x = i // 4 * height, i % 4 * width
            yield Image.fromarray(pixels[y : y + height, x : x + width])


def _digits() -> Iterator[Image.Image]:
    """Yield the first scans of the data set, 8x8 px."""
    from sklearn.datasets import load_digits

    for pixels in load_digits().images[:COUNT]:
        yield Image.fromarray((pixels * (255 / 16)).round().astype("uint8"))
