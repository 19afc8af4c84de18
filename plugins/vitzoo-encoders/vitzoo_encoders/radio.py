"""The parts of C-RADIO in transformers: normalised patches, cropped positions, a summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.errors import InvalidInput, InvalidOption
from vitzoo.parts import ConvPatchEmbed, linear_head

Size = tuple[int, int]


class NormalisedPatchEmbed(ConvPatchEmbed):
    """Normalises the pixels, then projects the patches.

    Shapes: (b, c, h, w) images to (b, n, d) tokens, n = (h / patch) * (w / patch).

    Args:
        patch_size: (height, width) in px.
        in_chans: number c of image channels.
        embed_dim: width d.
        mean, std: of the pixels, one number or one for each channel; buffers of the part.
        bias, norm, norm_eps: as in `ConvPatchEmbed`.

    Raises:
        InvalidOption: an option has no such value.

    Source: `RadioInputConditioner` of transformers.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        *,
        patch_size: Size,
        in_chans: int,
        embed_dim: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        bias: bool = True,
        norm: str = "none",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(
            patch_size=patch_size,
            in_chans=in_chans,
            embed_dim=embed_dim,
            bias=bias,
            norm=norm,
            norm_eps=norm_eps,
        )
        for name, values in (("mean", mean), ("std", std)):
            good = isinstance(values, list | tuple) and len(values) in (1, in_chans)
            if not good or not all(_finite(x) and (x or name == "mean") for x in values):
                raise InvalidOption(
                    f"{name} must be one number or {in_chans}, a std not 0, got {values!r}"
                )
            channels = torch.tensor(list(values), dtype=torch.float32).expand(in_chans)
            self.register_buffer(name, channels.clone()[:, None, None])  # (c, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        pixels = (images.float() - self.mean.float()) / self.std.float()
        return super().forward(pixels.to(images.dtype))


class CroppedPositions(nn.Module):
    """Adds a large learned table, interpolated to the longer side of the grid, then cropped.

    The table is that of a square of `side` x `side` patches at every image size. It is interpolated
    bilinearly in every call. Prefix tokens have no positions.

    Shapes: tokens and result (b, p + n, d); table (1, side * side, d).

    Args:
        grid_size: (h, w) in patches.
        num_prefix_tokens, embed_dim: p and d.
        side: number of patches.

    Raises:
        InvalidOption: `side` is no whole number of at least 1.

    Source: `RadioPatchEmbeddings` of transformers.
    """

    def __init__(
        self, *, grid_size: Size, num_prefix_tokens: int, embed_dim: int, side: int = 128
    ) -> None:
        super().__init__()
        if type(side) is not int or not 1 <= side <= 1024:
            raise InvalidOption(f"side must be a number of patches from 1 to 1024, got {side!r}")
        self.grid_size = grid_size
        self.num_prefix_tokens = num_prefix_tokens
        self.embed_dim = embed_dim
        self.side = side

    def initial_table(self, grid_size: Size) -> Tensor:
        table = torch.empty(1, self.side**2, self.embed_dim)
        return table if table.is_meta else nn.init.normal_(table, std=0.02)

    def resample(self, table: Tensor, old: Size, new: Size) -> Tensor:
        """Return the table, which is that of every grid."""
        return table

    def to_grid(self, grid_size: Size) -> None:
        self.grid_size = grid_size

    def forward(self, tokens: Tensor, table: Tensor, layer: int = 0) -> Tensor:
        if layer:
            return tokens
        (rows, columns), longer = self.grid_size, max(self.grid_size)
        grid = table.reshape(1, self.side, self.side, -1).permute(0, 3, 1, 2).float()
        grid = F.interpolate(grid, size=(longer, longer), mode="bilinear", align_corners=False)
        added = grid[:, :, :rows, :columns].flatten(2).transpose(1, 2)  # (1, n, d)
        prefix, patches = tokens.tensor_split((self.num_prefix_tokens,), dim=1)
        return torch.cat((prefix, patches + added.to(patches.dtype)), dim=1)


class SummaryPool(nn.Module):
    """Returns some of the prefix tokens.

    Shapes: (b, p + n, d) to (b, t, d).

    Args:
        num_prefix_tokens: p.
        indices: of the t tokens, from 0 to p - 1.

    Raises:
        InvalidOption: there is no index, or no such token.

    Source: `summary_idxs` of `RadioModel` of transformers.

    >>> SummaryPool(num_prefix_tokens=3, indices=(0, 2))(torch.ones(1, 7, 8), 3, (2, 2)).shape
    torch.Size([1, 2, 8])
    """

    norm_first = True

    def __init__(self, *, num_prefix_tokens: int, indices: Sequence[int] = (0,)) -> None:
        super().__init__()
        good = isinstance(indices, list | tuple) and bool(indices)
        if not good or not all(type(i) is int and 0 <= i < num_prefix_tokens for i in indices):
            raise InvalidOption(
                f"indices must be some of the {num_prefix_tokens} prefix tokens (class_token, "
                f"num_registers), counted from 0, got {indices!r}"
            )
        self.indices = list(indices)
        self.tokens = len(indices)
        self.reads = max(indices) + 1

    def forward(self, tokens: Tensor, num_prefix_tokens: int, grid_size: Size) -> Tensor:
        return torch.stack([tokens[:, index] for index in self.indices], dim=1)


class SummaryHead(nn.Module):
    """Joins several vectors, with a linear layer if there are classes.

    Shapes: (b, t, d) to (b, k); pre-logits (b, t d).

    Args:
        in_dim: d.
        num_classes: k; with 0 there is no layer, and the outputs are the pre-logits.
        tokens: t.

    Source: the `summary` of `RadioModel` of transformers.

    >>> SummaryHead(in_dim=4, num_classes=0, tokens=2)(torch.ones(3, 2, 4)).shape
    torch.Size([3, 8])
    """

    def __init__(self, *, in_dim: int, num_classes: int, tokens: int = 1) -> None:
        super().__init__()
        if type(tokens) is not int or not 1 <= tokens <= 1024:
            raise InvalidOption(f"tokens must be a whole number from 1 to 1024, got {tokens!r}")
        self.in_dim, self.num_classes, self.tokens = in_dim, num_classes, tokens
        self.pre_logits_dim = tokens * in_dim
        self.linear = linear_head(in_dim=tokens * in_dim, num_classes=num_classes)

    def reset(self, num_classes: int) -> SummaryHead:
        """Return a newly initialised head for other classes."""
        return SummaryHead(in_dim=self.in_dim, num_classes=num_classes, tokens=self.tokens)

    def forward(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Map (b, t, d) vectors to logits (b, k).

        Raises:
            InvalidInput: the input is not t vectors.
        """
        if isinstance(tokens, Tensor) and (tokens.dim() != 3 or tokens.shape[1] != self.tokens):
            raise InvalidInput(
                f"head 'radio/summary' reads {self.tokens} vectors, (b, {self.tokens}, d), got "
                f"{tuple(tokens.shape)}; the network needs pool = 'radio/summary'"
            )
        x: Tensor = tokens.flatten(1)  # (b, t d)
        return x if pre_logits or not self.num_classes else self.linear(x)


def _finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
