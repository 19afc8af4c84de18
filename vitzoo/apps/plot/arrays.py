"""The numbers of the plots, as arrays. No function here needs matplotlib.

Axis letters: `l` blocks, `h w` rows and columns of the grid of patches, `p` prefix tokens (class
token and registers), `n` patch tokens, `d` width, `c` channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitzoo.errors import InvalidOption, short_repr
from vitzoo.network.model import VisionTransformer
from vitzoo.parts import protocols
from vitzoo.parts.protocols import GRID, call

Array = NDArray[Any]
Arrays = dict[str, Array]
Layers = int | Sequence[int] | None
Patch = tuple[int, int]

MOST_FILTERS = 28  # of the picture in the ViT paper
MOST_PATCHES = 4_096  # the similarities of their pairs take 128 MiB
MAPS_AT_ONCE = 2**30  # bytes of the attention maps of an image that are held at the same time
COLOURS = 3
ADDED = "similarity of the vector that is added to its token with those of all patches"
ROTATED = "similarity of its rotated query with equal keys, rotated by the positions of all patches"
BIAS = "bias of its attention to all patches, mean over heads"


def patch_filters(model: VisionTransformer, count: int = MOST_FILTERS) -> Arrays:
    """Return the principal components of the kernels that read the pixels.

    The d kernels are centred by their mean. In each component, the number of largest magnitude is
    positive.

    Args:
        model: its patch embedder has one kernel (d, c, h, w) for the pixels.
        count: number of components; there may be fewer.

    Returns:
        `filters` (k, h, w, c), each of length 1, by falling variance, and `variance` (k,), the
        shares of the variance.

    Raises:
        InvalidOption: the patch embedder has no such kernel.

    Source: arXiv:2010.11929, figure 7 (left).
    """
    embedder: Any = model.patch_embed
    name = getattr(embedder, "input_conv", "proj.weight")
    kernel: Any = dict(embedder.named_parameters()).get(name)
    if kernel is None or kernel.dim() != 4:
        has = ", ".join(f"{key} {tuple(p.shape)}" for key, p in embedder.named_parameters())
        raise InvalidOption(
            f"the patch embedder {type(embedder).__name__} has no kernel {name} (d, c, h, w) that "
            f"reads the pixels; it has: {has or 'no parameters'}; choose another kind of plot"
        )
    out, c, h, w = kernel.shape
    components, _, variance = principal_components(_numpy(kernel).reshape(out, -1), count)
    return {
        "filters": components.reshape(-1, c, h, w).transpose(0, 2, 3, 1),
        "variance": variance,
    }


def position_similarity(
    model: VisionTransformer, layer: int = 0, heads: Sequence[int] | None = None
) -> tuple[Arrays, str]:
    """Return how similar the position of each patch is to that of each other patch.

    What is compared depends on the position embedding: cosines of the vectors that it adds to the
    tokens; or, for rotary positions, cosines between equal queries and keys after the rotation; or
    the attention bias, if it does not depend on the image.

    Args:
        model: with any position embedding.
        layer: index of the block that uses the positions.
        heads: the heads whose mean is returned; None: all.

    Returns:
        `similarity` (h, w, h, w), first the patch, then the patch that it is compared with; and a
        text that says what was compared. A bias has the name `bias` instead.

    Raises:
        InvalidOption: the model has no positions, or they depend on the image.

    Source: arXiv:2010.11929, figure 7 (centre).
    """
    grid, n = model.grid_size, model.grid_size[0] * model.grid_size[1]
    if n > MOST_PATCHES:
        raise InvalidOption(
            f"the positions of at most {MOST_PATCHES} patches are compared, the model has "
            f"{grid[0]}x{grid[1]}; choose a smaller image_size"
        )
    positions: Any = model.positions
    sample = next(model.parameters())
    prefix = model.num_prefix_tokens
    (layer,) = model.block_indices([layer])
    tokens = sample.new_zeros(1, prefix + n, model.embed_dim)
    run = partial(call, model.checked_parts.get("pos_embed"))
    # of shape (n, d)
    added = _numpy(run(positions, (tokens, model.pos_embed, layer), tokens.shape))[0, prefix:]
    if added.any():
        if heads is not None:
            raise InvalidOption(f"positions that are added to tokens have no heads; got {heads!r}")
        return {"similarity": _cosines(added).reshape(*grid, *grid)}, ADDED
    attention: Any = getattr(model.blocks[layer], "attn", None)
    if hasattr(positions, "rotate"):
        ones = sample.new_ones(1, attention.num_heads, prefix + n, attention.head_dim)
        # of shape (heads, n, head_dim)
        rotated = _numpy(run(positions.rotate, (ones, layer), ones.shape))[0, :, prefix:]
        chosen = rotated[_heads(heads, len(rotated))]
        similarity = np.mean([_cosines(one) for one in chosen], axis=0)
        return {"similarity": similarity.reshape(*grid, *grid)}, ROTATED
    bias: Any = None
    if hasattr(positions, "attention_bias"):
        bias = run(positions.attention_bias, (model.pos_embed, layer), protocols.BIAS)
    if isinstance(bias, Tensor):
        values = _numpy(bias)[:, prefix:, prefix:]
        values = values[_heads(heads, len(values))].mean(axis=0)
        return {"bias": values.reshape(*grid, *grid)}, BIAS
    what = f"the position embedding of this model ({type(positions).__name__})"
    if callable(bias):
        raise InvalidOption(f"{what} depends on the image, so its positions cannot be compared")
    raise InvalidOption(
        f"{what} adds nothing before block {layer}, so there is nothing to compare; "
        + (f"pass layers=[0], got {layer}" if layer else "choose another kind of plot")
    )


def attention_distance(
    model: VisionTransformer, images: Iterable[Tensor], layers: Layers = None
) -> Arrays:
    """Return the mean distance between a patch and the patches that it attends to.

    For each patch, the distances in px between its centre and the centres of all patches are
    averaged with its attention as weights. Prefix tokens are left out, and the attention to the
    patches is scaled to a sum of 1. Then the mean over patches and images is taken.

    Args:
        model: any.
        images: inputs (c, h, w) of the model.
        layers: blocks, as in `VisionTransformer.attention_maps`.

    Returns:
        `layers` (l,), indices of the blocks; `distance` (l, heads) in px; `to_prefix` (l, heads),
        the share of attention that patches pay to prefix tokens; `uniform` (), the distance in px
        of a head that attends to all patches equally.

    Source: arXiv:2010.11929, figure 7 (right) and appendix D.7, which do not say how the class
    token is treated.
    """
    wanted, prefix, count = sorted(set(model.block_indices(layers))), model.num_prefix_tokens, 0
    sums: dict[int, Array] = {}
    uniform = 0.0
    for image in images:
        apart = _distances(grid_of(model, image), patch_size(model, image))  # (n, n)
        count += 1
        uniform += float(apart.mean())
        for layer, maps in _attention(model, image, wanted):
            patches = maps[:, prefix:, prefix:]
            given = patches.sum(axis=-1)  # (heads, n)
            far = (patches * apart).sum(axis=-1) / np.maximum(given, np.finfo(float).tiny)
            found = np.stack((far.mean(axis=-1), 1 - given.mean(axis=-1)))  # (2, heads)
            sums[layer] = sums.get(layer, 0.0) + found
    means = np.stack([sums[layer] for layer in wanted], axis=1) / count  # (2, l, heads)
    return {
        "layers": np.array(wanted),
        "distance": means[0],
        "to_prefix": means[1] if prefix else np.zeros_like(means[1]),
        "uniform": np.array(uniform / count),
    }


def attention_of(
    model: VisionTransformer,
    image: Tensor,
    layers: Layers = None,
    heads: Sequence[int] | None = None,
    query: Patch | None = None,
) -> Arrays:
    """Return the attention of one token to the patches of an image.

    Args:
        model: any.
        image: input (c, h, w) of the model.
        layers: blocks, as in `VisionTransformer.attention_maps`.
        heads: indices of heads; None: all.
        query: (row, column) of the patch that attends. None: the class token, or the mean over all
            patches in a model without one.

    Returns:
        `layers` (l,) and `heads` (heads,), the indices; `attention` (l, heads, h, w), the
        probabilities; `to_prefix` (l, heads, p), the probabilities of the prefix tokens.
    """
    wanted, prefix = model.block_indices(layers), model.num_prefix_tokens
    grid = grid_of(model, image)
    rows = _rows(model, grid, query)
    found = {}
    for layer, maps in _attention(model, image, sorted(set(wanted))):
        chosen = _heads(heads, len(maps))
        found[layer] = maps[chosen][:, rows].mean(axis=1)  # (heads, p + n)
    stacked = np.stack([found[layer] for layer in wanted])  # (l, heads, p + n)
    return {
        "layers": np.array(wanted),
        "heads": np.array(chosen),
        "attention": stacked[..., prefix:].reshape(*stacked.shape[:2], *grid),
        "to_prefix": stacked[..., :prefix],
    }


def rollout_of(model: VisionTransformer, image: Tensor, query: Patch | None = None) -> Arrays:
    """Return the attention rollout of an image: the attention of all blocks, multiplied.

    The mean over heads of each block is averaged with the identity, for the residual connection.

    Args:
        model: any.
        image: input (c, h, w) of the model.
        query: as in `attention_of`.

    Returns:
        `rollout` (h, w), from the query to the patches, and `matrix` (p + n, p + n), from each
        token after the last block to each token before the first; each of its rows has the sum 1.

    Source: arXiv:2005.00928, section 3.
    """
    grid, prefix = grid_of(model, image), model.num_prefix_tokens
    matrix: Any = None
    for _, maps in _attention(model, image, range(len(model.blocks))):
        mixed = 0.5 * maps.mean(axis=0) + 0.5 * np.eye(maps.shape[-1])
        mixed /= mixed.sum(axis=-1, keepdims=True)
        matrix = mixed if matrix is None else mixed @ matrix
    row = matrix[_rows(model, grid, query)].mean(axis=0)
    return {"rollout": row[prefix:].reshape(grid), "matrix": matrix}


def token_colours(
    model: VisionTransformer, images: Sequence[Tensor], layers: Layers = None
) -> Arrays:
    """Return the first three principal components of the patch tokens as red, green and blue.

    The components of a block are those of the tokens of all images. In each component, the number
    of largest magnitude is positive. The values of each component are scaled to [0, 1] over all
    images.

    Args:
        model: any.
        images: inputs (c, h, w) of the model, all of one size.
        layers: blocks, as in `VisionTransformer.attention_maps`; None: the tokens after the final
            norm.

    Returns:
        `colours` (l, images, h, w, 3) in [0, 1]; `scores` of the same shape, before scaling;
        `components` (l, 3, d); `variance` (l, 3), their shares of the variance; `layers` (l,),
        the indices of the blocks, empty for the final norm (l = 1).

    Raises:
        InvalidOption: there are fewer than four patches.

    Source: arXiv:2304.07193, figure 1, without its threshold of the first component.
    """
    wanted = [] if layers is None else model.block_indices(layers)
    names = [f"blocks.{layer}" for layer in wanted] or ["norm"]
    grid, prefix = grid_of(model, images[0]), model.num_prefix_tokens
    if len(images) * grid[0] * grid[1] <= COLOURS:
        raise InvalidOption(
            f"{COLOURS} principal components need more than {COLOURS} patches, got "
            f"{grid[0]}x{grid[1]}; pass more images, or choose a larger image_size"
        )
    with evaluating(model):
        outputs = [model.features(image[None], names) for image in images]
    each = []
    for name in names:
        tokens = np.concatenate([_numpy(one[name])[0, prefix:] for one in outputs])
        components, scores, variance = principal_components(tokens, COLOURS)
        least, most = scores.min(axis=0), scores.max(axis=0)
        colours = (scores - least) / np.where(most > least, most - least, 1.0)
        shape = (len(images), *grid, COLOURS)
        each.append({"colours": colours.reshape(shape), "scores": scores.reshape(shape),
                     "components": components, "variance": variance})  # fmt: skip
    return stacked(each) | {"layers": np.array(wanted)}


def stacked(each: Sequence[Arrays]) -> Arrays:
    """Stack the arrays of the same names."""
    return {name: np.stack([one[name] for one in each]) for name in each[0]}


def principal_components(rows: Array, count: int) -> tuple[Array, Array, Array]:
    """Return the components (k, d) of (n, d) rows, the scores (n, k) and shares of variance (k,).

    Fewer than `count` components are returned if the rows have fewer dimensions.
    """
    centred = rows - rows.mean(axis=0)
    left, lengths, components = np.linalg.svd(centred, full_matrices=False)
    left, lengths, components = left[:, :count], lengths[:count], components[:count]
    largest = np.abs(components).argmax(axis=1)
    signs = np.sign(components[np.arange(len(components)), largest])
    whole = max(float((centred**2).sum()), np.finfo(float).tiny)
    return components * signs[:, None], left * lengths * signs, lengths**2 / whole


def grid_of(model: VisionTransformer, image: Tensor) -> tuple[int, int]:
    """Return the (h, w) grid of patches of an input (c, h, w)."""
    what, size = model.checked_parts.get("patch_embed"), tuple(image.shape[1:])
    return call(what, model.patch_embed.grid, (size,), GRID)


def patch_size(model: VisionTransformer, image: Tensor) -> tuple[float, float]:
    """Return height and width of a patch in px of an input (c, h, w)."""
    stated = getattr(model.patch_embed, "patch_size", None)
    grid = grid_of(model, image)
    return stated or (image.shape[1] / grid[0], image.shape[2] / grid[1])


@contextmanager
def evaluating(model: VisionTransformer) -> Iterator[None]:
    """Let a model compute as in evaluation, without gradients; then restore the mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def _attention(
    model: VisionTransformer, image: Tensor, layers: Sequence[int]
) -> Iterator[tuple[int, Array]]:
    """Yield the attention maps (heads, p + n, p + n) of blocks in rising order.

    The first blocks are computed again for each part of the blocks that fits into memory.
    """
    left, several = list(layers), 1
    while left:
        part, left = left[:several], left[several:]
        with evaluating(model):
            found = model.attention_maps(image[None], part)
        for layer in part:
            maps = found.pop(layer)[0]
            several = max(1, MAPS_AT_ONCE // (maps.numel() * maps.element_size()))
            yield layer, _numpy(maps)


def _rows(model: VisionTransformer, grid: tuple[int, int], query: Patch | None) -> list[int]:
    """Return the tokens whose attention is averaged."""
    prefix, (height, width) = model.num_prefix_tokens, grid
    if query is None:
        n = height * width
        return [0] if model.cls_token is not None else list(range(prefix, prefix + n))
    whole = isinstance(query, Sequence) and [type(i) for i in query] == [int, int]
    if not whole or not (0 <= query[0] < height and 0 <= query[1] < width):
        raise InvalidOption(
            f"query must be (row, column) of a patch, from (0, 0) to ({height - 1}, {width - 1}), "
            f"got {short_repr(query)}"
        )
    return [prefix + query[0] * width + query[1]]


def _heads(heads: Sequence[int] | None, count: int) -> list[int]:
    """Return indices of heads, each at least 0."""
    if heads is None:
        return list(range(count))
    whole = isinstance(heads, Sequence) and heads and all(type(i) is int for i in heads)
    if not whole or not all(-count <= i < count for i in heads):
        raise InvalidOption(
            f"heads must be a list of indices from 0 to {count - 1}, got {short_repr(heads)}"
        )
    return [i % count for i in heads]


def _distances(grid: tuple[int, int], size: tuple[float, float]) -> Array:
    """Return the distances in px between the centres of all patches, (n, n)."""
    rows, columns = np.indices(grid).reshape(2, -1)
    down, right = ((a[:, None] - a) * side for a, side in zip((rows, columns), size, strict=True))
    return np.hypot(down, right)


def _cosines(vectors: Array) -> Array:
    """Return the cosines between all (n, d) vectors; those of a zero vector are 0."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    units = vectors / np.maximum(lengths, np.finfo(float).tiny)
    return units @ units.T


def _numpy(tensor: Tensor) -> Array:
    return tensor.detach().to("cpu", torch.float64).numpy()
