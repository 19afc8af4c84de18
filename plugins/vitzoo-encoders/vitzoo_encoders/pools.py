"""Pools: over several class tokens, and after the neck of SAM."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts import MeanPool


class PrefixMeanPool(nn.Module):
    """Returns the average of the prefix tokens.

    Shapes: (b, p + n, d) to (b, d).

    Args:
        num_prefix_tokens: p, at least 1.

    Raises:
        InvalidOption: there are no prefix tokens.

    Source: `PixioModel` of transformers, whose prefix tokens are class tokens.

    >>> import torch
    >>> PrefixMeanPool(num_prefix_tokens=2)(torch.ones(1, 6, 8), 2, (2, 2)).shape
    torch.Size([1, 8])
    """

    norm_first = True

    def __init__(self, *, num_prefix_tokens: int) -> None:
        super().__init__()
        if num_prefix_tokens < 1:
            raise InvalidOption(
                "pool 'pixio/prefix_mean' needs prefix tokens (class_token, num_registers), got 0; "
                "use pool='mean'"
            )
        self.reads = num_prefix_tokens

    def forward(self, tokens: Tensor, num_prefix_tokens: int, grid_size: tuple[int, int]) -> Tensor:
        return tokens[:, : self.reads].mean(dim=1)


class Neck(nn.Module):
    """Maps tokens to another width by a 1x1 and a 3x3 convolution over the grid, each with a norm.

    A prefix token is a grid of one token.

    Shapes: (b, p + n, d) to (b, p + n, channels).

    Args:
        embed_dim: d.
        channels: width of the result.

    Source: SAM, arXiv:2304.02643, appendix A; compared with `SamVisionNeck` of transformers.
    """

    def __init__(self, *, embed_dim: int, channels: int) -> None:
        super().__init__()
        self.width = channels
        self.conv1 = nn.Conv2d(embed_dim, channels, 1, bias=False)
        self.norm1 = nn.LayerNorm(channels, eps=1e-6)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, tokens: Tensor, num_prefix_tokens: int, grid_size: tuple[int, int]) -> Tensor:
        patches = self._encode(tokens[:, num_prefix_tokens:], *grid_size)
        if not num_prefix_tokens:
            return patches
        prefix = tokens[:, :num_prefix_tokens]
        each = self._encode(prefix.reshape(-1, 1, prefix.shape[2]), 1, 1)
        each = each.reshape(prefix.shape[0], num_prefix_tokens, -1)
        return torch.cat((each, patches), dim=1)

    def _encode(self, x: Tensor, rows: int, columns: int) -> Tensor:
        x = x.transpose(1, 2).reshape(x.shape[0], -1, rows, columns)  # (b, d, h, w)
        x = self.norm1(self.conv1(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.norm2(self.conv2(x).permute(0, 2, 3, 1)).flatten(1, 2)


class NeckPool(MeanPool):
    """Returns the average of the patch tokens after the neck of SAM.

    Shapes: (b, p + n, channels) to (b, channels); the network passes its tokens through `neck`.

    Args:
        embed_dim: width of the tokens before the neck.
        channels: width after it.

    Raises:
        InvalidOption: `channels` is no whole number of at least 1.

    Source: `VisionTransformerSAM` of timm; SAM itself reads the tokens.

    >>> pool = NeckPool(embed_dim=8, channels=4)
    >>> pool(pool.neck(torch.ones(1, 6, 8), 0, (2, 3)), 0, (2, 3)).shape
    torch.Size([1, 4])
    """

    def __init__(self, *, embed_dim: int, channels: int = 256) -> None:
        super().__init__()
        if type(channels) is not int or channels < 1:
            raise InvalidOption(f"channels must be a whole number of at least 1, got {channels!r}")
        self.neck = Neck(embed_dim=embed_dim, channels=channels)
