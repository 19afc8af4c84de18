"""Pixels of 8 bits to inputs of a network, on the device of the network."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitzoo.images.bands import Bands
from vitzoo.images.resize import Pixels
from vitzoo.images.transform import Transform


class Normalise:
    """Maps (n, h, w, c) uint8 pixels to (n, c, h, w) float32 inputs, the bytes of a transform.

    The results for the 256 values are computed once on the CPU, because devices may divide in
    another way. Images of bands are inputs already, of which this changes nothing.

    Args:
        transform: of the network.
        device: of the network.

    Attributes:
        shape, dtype: of what `stage` returns for an image of the usual size.
    """

    def __init__(self, transform: Transform, device: torch.device) -> None:
        self._transform = transform
        self._table = self._channels = None
        channels, size = transform.channels, transform.image_size
        self.shape, self.dtype = (channels, *size), torch.float32
        if transform.resize.of_8_bits:
            self.shape, self.dtype = (*size, channels), torch.uint8
            self._table = transform.table().flatten().to(device)
            order = torch.arange(channels, device="cpu")
            self._first = (256 * order)[:, None, None].to(device, torch.int32)
            self._flip = transform.preprocessing.channel_order == "bgr"

    def stage(self, image: Pixels) -> np.ndarray:
        """Return what crosses to the device, for a result of `Resize.pixels`."""
        if self._table is None or isinstance(image, Bands):
            return self._transform.prepare(image).numpy()
        return self._transform.resize.resized(image)

    def __call__(self, pixels: Tensor) -> Tensor:
        """Map staged images (n, ...) on the device to inputs (n, c, h, w)."""
        table: Any = self._table
        if table is None:
            return pixels
        pixels = pixels.permute(0, 3, 1, 2)
        index = (pixels.flip(1) if self._flip else pixels).to(torch.int32) + self._first
        return table.index_select(0, index.flatten()).view(index.shape)
