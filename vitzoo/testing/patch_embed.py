"""Patch embedders against `vitzoo.parts.PatchEmbedder`."""

from __future__ import annotations

from math import lcm
from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts import protocols
from vitzoo.testing.subject import ModuleSubject, Sizes, Subject, doing, draw, fail, fill, require

ORDER = (
    "tokens go row by row: from (b, d, h, w), `x.flatten(2).transpose(1, 2)`; and sizes are "
    "(height, width)"
)


class PatchEmbedder(ModuleSubject):
    """A patch embedder under test."""

    kind = "patch embedder"
    field_of_spec = "patch_embed"
    numbers = ("patch_size", "in_chans", "embed_dim")

    def inputs(self, batch: int = 2) -> tuple[Tensor, ...]:
        """Draw (b, c, h, w) images."""
        return (draw(batch, self.sizes.in_chans, *self.sizes.image_size),)

    def accepted(self) -> Subject:
        """Return the subject with a grid that the part accepts, or raise InvalidOption."""
        part = self.build()
        steps = getattr(part, "grid_multiple", (1, 1))
        sizes = zip(self.sizes.grid_size, steps, strict=True)
        subject: Subject = self.changed(grid_size=tuple(_up(n, step) for n, step in sizes))
        part.grid(subject.sizes.image_size)
        return subject


def check_protocol(subject: PatchEmbedder) -> None:
    """It is a module with `in_chans` and `grid`."""
    __tracebackhide__ = True
    part = subject.part()
    require_module(subject, part, protocols.PatchEmbedder)
    require(
        part.in_chans == subject.sizes.in_chans,
        f"{subject}: in_chans is {part.in_chans!r}, built for {subject.sizes.in_chans} channels",
        "set self.in_chans = in_chans",
    )


def check_grid(subject: PatchEmbedder) -> None:
    """`grid` says how many tokens come, for square and other images and other channels.

    The grid of `sizes` must be accepted, and so must others that are multiples of `grid_multiple`,
    unless `sizes` chooses a grid: then the part may refuse others.
    """
    __tracebackhide__ = True
    rows, columns = subject.sizes.grid_size
    part = subject.part()
    _require_grid(subject, part, subject.sizes.image_size)
    high, wide = _grid_multiple(subject, part)
    side = _up(rows, lcm(high, wide))
    twice = (2 * rows, columns)
    turned = (_up(columns, high), _up(rows, wide))
    may_refuse = subject.sizes.grid_size != Sizes.grid_size
    for grid_size in ((side, side), turned, (rows + high, columns), (rows, columns + wide), twice):
        image_size = subject.sizes.in_px(grid_size)
        if may_refuse and _refuses(part, image_size):
            continue
        _require_grid(subject, part, image_size)
        if grid_size == twice:
            low, tall = part.grid(subject.sizes.image_size), part.grid(image_size)
            require(
                low[0] < tall[0] and low[1] == tall[1],
                f"{subject}: an image twice as high has the grid {tall} instead of {low}",
                "more height is more rows: sizes and grids are (height, width)",
            )
    for in_chans in (1, 4):
        other = subject.changed(in_chans=in_chans)
        part = other.part()
        require(
            part.in_chans == in_chans,
            f"{subject}: built for {in_chans} channels, in_chans is {part.in_chans!r}",
            "set self.in_chans = in_chans",
        )
        _require_grid(other, part, subject.sizes.image_size)


def check_order(subject: PatchEmbedder) -> None:
    """Tokens come row by row of the (h, w) grid.

    Seen from where in the image the gradient of a token comes: those of the top right and of the
    bottom left. A part whose tokens all see the whole image alike passes.
    """
    __tracebackhide__ = True
    grid = rows, columns = subject.sizes.grid_size
    part: Any = fill(subject.part())
    images = draw(1, subject.sizes.in_chans, *subject.sizes.in_px(grid)).requires_grad_()
    tokens = part(images)
    if not tokens.requires_grad:
        return  # check_gradients says so
    seen = []
    for token in (columns - 1, columns * (rows - 1)):
        (gradient,) = torch.autograd.grad(tokens[0, token].pow(2).sum(), images, retain_graph=True)
        seen.append(_middle(gradient[0], subject.sizes.patch_size))
    (top, right), (bottom, left) = seen
    require(
        right - left > -0.5 and bottom - top > -0.5,
        f"{subject}: on a {rows}x{columns} grid, token {columns - 1} should see the top right of "
        f"the image and token {columns * (rows - 1)} the bottom left, but they see patches "
        f"(row {top:.1f}, column {right:.1f}) and (row {bottom:.1f}, column {left:.1f})",
        ORDER,
    )


def check_sizes(subject: PatchEmbedder) -> None:
    """An image that does not fit is refused with InvalidOption, or has tokens as `grid` says."""
    __tracebackhide__ = True
    height, width = subject.sizes.image_size
    part = subject.part()
    for size in ((height + 1, width), (height, width - 1), (1, width), (height, 1)):
        try:
            grid = part.grid(size)
        except InvalidOption:
            continue
        except Exception as error:  # noqa: BLE001  # whatever it is, the author hears of it
            fail(
                f"{subject}: grid({size}) raises {type(error).__name__}: {error}",
                "raise vitzoo.InvalidOption for an image_size that does not fit "
                "(vitzoo.parts.tiled does)",
            )
        require(
            isinstance(grid, tuple) and len(grid) == 2 and min(grid) > 0,
            f"{subject}: grid({size}) gives {grid!r}: no tokens",
            "raise vitzoo.InvalidOption for an image_size that does not fit "
            "(vitzoo.parts.tiled does)",
        )
        _require_grid(subject, part, size)


