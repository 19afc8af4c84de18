"""Checks of patch embedders against `vitzoo.parts.PatchEmbedder`."""

from __future__ import annotations

from contextlib import suppress
from math import lcm
from typing import Any, cast

import torch
from torch import Tensor

from vitzoo.errors import InvalidOption
from vitzoo.parts import protocols
from vitzoo.testing.subject import ModuleSubject, Sizes, Subject, doing, draw, fail, fill, require

__tracebackhide__ = True
ORDER = (
    "return tokens row by row, for example `x.flatten(2).transpose(1, 2)` of x (b, d, h, w); sizes "
    "are (height, width)"
)
REFUSE = (
    "raise vitzoo.InvalidOption for an image_size that does not fit, as vitzoo.parts.tiled does"
)


class PatchEmbedder(ModuleSubject):
    """A patch embedder under test."""

    kind = "patch embedder"
    field_of_spec = "patch_embed"
    numbers = ("patch_size", "in_chans", "embed_dim")
    protocol = protocols.PatchEmbedder

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw (b, c, h, w) images."""
        return (self.images(batch),)

    def accepted(self) -> Subject:
        """Return the subject with a grid that the part accepts, or raise InvalidOption."""
        part = self.build()
        subject: Subject = self.changed(grid_size=_default_grid(part))
        part.grid(subject.sizes.image_size)
        return subject

    def rounded(self) -> Subject:
        """Return the subject; multiples of the part's `grid_multiple` replace the default grid."""
        if self.sizes.grid_size == Sizes.grid_size:
            with suppress(Exception), torch.random.fork_rng(devices=[]):  # the checks report it
                return cast(Subject, self.changed(grid_size=_default_grid(self.build())))
        return self


def check_grid(subject: PatchEmbedder) -> None:
    """`grid(image_size)` returns the grid of the tokens, for square and other images, and for 1, 3
    and 4 channels. `in_chans` is the number of channels that the part was built for. If it has the
    attribute `grid_multiple`, grids that are multiples work and other grids are refused.

    The grid of `sizes` must work. If `sizes` changes the default grid, the part may refuse others.
    """
    rows, columns = subject.sizes.grid_size
    part = subject.part()
    high, wide = _grid_multiple(subject, part)
    _require_grid(subject, part, subject.sizes.image_size)
    side = _up(rows, lcm(high, wide))
    twice = (2 * rows, columns)
    turned = (_up(columns, high), _up(rows, wide))
    may_refuse = subject.sizes.grid_size != _default_grid(part)
    for grid_size in ((side, side), turned, (rows + high, columns), (rows, columns + wide), twice):
        image_size = subject.sizes.in_px(grid_size)
        if may_refuse and _refuses(part, image_size):
            continue
        _require_grid(subject, part, image_size)
        if grid_size == twice:
            low, tall = part.grid(subject.sizes.image_size), part.grid(image_size)
            require(
                low[0] < tall[0] and low[1] == tall[1],
                f"{subject}: the grid of an image becomes {tall} instead of {low} when its height "
                "is doubled, expected more rows and as many columns",
                "sizes and grids are (height, width)",
            )
    for in_chans in (1, subject.sizes.in_chans, 4):
        other = subject.changed(in_chans=in_chans)
        part = other.part()
        require(
            part.in_chans == in_chans,
            f"{subject}: in_chans is {part.in_chans!r}, but it was built for {in_chans} channels",
            "set self.in_chans = in_chans",
        )
        _require_grid(other, part, subject.sizes.image_size)


