"""Images of several sizes and aspect ratios in one packed sequence."""
# ruff: noqa: SLF001  # the network for each size is the same network

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidInput, InvalidOption
from vitzoo.network.sizes import Sizes
from vitzoo.parts.attention import Attention
from vitzoo.parts.block import Blocks, MergingBlock
from vitzoo.parts.drop_path import MaskDropPath
from vitzoo.schema.reader import describe

FIX = "vitzoo.transform(model, native_size=True) prepares an image"


class Group(NamedTuple):
    """Images of one size in a packed sequence.

    Args:
        model: the network for images of this size.
        indices: of the images in the batch.
        length: number p + n of tokens of each image.
    """

    model: Any
    indices: list[int]
    length: int

    @property
    def shape(self) -> tuple[int, int]:
        """Number of images, and of tokens of each."""
        return len(self.indices), self.length


class MixedSizes(Sizes):
    """Calls with images of several sizes.

    The tokens of all images are one sequence (1, sum of p + n, d). Norms and MLPs act on it as a
    whole. Attention, positions and pool act on the images of each size as a batch, so that no image
    sees another one and no token is padding.
    """

    embed: Callable[[Tensor], Tensor]

    def forward_packed(self, images: Sequence[Tensor] | Mapping[str, Any]) -> Tensor:
        """Map b images of several sizes to (b, k) logits.

        The results equal those of single images of a model with `dynamic`, up to rounding. Drop
        path of the mode `subset` acts as `mask`: it computes the branches of all images.

        Args:
            images: tensors (c, h, w) of whole numbers of patches, as `vitzoo.transform(model,
                native_size=True)` gives; or the output of transformers' `Siglip2ImageProcessor`.

        Raises:
            InvalidInput: the model does not accept an image.
            InvalidOption: the positions cannot be interpolated, or blocks merge tokens.
        """
        groups, x = self._packed(images)
        parts = zip(groups, _split(x, groups), strict=True)
        pooled = torch.cat([group.model._pooled(tokens) for group, tokens in parts])  # (b, d)
        order = torch.tensor([i for group in groups for i in group.indices], device=x.device)
        logits: Tensor = self._logits(pooled[order.argsort()])
        return logits

    def forward_features_packed(self, images: Sequence[Tensor] | Mapping[str, Any]) -> list[Tensor]:
        """Return the (p + n, d) tokens after the final norm of each image, see `forward_packed`."""
        groups, x = self._packed(images)
        tokens = [image for part in _split(x, groups) for image in part]
        indices = [i for group in groups for i in group.indices]
        return [tokens[i] for i in sorted(range(len(indices)), key=indices.__getitem__)]

    def _packed(self, images: Sequence[Tensor] | Mapping[str, Any]) -> tuple[list[Group], Tensor]:
        """Return the groups of images, and their tokens (1, sum of p + n, d) after the norm."""
        if any(isinstance(block, MergingBlock) for block in self.blocks):
            raise InvalidOption(
                "forward_packed: block merge joins tokens of images of one size; create the model "
                "with merge=0, or call it with images of one size"
            )
        if isinstance(images, Mapping):
            images = unpatched(images, self.patch_embed.in_chans)
        sizes = _by_size(images, self.patch_embed.in_chans)
        if not self.dynamic and sizes.keys() != {self.image_size}:
            self.check_movable("forward_packed", "pass images of the model's size")
        groups, tokens = [], []
        for indices in sizes.values():
            batch = torch.stack([images[i] for i in indices])
            try:
                model = self._sized(batch) if self._fits(batch) else self
            except InvalidInput as error:
                raise InvalidInput(f"forward_packed: image {indices[0]}: {error}; {FIX}") from error
            tokens.append(model.embed(batch))  # (g, p + n, d)
            groups.append(Group(model, indices, tokens[-1].shape[1]))
        return groups, self._for_groups(groups).forward_features(_join(tokens))

    def _for_groups(self, groups: Sequence[Group]) -> Any:
        """Return the model whose input is the packed sequence; it shares all parameters."""

        def positioned(x: Tensor, layer: int) -> Tensor:
            parts = _split(x, groups)
            moved = [g.model._positioned(t, layer) for g, t in zip(groups, parts, strict=True)]
            same = all(a is b for a, b in zip(moved, parts, strict=True))
            return x if same else _join(moved)

        def normed(x: Tensor) -> Tensor:
            parts = zip(groups, _split(x, groups), strict=True)
            return _join([group.model._normed(tokens) for group, tokens in parts])

        model = copy(self)
        blocks = (_packing(block, layer, groups) for layer, block in enumerate(self.blocks))
        vars(model).update(
            _modules={**self._modules, "blocks": Blocks(*blocks)},
            _positioned=positioned,
            _acts=lambda _: (None, None),  # `EachSize` asks the model of each size
            _windows=lambda _: {},
            _normed=normed,
            embed=lambda x: x,
            dynamic=False,
        )
        return model


class EachSize(nn.Module):
    """Calls an attention, or a whole block, with the images of each size in a packed sequence.

    Shapes: (1, sum of p + n, d) to the same.
    """

    def __init__(self, part: nn.Module, layer: int, groups: Sequence[Group]) -> None:
        super().__init__()
        self.part, self.layer, self.groups = part, layer, groups

    def forward(self, x: Tensor, *_: object) -> Tensor:
        found = []
        for group, tokens in zip(self.groups, _split(x, self.groups), strict=True):
            model = group.model
            given = model._acts(self.layer)
            found.append(self.part(tokens, *given, **model._windows(self.layer)))
        return _join(found)


