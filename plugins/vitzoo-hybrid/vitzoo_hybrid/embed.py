"""Patch embedders that project patches of the feature map of a ResNet."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from vitzoo.errors import InvalidOption, UnknownName, did_you_mean, short_repr
from vitzoo.parts import lecun_normal_, tiled
from vitzoo_hybrid.resnet import ARITHMETICS, EXPANSION, GROUPS, ROOT_STRIDE, ResNet, Root

MAX_STAGES = 5
MAX_BLOCKS = 1_000  # of a stage; a spec may come from an untrusted file
MAX_WIDTH = 4_096


class ResNetEmbed(nn.Module):
    """Runs a ResNet, and projects patches of its feature map to tokens. The ResNet has stride s.

    `patch_size` is in pixels of the image, as everywhere in vitzoo, so the kernel of the projection
    is `patch_size / s`.

    Shapes: (b, c, h, w) images to (b, n, d) tokens, n = (h / patch) * (w / patch).

    Args:
        patch_size: (height, width) in px of the image, a multiple of the stride.
        in_chans: channels of the image.
        embed_dim: width d of a token.
        layers: blocks of each stage; if empty, the ResNet is its root, of stride 4. The stride
            after the first stage is 4, and each further stage doubles it.
        width: channels of the root, a multiple of 32; stage i has `4 * width * 2 ** i`.
        arithmetic: of `timm` or of `google`.

    Attributes:
        stride: s, px.
        input_conv: key of the kernel that reads the channels of the image.

    Raises:
        InvalidOption: an option, or a patch size that is no multiple of the stride.

    Source: arXiv:2010.11929, section 3.1 (hybrid architecture); numbers checked against timm's
    `HybridEmbed`, and for `google` against vit_jax's formulas.
    """

    def __init__(
        self,
        *,
        patch_size: tuple[int, int],
        in_chans: int,
        embed_dim: int,
        layers: Sequence[int],
        width: int = 64,
        arithmetic: str = "timm",
    ) -> None:
        super().__init__()
        _check(layers, width, arithmetic)
        self.patch_size = patch_size
        self.in_chans = in_chans
        self.stride = ROOT_STRIDE * 2 ** max(len(layers) - 1, 0)
        kernel = _projection(patch_size, self.stride)
        chosen = ARITHMETICS[arithmetic]
        if layers:
            self.backbone: nn.Module = ResNet(in_chans, layers, width, chosen)
            self.input_conv = "backbone.stem.conv.weight"
            features = EXPANSION * width * 2 ** (len(layers) - 1)
        else:
            self.backbone = Root(in_chans, width, chosen)
            self.input_conv = "backbone.conv.weight"
            features = width
        self.proj = nn.Conv2d(features, embed_dim, kernel_size=kernel, stride=kernel)
        lecun_normal_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)  # type: ignore[arg-type]  # the bias is always made

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the (h, w) grid of tokens; raises InvalidOption if patches do not tile."""
        return tiled(image_size, self.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """Embed (b, c, h, w) images as (b, n, d) tokens."""
        if isinstance(images, Tensor):  # torch.fx traces without images
            self.grid((images.shape[2], images.shape[3]))  # the padding is right for these only
        x = self.backbone(images)  # (b, features, h / stride, w / stride)
        x = self.proj(x)  # (b, d, h / patch, w / patch)
        return x.flatten(2).transpose(1, 2)  # (b, n, d)


resnet50 = partial(ResNetEmbed, layers=(3, 4, 9))
resnet50_s32 = partial(ResNetEmbed, layers=(3, 4, 6, 3))
resnet26 = partial(ResNetEmbed, layers=(2, 2, 2, 2))
resnet_stem = partial(ResNetEmbed, layers=())


def _check(layers: Sequence[int], width: int, arithmetic: str) -> None:
    if (
        not isinstance(layers, list | tuple)
        or len(layers) > MAX_STAGES
        or any(type(depth) is not int or not 1 <= depth <= MAX_BLOCKS for depth in layers)
    ):
        raise InvalidOption(
            f"layers must list the blocks of each of at most {MAX_STAGES} stages, from 1 to "
            f"{MAX_BLOCKS}, such as [3, 4, 9]; got {short_repr(layers)}"
        )
    if type(width) is not int or not 0 < width <= MAX_WIDTH or width % GROUPS:
        raise InvalidOption(
            f"width must be a multiple of {GROUPS}, the groups of the norms, up to {MAX_WIDTH}; "
            f"got {short_repr(width)}"
        )
    if arithmetic not in ARITHMETICS:
        hint = did_you_mean(str(arithmetic), ARITHMETICS) or f"; known: {', '.join(ARITHMETICS)}"
        raise UnknownName(f"unknown arithmetic {short_repr(arithmetic)}{hint}")


def _projection(patch_size: tuple[int, int], stride: int) -> tuple[int, int]:
    """Return the kernel of the projection, in elements of the feature map."""
    if patch_size[0] % stride or patch_size[1] % stride:
        raise InvalidOption(
            f"patch_size {patch_size[0]}x{patch_size[1]} is not a multiple of the stride of this "
            f"ResNet, {stride} px; choose a multiple of {stride}, or another patch embedder"
        )
    return patch_size[0] // stride, patch_size[1] // stride