def check_input_conv(subject: PatchEmbedder) -> None:
    """`input_conv`, or `proj.weight` without it, names the kernel that reads the channels."""
    __tracebackhide__ = True
    part = subject.changed(in_chans=5).part()
    name = getattr(part, "input_conv", None)
    state = part.state_dict()
    fix = (
        "input_conv is the state-dict name, within the part, of the kernel (out, in_chans, h, w) "
        "that vitzoo brings to other channels when weights are loaded"
    )
    if name is None:
        reading = [key for key, t in state.items() if t.dim() == 4 and t.shape[1] == 5]
        found = reading[0] if reading else "proj.weight"
        require(
            "proj.weight" in (found, *reading),
            f"{subject}: {found} reads the image's channels, and no input_conv says so",
            f"add the attribute input_conv = {found!r}; {fix}",
        )
        return
    require(name in state, f"{subject}: input_conv is {name!r}, no key of its state dict", fix)
    shape = tuple(state[name].shape)
    require(
        len(shape) == 4 and shape[1] == 5,
        f"{subject}: for 5 channels input_conv names {name!r} of shape {shape}",
        fix,
    )


def require_module(subject: ModuleSubject, part: Any, protocol: Any) -> None:
    """Fail unless a part is a module that has what its protocol names."""
    __tracebackhide__ = True
    require(
        isinstance(part, nn.Module),
        f"{subject}: {type(part).__name__} is no torch.nn.Module",
        "derive the class from torch.nn.Module",
    )
    wanted = [name for name in dir(protocol) if not name.startswith("_")]
    wanted += list(protocol.__annotations__)
    missing = sorted({name for name in wanted if not hasattr(part, name)})
    require(
        not missing,
        f"{subject}: {type(part).__name__} lacks {', '.join(missing)}",
        f"see vitzoo.parts.{protocol.__name__}",
    )


def _grid_multiple(subject: PatchEmbedder, part: Any) -> tuple[int, int]:
    """Return what rows and columns of the grid must be multiples of; grids between are refused."""
    __tracebackhide__ = True
    stated = getattr(part, "grid_multiple", (1, 1))
    good = isinstance(stated, tuple) and len(stated) == 2 and all(type(n) is int for n in stated)
    require(
        good and min(stated) > 0,
        f"{subject}: grid_multiple is {stated!r}",
        "set it to (rows, columns), positive whole numbers, such as (2, 2) for an even grid",
    )
    rows, columns = subject.sizes.grid_size
    off = [(rows + 1, columns)] * (stated[0] > 1) + [(rows, columns + 1)] * (stated[1] > 1)
    for grid_size in off:
        image_size = subject.sizes.in_px(grid_size)
        require(
            _refuses(part, image_size),
            f"{subject}: grid_multiple is {stated}, yet grid({image_size}), an image of "
            f"{grid_size[0]}x{grid_size[1]} patches, is not refused",
            "raise vitzoo.InvalidOption for such a size, or correct grid_multiple",
        )
    return stated


def _refuses(part: Any, image_size: tuple[int, int]) -> bool:
    try:
        part.grid(image_size)
    except InvalidOption:
        return True
    return False


def _up(count: int, multiple: int) -> int:
    """Return the least multiple that is not below a count."""
    return -(-count // multiple) * multiple


def _require_grid(subject: PatchEmbedder, part: Any, image_size: tuple[int, int]) -> None:
    __tracebackhide__ = True
    try:
        grid = part.grid(image_size)
    except InvalidOption as error:
        fail(
            f"{subject}: grid({image_size}) refuses an image of "
            f"{image_size[0] / subject.sizes.patch_size[0]:g}x"
            f"{image_size[1] / subject.sizes.patch_size[1]:g} patches: {error}",
            "where only some grids fit, say so: an attribute grid_multiple = (rows, columns), or "
            "Sizes(grid_size=...) in the `sizes` table of the test class",
        )
    good = isinstance(grid, tuple) and len(grid) == 2 and all(type(n) is int for n in grid)
    require(
        good,
        f"{subject}: grid({image_size}) gives {grid!r}",
        "return (rows, columns), whole numbers",
    )
    images = draw(2, part.in_chans, *image_size)
    with torch.no_grad(), doing(subject, f"given images of {image_size} px"):
        tokens = part.eval()(images)
    expected = (2, grid[0] * grid[1], subject.sizes.embed_dim)
    require(
        tuple(tokens.shape) == expected,
        f"{subject}: grid({image_size}) gives {grid}, so images of that size become tokens of "
        f"shape {expected}, but they are {tuple(tokens.shape)}",
        "let grid and forward agree; tokens are (b, n, d)",
    )


def _middle(gradient: Tensor, patch_size: tuple[int, int]) -> tuple[float, float]:
    """Return the (row, column), in patches, about which the squares of a gradient lie."""
    energy = gradient.double().pow(2).sum(0)
    if not energy.any():
        return 0.0, 0.0  # it sees nothing here, as where a batch of one is compared with its mean
    rows, columns = (
        (energy.sum(1 - axis) / energy.sum() * torch.arange(energy.shape[axis])).sum()
        for axis in (0, 1)
    )
    return float(rows) / patch_size[0] - 0.5, float(columns) / patch_size[1] - 0.5
