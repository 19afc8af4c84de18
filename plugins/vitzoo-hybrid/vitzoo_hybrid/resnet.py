"""The ResNet of the hybrids: weight-standardised convolutions, group norms, "same" padding.

Source: google-research/vision_transformer, `vit_jax/models_resnet.py`; state-dict keys follow
timm's `ResNetV2(preact=False)`; tests compare every element with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.parts import lecun_normal_

GROUPS = 32
EXPANSION = 4  # of a bottleneck: its output over its 3x3 convolution
ROOT_STRIDE = 4


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a library; timm's and Google's code differ in it.

    Args:
        standardise: kernels (out, in, h, w) to standardised kernels of the same shape.
        norm_eps: epsilon of the group norms.
    """

    standardise: Callable[[Tensor], Tensor]
    norm_eps: float


def by_variance(kernel: Tensor) -> Tensor:
    """Standardise each output channel as `(w - mean) / sqrt(var + 1e-8)`.

    Source: timm, `StdConv2dSame` with the eps of `vision_transformer_hybrid.py`.
    """
    kernel = kernel - kernel.mean(dim=(1, 2, 3), keepdim=True)
    # In two steps: torch.var_mean takes three times as long on a CPU.
    var = kernel.square().mean(dim=(1, 2, 3), keepdim=True)
    return kernel * torch.rsqrt(var + 1e-8)


def by_deviation(kernel: Tensor) -> Tensor:
    """Standardise each output channel as `(w - mean) / (std + 1e-5)`.

    Source: vit_jax/models_resnet.py, `weight_standardize`.
    """
    kernel = kernel - kernel.mean(dim=(1, 2, 3), keepdim=True)
    # A norm has a gradient where the deviation is 0; the root of a mean has none.
    norm = torch.linalg.vector_norm(kernel, dim=(1, 2, 3), keepdim=True)
    return kernel / (norm * kernel[0].numel() ** -0.5 + 1e-5)


ARITHMETICS = {
    "timm": Arithmetic(by_variance, norm_eps=1e-5),
    "google": Arithmetic(by_deviation, norm_eps=1e-6),
}