class PackedAttention(EachSize):
    """Attention within the images of a packed sequence; the projections act on all of them."""

    def forward(self, x: Tensor, *_: object) -> Tensor:
        attn: Any = self.part
        found, sizes = [], [math.prod(group.shape) for group in self.groups]
        projected = (t.split(sizes, dim=2) for t in attn._project(x, None))
        for group, *parts in zip(self.groups, *projected, strict=True):
            rotate, bias = group.model._acts(self.layer)
            q, k, v = (t[0].unflatten(1, group.shape).transpose(0, 1) for t in parts)
            if rotate is not None:
                q, k = rotate(q), rotate(k)  # (g, heads, p + n, head_dim)
            found.append(attn._attend(q, k, v, bias))
        return attn.proj_drop(attn.proj(attn.norm(_join(found))))


class PackedDropPath(MaskDropPath):
    """Drop path for each image of a packed sequence (1, n, d) of images of the given lengths."""

    def __init__(self, *, rate: float, lengths: Sequence[int]) -> None:
        super().__init__(rate=rate)
        self.lengths = lengths

    def _kept(self, x: Tensor) -> Tensor:
        each = x.new_empty(len(self.lengths)).bernoulli_(1 - self.rate)
        lengths = torch.tensor(self.lengths, device=x.device)
        return each.repeat_interleave(lengths)[None, :, None]


def _packing(block: Any, layer: int, groups: Sequence[Group]) -> nn.Module:
    """Return a block for packed sequences, which shares all parameters with the given one."""
    drop_path = getattr(block, "drop_path", None)
    if not isinstance(drop_path, MaskDropPath) or not hasattr(block, "attn"):
        return EachSize(block, layer, groups)  # a block of the user's own
    lengths = [group.length for group in groups for _ in group.indices]
    whole = type(block.attn) is Attention and not getattr(block, "window", 0)
    fresh = {
        "attn": (PackedAttention if whole else EachSize)(block.attn, layer, groups),
        "drop_path": PackedDropPath(rate=drop_path.rate, lengths=lengths).train(drop_path.training),
    }
    packing = copy(block)
    vars(packing).update(_modules={**block._modules, **fresh})
    return packing


def _split(x: Tensor, groups: Sequence[Group]) -> list[Tensor]:
    """Return the tokens (g, p + n, d) of the images of each group of a packed sequence."""
    parts = torch.split(x[0], [math.prod(group.shape) for group in groups])
    return [part.view(*g.shape, -1) for g, part in zip(groups, parts, strict=True)]


def _join(tokens: Sequence[Tensor]) -> Tensor:
    return torch.cat([part.flatten(0, 1) for part in tokens])[None]


def _by_size(images: Sequence[Tensor], channels: int) -> dict[tuple[int, int], list[int]]:
    """Return the indices of the images of each size (h, w) in px.

    Raises:
        InvalidInput: there is no image, or one is no floating tensor (channels, h, w).
    """
    sizes: dict[tuple[int, int], list[int]] = {}
    for i, image in enumerate(images):
        tensor = isinstance(image, Tensor)
        fits = tensor and image.is_floating_point() and image.dim() == 3
        if not fits or len(image) != channels:
            got = f"{image.dtype} of shape {tuple(image.shape)}" if tensor else describe(image)
            raise InvalidInput(
                f"forward_packed: expected images as floating-point tensors ({channels}, h, w), "
                f"got image {i} as {got}; {FIX}"
            )
        sizes.setdefault((image.shape[1], image.shape[2]), []).append(i)
    if not sizes:
        raise InvalidInput("forward_packed: expected at least one image, got none; pass a list")
    return sizes


def unpatched(inputs: Mapping[str, Any], channels: int) -> list[Tensor]:
    """Return the images (c, h, w) in the output of transformers' `Siglip2ImageProcessor`.

    Args:
        inputs: `pixel_values` (b, n, patch * patch * c), `spatial_shapes` (b, 2) in patches, and
            `pixel_attention_mask` (b, n) or None.
        channels: c.

    Raises:
        InvalidInput: something is missing, or the shapes do not fit.
    """
    pixels, shapes = inputs.get("pixel_values"), inputs.get("spatial_shapes")
    if not isinstance(pixels, Tensor) or not isinstance(shapes, Tensor):
        raise InvalidInput(
            "forward_packed: expected pixel_values and spatial_shapes as tensors, got "
            f"{', '.join(map(str, inputs)) or 'none'}; pass the output of the processor with "
            "return_tensors='pt'"
        )
    mask, grids = inputs.get("pixel_attention_mask"), shapes.tolist()
    counts = [rows * columns for rows, columns in grids]
    side = math.isqrt(pixels.shape[-1] // channels)
    fit = side * side * channels == pixels.shape[-1] and max(counts) <= pixels.shape[1]
    if not fit or not (mask is None or mask.sum(dim=1).tolist() == counts):
        raise InvalidInput(
            f"forward_packed: pixel_values of shape {tuple(pixels.shape)} and the mask do not fit "
            f"spatial_shapes {grids} of square patches with {channels} channels; pass the output "
            "of the processor unchanged"
        )
    images = []
    for patches, count, (rows, columns) in zip(pixels, counts, grids, strict=True):
        image = patches[:count].reshape(rows, columns, side, side, channels)
        image = image.permute(4, 0, 2, 1, 3)  # (c, rows, patch, columns, patch)
        images.append(image.reshape(channels, rows * side, columns * side))
    return images
