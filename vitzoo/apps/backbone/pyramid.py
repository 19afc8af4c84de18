"""The simple feature pyramid of ViTDet: maps of several strides from one map of a network."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.errors import InvalidOption, short_repr
from vitzoo.keywords import check_choice, check_types

SCALES = (4, 2, 1, 0.5)  # sides of a map per side of the network's map
NORMS = ("layer", "none")


class ChannelNorm(nn.LayerNorm):
    """LayerNorm of the channels at each position of maps (b, c, h, w)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NormedConv(nn.Conv2d):
    """Convolution that keeps h and w, then a norm; without a norm it has a bias."""

    def __init__(self, before: int, channels: int, kernel_size: int, norm: str) -> None:
        padding = kernel_size // 2
        super().__init__(before, channels, kernel_size, padding=padding, bias=norm == "none")
        self.norm = _norm(norm, channels)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(super().forward(x))
        return normed


class SimpleFeaturePyramid(nn.Module):
    """Maps of several strides from the last map of a network with one stride.

    Shapes: (b, embed_dim, h, w) to one map (b, channels, h * scale, w * scale) per scale. With an
    odd h or w, the map of scale 0.5 is rounded down, and that of `top` is rounded up.

    Args:
        embed_dim: channels of the given map.
        stride: px of the image per position of the given map, such as the patch size.
        channels: channels of each result.
        scales: one or more of 4, 2, 1 and 0.5, each once, in this order.
        norm: "layer", a LayerNorm of the channels after each convolution, or "none".
        top: whether one more result follows, every second position of the last one.

    Attributes:
        strides: px of the image per position of each result; at patch size 14, not all are whole.

    Raises:
        InvalidOption: an option has another value.

    Source: arXiv:2203.16527, section 3; tensors have the names of detectron2's
    `SimpleFeaturePyramid`, where `simfp_N` computes the map of stride 2 ** N.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        stride: float,
        channels: int = 256,
        scales: Sequence[float] = SCALES,
        norm: str = "layer",
        top: bool = False,
    ) -> None:
        super().__init__()
        check_choice("norm", norm, NORMS)
        check_types("pyramid", scales=(scales, "a sequence"), top=(top, "a boolean"))
        scales = tuple(scales)
        if not scales or scales != tuple(s for s in SCALES if s in scales):
            raise InvalidOption(
                f"scales must be some of {SCALES}, each once and in this order, got {scales!r}"
            )
        if type(channels) is not int or channels < 1:
            raise InvalidOption(
                f"channels must be a positive whole number, got {short_repr(channels)}"
            )
        self.top, self.channels = top, channels
        strides = [stride / scale for scale in scales]
        self.names = [f"simfp_{math.floor(math.log2(s))}" for s in strides]
        for name, scale in zip(self.names, scales, strict=True):
            self.add_module(name, _stage(embed_dim, scale, channels, norm))
        self.strides = [*strides, 2 * strides[-1]] if top else strides

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the maps in the order of `scales`, and that of `top` after them."""
        maps = [self.get_submodule(name)(x) for name in self.names]
        return [*maps, F.max_pool2d(maps[-1], 1, stride=2)] if self.top else maps


def _stage(dim: int, scale: float, channels: int, norm: str) -> nn.Sequential:
    """Return the layers from the network's map to the map of a scale."""
    layers: list[nn.Module] = []
    if scale == 0.5:
        layers = [nn.MaxPool2d(2)]
    elif scale == 2:
        layers = [_double(dim)]
    elif scale == 4:
        layers = [_double(dim), _norm(norm, dim // 2), nn.GELU(), _double(dim // 2)]
    out = dim // int(max(scale, 1))
    convs = NormedConv(out, channels, 1, norm), NormedConv(channels, channels, 3, norm)
    return nn.Sequential(*layers, *convs)


def _double(dim: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(dim, dim // 2, 2, stride=2)


def _norm(norm: str, channels: int) -> nn.Module:
    return nn.Identity() if norm == "none" else ChannelNorm(channels, eps=1e-6)