class StdConv2d(nn.Conv2d):
    """Convolution without bias whose kernels are standardised before each use.

    The input height and width must be multiples of the stride. The padding is then TensorFlow's
    "same": an odd total padding has one pixel more at the bottom and at the right.

    Shapes: (b, c, h, w) to (b, out, h / stride, w / stride).

    Args:
        in_chans, out_chans: channels.
        kernel, stride: px.
        arithmetic: how kernels are standardised.

    Source: arXiv:1903.10520, equation 2.
    """

    def __init__(
        self, in_chans: int, out_chans: int, kernel: int, stride: int, arithmetic: Arithmetic
    ) -> None:
        total = max(kernel - stride, 0)
        before, after = total // 2, total - total // 2
        even = before == after
        super().__init__(
            in_chans, out_chans, kernel, stride, padding=before if even else 0, bias=False
        )
        self.uneven = () if even else (before, after, before, after)
        self.standardise = arithmetic.standardise
        lecun_normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (b, c, h, w) images."""
        if self.uneven:
            x = F.pad(x, self.uneven)
        # In half precision the variance of a small kernel would vanish.
        exact = torch.promote_types(self.weight.dtype, torch.float32)
        kernel = self.standardise(self.weight.to(exact)).to(self.weight.dtype)
        return F.conv2d(x, kernel, stride=self.stride, padding=self.padding)


class Root(nn.Module):
    """7x7 convolution and 3x3 max pool, each of stride 2.

    Shapes: (b, c, h, w) to (b, width, h / 4, w / 4).
    """

    def __init__(self, in_chans: int, width: int, arithmetic: Arithmetic) -> None:
        super().__init__()
        self.conv = StdConv2d(in_chans, width, 7, 2, arithmetic)
        self.norm = _norm(width, arithmetic)

    def forward(self, images: Tensor) -> Tensor:
        """Read (b, c, h, w) images."""
        x = F.relu(self.norm(self.conv(images)), inplace=True)  # (b, width, h / 2, w / 2)
        # "Same" padding of an even size is one pixel below and right, which ceil_mode leaves out.
        return F.max_pool2d(x, 3, 2, ceil_mode=True)


class Shortcut(nn.Module):
    """1x1 convolution and norm, where a bottleneck changes the shape."""

    def __init__(self, in_chans: int, out_chans: int, stride: int, arithmetic: Arithmetic) -> None:
        super().__init__()
        self.conv = StdConv2d(in_chans, out_chans, 1, stride, arithmetic)
        self.norm = _norm(out_chans, arithmetic)

    def forward(self, x: Tensor) -> Tensor:
        """Map (b, c, h, w) to (b, out, h / stride, w / stride)."""
        return self.norm(self.conv(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; norms and ReLUs come after.

    The gain of the last norm starts at zero, as published: the block begins as its shortcut.

    Shapes: (b, c, h, w) to (b, out, h / stride, w / stride).
    """

    def __init__(self, in_chans: int, out_chans: int, stride: int, arithmetic: Arithmetic) -> None:
        super().__init__()
        width = out_chans // EXPANSION
        reshapes = stride != 1 or in_chans != out_chans
        self.downsample = (
            Shortcut(in_chans, out_chans, stride, arithmetic) if reshapes else nn.Identity()
        )
        self.conv1 = StdConv2d(in_chans, width, 1, 1, arithmetic)
        self.norm1 = _norm(width, arithmetic)
        self.conv2 = StdConv2d(width, width, 3, stride, arithmetic)
        self.norm2 = _norm(width, arithmetic)
        self.conv3 = StdConv2d(width, out_chans, 1, 1, arithmetic)
        self.norm3 = _norm(out_chans, arithmetic)
        nn.init.zeros_(self.norm3.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map (b, c, h, w) to (b, out, h / stride, w / stride)."""
        shortcut = self.downsample(x)
        x = F.relu(self.norm1(self.conv1(x)), inplace=True)
        x = F.relu(self.norm2(self.conv2(x)), inplace=True)
        x = self.norm3(self.conv3(x))
        return F.relu(x + shortcut, inplace=True)


class Stage(nn.Module):
    """Bottlenecks of one width; the first of them has the stride.

    Shapes: (b, c, h, w) to (b, out, h / stride, w / stride).
    """

    def __init__(
        self, in_chans: int, out_chans: int, depth: int, stride: int, arithmetic: Arithmetic
    ) -> None:
        super().__init__()
        first = Bottleneck(in_chans, out_chans, stride, arithmetic)
        others = [Bottleneck(out_chans, out_chans, 1, arithmetic) for _ in range(depth - 1)]
        self.blocks = nn.Sequential(first, *others)

    def forward(self, x: Tensor) -> Tensor:
        """Map (b, c, h, w) to (b, out, h / stride, w / stride)."""
        return self.blocks(x)


class ResNet(nn.Module):
    """Root and stages, without a classifier.

    Shapes: (b, c, h, w) to (b, 4 * width * 2 ** (s - 1), h / 2 ** (s + 1), w / 2 ** (s + 1)) for
    s stages.

    Args:
        in_chans: channels of the image.
        layers: blocks of each stage.
        width: channels of the root, a multiple of 32.
        arithmetic: of timm or Google.

    Source: arXiv:1512.03385, table 1; arXiv:2010.11929, section 4.1.
    """

    def __init__(
        self, in_chans: int, layers: Sequence[int], width: int, arithmetic: Arithmetic
    ) -> None:
        super().__init__()
        self.stem = Root(in_chans, width, arithmetic)
        widths = [width, *(EXPANSION * width * 2**i for i in range(len(layers)))]
        self.stages = nn.Sequential(
            *(
                Stage(widths[i], widths[i + 1], depth, 1 if i == 0 else 2, arithmetic)
                for i, depth in enumerate(layers)
            )
        )

    def forward(self, images: Tensor) -> Tensor:
        """Read (b, c, h, w) images."""
        return self.stages(self.stem(images))


def _norm(channels: int, arithmetic: Arithmetic) -> nn.GroupNorm:
    return nn.GroupNorm(GROUPS, channels, eps=arithmetic.norm_eps)
