"""Images of several sizes and aspect ratios in one packed sequence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitzoo.errors import InvalidInput, InvalidOption
from vitzoo.network.calls import Place, placed
from vitzoo.network.sizes import Sizes
from vitzoo.parts.attention import Attention
from vitzoo.parts.block import Block, MergingBlock, ParallelBlock
from vitzoo.parts.drop_path import MaskDropPath
from vitzoo.parts.packed import Packed, joined
from vitzoo.schema.reader import describe

FIX = "vitzoo.transform(model, native_size=True) prepares an image"


class Group(NamedTuple):
    """Images of one size in a packed sequence.

    Args:
        place: what the network needs for images of this size.
        indices: of the images in the batch.
        length: number p + n of tokens of each image.
    """

    place: Place
    indices: list[int]
    length: int


class MixedSizes(Sizes):
    """Calls with images of several sizes.

    The tokens of all images are one sequence (1, sum of p + n, d). Norms and MLPs act on it as a
    whole. Attention, positions and pool act on the images of each size as a batch, so that no image
    sees another one and no token is padding.
    """

    embed: Callable[[Tensor], Tensor]
    _called: Callable[..., Any]

    def forward_packed(self, images: Iterable[Tensor] | Mapping[str, Any]) -> Tensor:
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
        groups, tokens = self._packed(images)
        pooled = [image for part in self._each(groups, tokens, self._pooled) for image in part]
        logits: Tensor = self._logits(torch.stack(_in_order(groups, pooled)))  # of (b, d)
        return logits

    def forward_features_packed(self, images: Iterable[Tensor] | Mapping[str, Any]) -> list[Tensor]:
        """Return the (p + n, d) tokens after the final norm of each image, see `forward_packed`."""
        groups, found = self._packed(images)
        return _in_order(groups, [image for part in found for image in part])

    def _packed(
        self, images: Iterable[Tensor] | Mapping[str, Any]
    ) -> tuple[list[Group], list[Tensor]]:
        """Return the groups of images, and the tokens (g, p + n, d) of each after the norm."""
        if any(isinstance(block, MergingBlock) for block in self.blocks):
            raise InvalidOption(
                "forward_packed: block merge joins tokens of images of one size; create the model "
                "with merge=0, or call it with images of one size"
            )
        channels = self.patch_embed.in_chans
        images = unpatched(images, channels) if isinstance(images, Mapping) else _listed(images)
        sizes = _by_size(images, channels)
        if not self.dynamic and sizes.keys() != {self.image_size}:
            self.check_movable("forward_packed", "pass images of the model's size")
        groups, tokens = [], []
        for indices in sizes.values():
            batch = torch.stack([images[i] for i in indices])
            try:
                place = self._place_of(batch) if self._fits(batch) else self._place
            except InvalidInput as error:
                raise InvalidInput(f"forward_packed: image {indices[0]}: {error}; {FIX}") from error
            with placed(self, place):
                tokens.append(self.embed(batch))  # (g, p + n, d)
            groups.append(Group(place, indices, tokens[-1].shape[1]))
        shapes = [(len(group.indices), group.length) for group in groups]
        x = self.blocks(joined(tokens), run=partial(self._encode_packed, groups, Packed(shapes)))
        return groups, self._each(groups, Packed(shapes).split(x), self._normed)

    def _each(
        self, groups: Sequence[Group], parts: Sequence[Any], compute: Callable[[Any], Any]
    ) -> list[Any]:
        """Return what a method of the network returns for each size and its part."""
        found = []
        for group, part in zip(groups, parts, strict=True):
            with placed(self, group.place):
                found.append(compute(part))
        return found

    def _encode_packed(
        self, groups: Sequence[Group], packed: Packed, x: Tensor, layer: int
    ) -> Tensor:
        """Run block `layer`, with its positions, on a packed sequence (1, sum of p + n, d)."""
        if layer:
            parts = packed.split(x)
            moved = self._each(groups, parts, lambda tokens: self._positioned(tokens, layer))
            same = all(a is b for a, b in zip(moved, parts, strict=True))
            x = x if same else joined(moved)
        if _takes_packed(self.blocks[layer]):
            acts = self._each(groups, [layer] * len(groups), self._acts)
            given = packed._replace(acts=acts)
            encoded: Tensor = self._called(layer, x, None, None, None, windows=given)
            return encoded

        def alone(tokens: Tensor) -> Tensor:
            return self._called(layer, tokens, *self._acts(layer), **self._windows(layer))

        return joined(self._each(groups, packed.split(x), alone))


def _takes_packed(block: Any) -> bool:
    """Return whether a block computes a packed sequence: one of vitzoo's own, without windows."""
    own = type(block).forward in (Block.forward, ParallelBlock.forward)
    drop_path = getattr(block, "drop_path", None)
    if not own or block.window or not isinstance(drop_path, MaskDropPath):
        return False
    return type(block.attn).forward is Attention.forward


def _in_order(groups: Sequence[Group], found: Sequence[Tensor]) -> list[Tensor]:
    """Return what belongs to the images, group by group, in the order of the batch.

    The order is not copied to the device, which would wait for the computation.
    """
    indices = [i for group in groups for i in group.indices]
    return [found[i] for i in sorted(range(len(indices)), key=indices.__getitem__)]


def _listed(images: Any) -> list[Tensor]:
    """Return images as a list; they may come from a generator."""
    if not isinstance(images, Iterable):
        raise InvalidInput(
            f"forward_packed: expected images (c, h, w) one after the other, got "
            f"{describe(images)}; pass a list"
        )
    return list(images)


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