def check_order(subject: PatchEmbedder) -> None:
    """Tokens follow the grid row by row: the last token of the first row sees the top right of the
    image, the first token of the last row sees the bottom left.

    The gradients of these tokens show which pixels they see. A part whose tokens all see the whole
    image passes.
    """
    grid = rows, columns = subject.sizes.grid_size
    part: Any = fill(subject.part())
    images = draw(1, subject.sizes.in_chans, *subject.sizes.in_px(grid)).requires_grad_()
    tokens = part(images)
    if not tokens.requires_grad:
        return  # check_gradients reports it
    seen = []
    for token in (columns - 1, columns * (rows - 1)):
        (gradient,) = torch.autograd.grad(tokens[0, token].pow(2).sum(), images, retain_graph=True)
        seen.append(_centre(gradient[0], subject.sizes.patch_size))
    (top, right), (bottom, left) = seen
    require(
        right - left > -0.5 and bottom - top > -0.5,
        f"{subject}: on a {rows}x{columns} grid, token {columns - 1} should see the top right of "
        f"the image and token {columns * (rows - 1)} the bottom left, but they see patches "
        f"(row {top:.1f}, column {right:.1f}) and (row {bottom:.1f}, column {left:.1f})",
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
            grid = part.grid(size)
        except InvalidOption:
            continue
        except Exception as error:  # noqa: BLE001  # the message quotes it
            fail(f"{subject}: grid({size}) raises {type(error).__name__}: {error}", REFUSE)
        require(
            isinstance(grid, tuple) and len(grid) == 2 and min(grid) > 0,
            f"{subject}: grid({size}) returns {grid!r}, expected at least one row and column",
            REFUSE,
        )
        _require_grid(subject, part, size)


def check_input_conv(subject: PatchEmbedder) -> None:
    """The kernel (out, in_chans, h, w) that reads the image is `proj.weight` in the state dict, or
    the attribute `input_conv` is its name.
    """
    part = subject.changed(in_chans=5).part()
    name = getattr(part, "input_conv", None)
    state = part.state_dict()
    fix = (
        "input_conv is the name, in the state dict, of the kernel (out, in_chans, h, w) that reads "
        "the image; vitzoo adapts it to other channels when it loads weights"
    )
    if name is None:
        reading = [key for key, t in state.items() if t.dim() == 4 and t.shape[1] == 5]
        found = reading[0] if reading else "proj.weight"
        require(
            "proj.weight" in (found, *reading),
            f"{subject}: {found} reads the channels of the image, but there is no input_conv",
            f"add the attribute input_conv = {found!r}; {fix}",
        )
        return
    require(name in state, f"{subject}: input_conv is {name!r}, no key of its state dict", fix)
    shape = tuple(state[name].shape)
    require(
        len(shape) == 4 and shape[1] == 5,
        f"{subject}: with 5 channels, input_conv names {name!r} of shape {shape}",
        fix,
    )


def _default_grid(part: Any) -> tuple[int, int]:
    """Round the default grid up to multiples that a part states; rows and columns differ."""
    stated = getattr(part, "grid_multiple", (1, 1))
    high, wide = stated if _is_pair(stated) and min(stated) > 0 else (1, 1)
    rows, columns = _up(Sizes.grid_size[0], high), _up(Sizes.grid_size[1], wide)
    return rows, columns + wide * (rows == columns)


def _grid_multiple(subject: PatchEmbedder, part: Any) -> tuple[int, int]:
    """Return the part's `grid_multiple`; fail unless it refuses grids that are no multiples."""
    stated = getattr(part, "grid_multiple", (1, 1))
    require(
        _is_pair(stated) and min(stated) > 0,
        f"{subject}: grid_multiple is {stated!r}",
        "set it to (rows, columns), positive integers: (2, 2) for even numbers of rows and columns",
    )
    rows, columns = subject.sizes.grid_size
    off = [(rows + 1, columns)] * (stated[0] > 1) + [(rows, columns + 1)] * (stated[1] > 1)
    for grid_size in off:
        image_size = subject.sizes.in_px(grid_size)
        require(
            _refuses(part, image_size),
            f"{subject}: grid_multiple is {stated}, but grid({image_size}) accepts an image of "
            f"{grid_size[0]}x{grid_size[1]} patches",
            "raise vitzoo.InvalidOption for such a size, or correct grid_multiple",
        )
    return stated


def _refuses(part: Any, image_size: tuple[int, int]) -> bool:
    try:
        part.grid(image_size)
    except InvalidOption:
        return True
    return False


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(type(n) is int for n in value)


def _up(count: int, multiple: int) -> int:
    """Round a count up to a multiple."""
    return -(-count // multiple) * multiple


def _require_grid(subject: PatchEmbedder, part: Any, image_size: tuple[int, int]) -> None:
    try:
        grid = part.grid(image_size)
    except InvalidOption as error:
        high, wide = subject.sizes.patch_size
        fail(
            f"{subject}: grid({image_size}) refuses an image of {image_size[0] / high:g}x"
            f"{image_size[1] / wide:g} patches: {error}",
            "if only some grids fit, set the attribute grid_multiple = (rows, columns), or give "
            "Sizes(grid_size=...) in the `sizes` table of the test class",
        )
    require(
        _is_pair(grid),
        f"{subject}: grid({image_size}) returns {grid!r}",
        "return a tuple of two integers, (rows, columns)",
    )
    images = draw(2, part.in_chans, *image_size)
    with torch.no_grad(), doing(subject, f"given images of {image_size} px"):
        tokens = part.eval()(images)
    expected = (2, grid[0] * grid[1], subject.sizes.embed_dim)
    require(
        tuple(tokens.shape) == expected,
        f"{subject}: grid({image_size}) returns {grid}, so two images of that size should give "
        f"tokens of shape {expected}, but it is {tuple(tokens.shape)}",
        "let grid and forward agree; tokens are (b, n, d) with n = rows * columns",
    )


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
