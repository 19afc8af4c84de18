"""Checks of patch embedders against `vitzoo.parts.PatchEmbedder`."""

from __future__ import annotations

from contextlib import suppress
from math import lcm
from typing import Any

import torch
from torch import Tensor

from vitzoo.errors import InvalidOption
from vitzoo.testing.subject import ModuleSubject, Sizes, Subject, draw, fill

__tracebackhide__ = True
ORDER = "return tokens row by row, such as x.flatten(2).transpose(1, 2) of x (b, d, h, w)"
REFUSE = "raise vitzoo.InvalidOption for a size that does not fit, as vitzoo.parts.tiled does"
FEW_GRIDS = (
    "if only some grids fit, set the attribute grid_multiple = (rows, columns), or give "
    "Sizes(grid_size=...) in the `sizes` table of the test class"
)
MULTIPLE = "set grid_multiple to (rows, columns), positive integers: (2, 2) for even numbers"
AGREE = "let grid and forward agree; tokens are (b, n, d) with n = rows * columns"
KERNEL = (
    "input_conv is the name, in the state dict, of the kernel (out, in_chans, h, w) that reads the "
    "image; vitzoo adapts it to other channels when it loads weights"
)


class PatchEmbedder(ModuleSubject):
    """A patch embedder under test."""

    field_of_spec = "patch_embed"
    numbers = ("patch_size", "in_chans", "embed_dim")

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw (b, c, h, w) images."""
        return (self.images(batch),)

    def accept(self) -> None:
        """Raise InvalidOption if the part does not take its sizes."""
        self.build().grid(self.sizes.image_size)

    def rounded(self) -> Subject:
        """Return the subject; multiples of the part's `grid_multiple` replace the default grid."""
        subject: Subject = self
        if self.sizes.grid_size == Sizes.grid_size:
            with suppress(Exception), torch.random.fork_rng(devices=[]):  # the checks report it
                subject = self.changed(grid_size=_default_grid(self.build()))
        return subject


def check_grid(subject: PatchEmbedder) -> None:
    """`grid(image_size)` returns the grid of the tokens, for square and other images, and for 1, 3
    and 4 channels. `in_chans` is the number of channels that the part was built for. If it has the
    attribute `grid_multiple`, grids that are multiples work and other grids are refused.

    The grid of `sizes` must work. If `sizes` changes the default grid, the part may refuse others.
    """
    rows, columns = subject.sizes.grid_size
    part, image_size = subject.part(), subject.sizes.image_size
    high, wide = _grid_multiple(subject, part)
    grid = _require_grid(subject, part, image_size)
    side = _up(rows, lcm(high, wide))
    turned = (_up(columns, high), _up(rows, wide))
    may_refuse = subject.sizes.grid_size != _default_grid(part)
    twice = (2 * rows, columns)
    for grid_size in ((side, side), turned, (rows + high, columns), (rows, columns + wide), twice):
        size = subject.sizes.in_px(grid_size)
        if may_refuse and _refuses(part, size):
            continue
        found = _require_grid(subject, part, size)
        problem = f"the grid becomes {found} instead of {grid} when the height is doubled"
        higher = found[0] > grid[0] and found[1] == grid[1]
        subject.require(grid_size != twice or higher, problem, "sizes are (height, width)")
    for in_chans in (1, subject.sizes.in_chans, 4):
        other = subject.changed(in_chans=in_chans)
        part = other.part()
        problem = f"in_chans is {part.in_chans!r}, but it was built for {in_chans} channels"
        subject.require(part.in_chans == in_chans, problem, "set self.in_chans = in_chans")
        _require_grid(other, part, image_size)


def check_order(subject: PatchEmbedder) -> None:
    """Tokens follow the grid row by row: the last token of the first row sees the top right of the
    image, the first token of the last row sees the bottom left.

    The gradients of these tokens show which pixels they see. A part whose tokens all see the whole
    image passes.
    """
    rows, columns = subject.sizes.grid_size
    part: Any = fill(subject.part())
    images = subject.images(batch=1).requires_grad_()
    tokens = part(images)
    if not tokens.requires_grad:
        return  # check_gradients reports it
    ends = columns - 1, columns * (rows - 1)
    seen = []
    for token in ends:
        (gradient,) = torch.autograd.grad(tokens[0, token].pow(2).sum(), images, retain_graph=True)
        seen.append(_centre(gradient[0], subject.sizes.patch_size))
    (top, right), (bottom, left) = seen
    subject.require(
        right - left > -0.5 and bottom - top > -0.5,
        f"on a {rows}x{columns} grid, token {ends[0]} should see the top right of the image and "
        f"token {ends[1]} the bottom left, but they see patches (row {top:.1f}, column "
        f"{right:.1f}) and (row {bottom:.1f}, column {left:.1f})",
        ORDER,
    )


