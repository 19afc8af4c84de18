"""Patch embedders cut an image into patches and project each patch to one token."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.keywords import check_choice
from vitzoo.parts.block import NORMS
from vitzoo.parts.init import lecun_normal_

NO_NORM = "none"


class PatchConv(nn.Conv2d):
    """A convolution of patches, in float32 where a CPU would compute it in bfloat16.

    On CPUs with AMX, oneDNN leaves results unset, of four channels or of one column of patches.
    """

    def forward(self, images: Tensor) -> Tensor:
        if not _in_bfloat16_on_cpu(images, self.weight):
            return super().forward(images)
        bias = None if self.bias is None else self.bias.float()
        with torch.autocast("cpu", enabled=False):
            x = self._conv_forward(images.float(), self.weight.float(), bias)
        return x.bfloat16()


class PatchProduct(nn.Conv2d):
    """A convolution of patches without overlap, computed as a product of two matrices.

    Its padding has zeros. On CUDA, torch computes convolutions of float32 in TF32 by default, and
    products exactly.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Map (b, c, h, w) images to (b, d, h / patch, w / patch)."""
        if not isinstance(self.padding, str) and any(self.padding):
            above, left = self.padding
            images = F.pad(images, (left, left, above, above))
        (b, c, h, w), (p, q) = images.shape, self.kernel_size
        rows, columns = h // p, w // q
        x = images[:, :, : rows * p, : columns * q].reshape(b, c, rows, p, columns, q)
        x = x.permute(0, 2, 4, 1, 3, 5).reshape(b * rows * columns, c * p * q)
        x = F.linear(x, self.weight.flatten(1), self.bias)  # of two dimensions, so one kernel
        return x.view(b, rows, columns, self.out_channels).permute(0, 3, 1, 2)


class ConvPatchEmbed(nn.Module):
    """Projects patches with a convolution whose kernel size and stride are the patch size.

    Shapes: (b, c, h, w) images to (b, n, d) tokens, n = (h / patch) * (w / patch).

    Args:
        patch_size: (height, width) in px.
        in_chans: number c of image channels.
        embed_dim: width d of a token.
        bias: whether the projection has a bias; networks with `pre_norm` usually have none.
        norm: kind of the norm over the width d of the projected patches: `layer`, `rms` or `none`.
        norm_eps: epsilon of this norm.

    Raises:
        InvalidOption: an option has no such value.

    Source: arXiv:2010.11929, section 3.1; compared with timm's `PatchEmbed`.
    """

    def __init__(
        self,
        *,
        patch_size: tuple[int, int],
        in_chans: int,
        embed_dim: int,
        bias: bool = True,
        norm: str = NO_NORM,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if not isinstance(bias, bool):
            raise InvalidOption(f"bias must be true or false, got {bias!r}")
        self.patch_size = patch_size
        self.in_chans = in_chans
        self._image_size: tuple[int, int] | None = None
        self.proj = PatchConv(in_chans, embed_dim, patch_size, stride=patch_size, bias=bias)
        lecun_normal_(self.proj.weight)
        if self.proj.bias is not None:
            nn.init.zeros_(self.proj.bias)
        self.norm = _norm(norm, embed_dim, norm_eps)

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the (h, w) grid of patches, see `tiled`."""
        return tiled(image_size, self.patch_size, getattr(self, "grid_multiple", (1, 1)))

    def expect(self, image_size: tuple[int, int]) -> None:
        """Let the properties below, which are those of timm, describe images of (h, w) px."""
        self._image_size = image_size

    @property
    def img_size(self) -> tuple[int, int] | None:
        """(h, w) in px of the images of the network, None outside a network."""
        return self._image_size

    @property
    def grid_size(self) -> tuple[int, int] | None:
        """(h, w) in patches of the images of the network, None outside a network."""
        return None if self._image_size is None else self.grid(self._image_size)

    @property
    def num_patches(self) -> int | None:
        """Number n of patches of the images of the network, None outside a network."""
        return None if self._image_size is None else math.prod(self.grid(self._image_size))

    def forward(self, images: Tensor) -> Tensor:
        x = self.proj(images)  # (b, d, h / patch, w / patch)
        return self.norm(x.flatten(2).transpose(1, 2))  # (b, n, d)


class UnfoldPatchEmbed(ConvPatchEmbed):
    """Cuts patches with `unfold` and projects each flattened patch with one matrix.

    Shapes, arguments, results and state dict are those of `ConvPatchEmbed`: the (d, c, h, w) kernel
    is used as a (d, c * h * w) matrix.

    Source: arXiv:2010.11929, equation 1.
    """

    def forward(self, images: Tensor) -> Tensor:
        patches = F.unfold(images, self.patch_size, stride=self.patch_size)  # (b, c*h*w, n)
        x = F.linear(patches.transpose(1, 2), self.proj.weight.flatten(1), self.proj.bias)
        return self.norm(x)  # (b, n, d)


def _in_bfloat16_on_cpu(images: Tensor, weight: Tensor) -> bool:
    if not isinstance(images, Tensor) or images.device.type != "cpu":  # or is traced by torch.fx
        return False
    types = {images.dtype, weight.dtype}
    if torch.is_autocast_enabled("cpu") and torch.float64 not in types:
        return torch.get_autocast_dtype("cpu") == torch.bfloat16
    return types == {torch.bfloat16}


def _norm(kind: str, embed_dim: int, eps: float) -> nn.Module:
    if kind == NO_NORM:
        return nn.Identity()
    check_choice("norm", kind, (*NORMS, NO_NORM))
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise InvalidOption(f"norm_eps must lie between 0 and 1, got {eps!r}")
    return NORMS[kind](embed_dim, eps=eps)


def tiled(
    image_size: tuple[int, int],
    patch_size: tuple[int, int],
    grid_multiple: tuple[int, int] = (1, 1),
) -> tuple[int, int]:
    """Return the numbers of patches that tile an image, (rows, columns).

    Args:
        image_size: (h, w) px.
        patch_size: (h, w) px.
        grid_multiple: rows and columns must be multiples of these.

    Raises:
        InvalidOption: the image is not a whole number of patches, or of groups of patches.
    """
    steps = [p * m for p, m in zip(patch_size, grid_multiple, strict=True)]
    sides = list(zip(image_size, steps, strict=True))
    if any(i % step for i, step in sides):
        below = tuple(max(1, i // step) * step for i, step in sides)
        above = tuple(-(-i // step) * step for i, step in sides)
        sizes = (image_size, patch_size, grid_multiple, below, above)
        image, patch, group, smaller, larger = ("x".join(map(str, size)) for size in sizes)
        nearest = f"is: {larger}" if below == above else f"are: {smaller} and {larger}"
        groups = "" if grid_multiple == (1, 1) else f" in groups of {group}"
        raise InvalidOption(
            f"image_size {image} is not a whole number of {patch} patches{groups}; "
            f"the nearest that {nearest}"
        )
    return image_size[0] // patch_size[0], image_size[1] // patch_size[1]
