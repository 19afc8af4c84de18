"""Shapes of the inputs of a `Predictor`; images of native sizes, grid by grid and in order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch import Tensor, nn

from vitzoo.apps.predict.decoding import Decoded
from vitzoo.apps.predict.outputs import Row
from vitzoo.errors import InvalidInput, InvalidOption
from vitzoo.images.transform import NativeTransform, Transform
from vitzoo.network.model import VisionTransformer
from vitzoo.network.sizes import sharing

BYTES_HELD = 2**28  # of inputs that wait for others of their grid, about
MOST_HELD = 1024  # of these inputs, and of rows that wait for an earlier one
CHUNKS_HELD = 16  # at least so many, or most chunks would be padded
MOST_OF_GRID = 32  # images in a forward pass on a GPU, for the same reason
Shape = tuple[int, ...]
Compute = Callable[[Iterable[Sequence[Decoded]]], Iterator[list[Row]]]


def of_any_size(model: nn.Module) -> nn.Module:
    """Return a network of the same parts that takes images of any whole number of patches.

    Raises:
        InvalidOption: the network has its own builder, or its positions cannot be interpolated.
    """
    fix = "leave native_size (--native-size) out"
    if not isinstance(model, VisionTransformer):
        raise InvalidOption(
            f"native_size: {type(model).__name__} is not of vitzoo's parts, and may take images of "
            f"one size only; {fix}"
        )
    model.check_movable("native_size", fix)
    other: VisionTransformer = sharing(model)
    other.dynamic = True
    return other


def input_shapes(transform: Transform) -> tuple[Shape, Shape]:
    """Return the shapes (c, h, w) of an input with the fewest and the most patches."""
    channels = len(transform.preprocessing.mean)
    if not isinstance(transform, NativeTransform):
        return ((channels, *transform.image_size),) * 2
    height, width = transform.patch_size
    return (channels, height, width), (channels, height, width * transform.max_patches)


def check_inputs(inputs: Iterable[Tensor], least: Shape, most: Shape) -> None:
    """Raise InvalidInput for a tensor that is not a whole number of patches as `input_shapes`."""
    for tensor in inputs:
        shape = tuple(tensor.shape)
        whole = len(shape) == 3 and not any(map(int.__mod__, shape, least))
        if not whole or shape[0] != least[0] or not 0 < math.prod(shape) <= math.prod(most):
            wanted = f"(c, h, w) = {least}"
            if least != most:
                wanted = "({}, h, w) with whole patches of {}x{} px".format(*least)
                wanted += f", at most {most[2] // least[2]}"
            raise InvalidInput(
                f"an input has the shape {shape}, expected {wanted}; prepare images with "
                "Predictor.decode"
            )


def check_one_shape(few: Mapping[str, Shape], many: Mapping[str, Shape]) -> None:
    """Raise InvalidOption if an output has another shape for few patches than for many."""
    for name, shape in few.items():
        if shape != many[name]:
            raise InvalidOption(
                f"the shape of the output {name!r} depends on the native size of an image: it is "
                f"{shape} to {many[name]}, expected one shape for all images; choose other "
                "outputs, such as 'pooled', or leave native_size (--native-size) out"
            )


def in_order(
    images: Iterable[Decoded], chunk: int, held: int, compute: Compute
) -> Iterator[list[Row]]:
    """Yield the rows of images in their order; compute them in chunks of one grid.

    Args:
        images: of any grids, and with errors.
        chunk: number of images in a forward pass.
        held: how many images after an image that waits are taken at most; then its chunk is padded.
        compute: yields the rows of each group of images of one grid, in order.
    """
    numbers: deque[int] = deque()  # of the images that are computed now
    done: dict[int, Row] = {}
    position = 0

    def groups() -> Iterator[list[Decoded]]:
        for group in by_grid(images, chunk, held):
            numbers.extend(group)
            yield list(group.values())

    for rows in compute(groups()):
        done.update((numbers.popleft(), row) for row in rows)
        ready = []
        while position in done:
            ready.append(done.pop(position))
            position += 1
        if ready:
            yield ready


def by_grid(images: Iterable[Decoded], chunk: int, held: int) -> Iterator[dict[int, Decoded]]:
    """Yield groups of at most `chunk` images of one grid by their numbers; an error is alone."""
    waiting: dict[Shape, dict[int, Decoded]] = {}  # the group with the oldest image is the first
    for number, image in enumerate(images):
        if image.tensor is None:
            yield {number: image}
        else:
            shape = tuple(image.tensor.shape)
            waiting.setdefault(shape, {})[number] = image
            if len(waiting[shape]) == chunk:
                yield waiting.pop(shape)
        first = next(iter(waiting), None)
        if first and number - next(iter(waiting[first])) >= held:
            yield waiting.pop(first)
    yield from waiting.values()


def held_of(most: Shape, chunk: int) -> int:
    """Return how many images `in_order` holds.

    Args:
        most: (c, h, w) of the largest input, in float32.
        chunk: number of images in a forward pass.
    """
    return max(CHUNKS_HELD * chunk, min(MOST_HELD, BYTES_HELD // (4 * math.prod(most))))