def check_sizes(subject: PatchEmbedder) -> None:
    """For an image size that does not fit, `grid` raises `InvalidOption`, or returns the grid of
    the tokens that such an image gives.
    """
    height, width = subject.sizes.image_size
    part = subject.part()
    for size in ((height + 1, width), (height, width - 1), (1, width), (height, 1)):
        try:
            refused = _refuses(part, size)
        except Exception as error:  # noqa: BLE001  # the message quotes it
            subject.fail(f"grid({size}) raises {type(error).__name__}: {error}", REFUSE)
        if not refused:
            _require_grid(subject, part, size)


def check_input_conv(subject: PatchEmbedder) -> None:
    """The kernel (out, in_chans, h, w) that reads the image is `proj.weight` in the state dict, or
    the attribute `input_conv` is its name.
    """
    part = subject.changed(in_chans=5).part()
    name = getattr(part, "input_conv", None)
    state = part.state_dict()
    reading = [key for key, t in state.items() if t.dim() == 4 and t.shape[1] == 5]
    if name is None:
        if reading and "proj.weight" not in reading:
            problem = f"{reading[0]} reads the channels of the image, but there is no input_conv"
            subject.fail(problem, f"add the attribute input_conv = {reading[0]!r}; {KERNEL}")
        return
    subject.require(name in state, f"input_conv is {name!r}, no key of its state dict", KERNEL)
    problem = f"with 5 channels, input_conv names {name!r} of shape {tuple(state[name].shape)}"
    subject.require(name in reading, problem, KERNEL)


def _default_grid(part: Any) -> tuple[int, int]:
    """Round the default grid up to multiples that a part states; rows and columns differ."""
    stated = getattr(part, "grid_multiple", (1, 1))
    high, wide = stated if _is_grid(stated) else (1, 1)
    rows, columns = _up(Sizes.grid_size[0], high), _up(Sizes.grid_size[1], wide)
    return rows, columns + wide * (rows == columns)


def _grid_multiple(subject: PatchEmbedder, part: Any) -> tuple[int, int]:
    """Return the part's `grid_multiple`; fail unless it refuses grids that are no multiples."""
    stated = getattr(part, "grid_multiple", (1, 1))
    subject.require(_is_grid(stated), f"grid_multiple is {stated!r}", MULTIPLE)
    rows, columns = subject.sizes.grid_size
    off = [(rows + 1, columns)] * (stated[0] > 1) + [(rows, columns + 1)] * (stated[1] > 1)
    for high, wide in off:
        accepts = f"grid_multiple is {stated}, but grid accepts an image of {high}x{wide} patches"
        subject.require(_refuses(part, subject.sizes.in_px((high, wide))), accepts, REFUSE)
    return stated


def _refuses(part: Any, image_size: tuple[int, int]) -> bool:
    try:
        part.grid(image_size)
    except InvalidOption:
        return True
    return False


def _is_grid(value: Any) -> bool:
    pair = isinstance(value, tuple) and len(value) == 2
    return pair and all(type(n) is int and n > 0 for n in value)


def _up(count: int, multiple: int) -> int:
    """Round a count up to a multiple."""
    return -(-count // multiple) * multiple


def _require_grid(
    subject: PatchEmbedder, part: Any, image_size: tuple[int, int]
) -> tuple[int, int]:
    """Return the grid of an image; fail unless the part gives as many tokens."""
    try:
        grid: tuple[int, int] = part.grid(image_size)
    except InvalidOption as error:
        high, wide = (n / px for n, px in zip(image_size, subject.sizes.patch_size, strict=True))
        subject.fail(f"grid refuses an image of {high:g}x{wide:g} patches: {error}", FEW_GRIDS)
    problem = f"grid({image_size}) returns {grid!r}, expected (rows, columns), at least 1"
    subject.require(_is_grid(grid), problem, REFUSE)
    images = draw(2, part.in_chans, *image_size)
    with torch.no_grad(), subject.doing(f"given images of {image_size} px"):
        shape = tuple(part.eval()(images).shape)
    expected = (2, grid[0] * grid[1], subject.sizes.embed_dim)
    problem = f"grid({image_size}) is {grid}, so two images should give tokens of shape {expected}"
    subject.require(shape == expected, f"{problem}, but it is {shape}", AGREE)
    return grid


def _centre(gradient: Tensor, patch_size: tuple[int, int]) -> tuple[float, float]:
    """Return the centre (row, column), in patches, of a gradient's squares."""
    energy = gradient.double().pow(2).sum(0)
    if not energy.any():
        return 0.0, 0.0  # the token sees nothing, as in a part that subtracts the batch's mean
    rows, columns = (
        (energy.sum(1 - axis) / energy.sum() * torch.arange(energy.shape[axis])).sum()
        for axis in (0, 1)
    )
    return float(rows) / patch_size[0] - 0.5, float(columns) / patch_size[1] - 0.5
