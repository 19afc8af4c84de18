"""Patch embedders against `vitzoo.parts.PatchEmbedder`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts import protocols
from vitzoo.testing.subject import ModuleSubject, doing, draw, fail, fill, require

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
    """`grid` says how many tokens come, for square and other images and other channels."""
    __tracebackhide__ = True
    rows, columns = subject.sizes.grid_size
    part = subject.part()
    for grid_size in ((rows, rows), (rows, columns), (columns, rows), (rows + 1, columns)):
        _require_grid(subject, part, subject.sizes.in_px(grid_size))
    low, high = (part.grid(subject.sizes.in_px((n, columns))) for n in (rows, 2 * rows))
    require(
        low[0] < high[0] and low[1] == high[1],
        f"{subject}: an image twice as high has the grid {high} instead of {low}",
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
    grid = rows, columns = 2, 4
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
    remedy = (
        "input_conv is the state-dict name, within the part, of the kernel (out, in_chans, h, w) "
        "that vitzoo brings to other channels when weights are loaded"
    )
    if name is None:
        reading = [key for key, t in state.items() if t.dim() == 4 and t.shape[1] == 5]
        found = reading[0] if reading else "proj.weight"
        require(
            "proj.weight" in (found, *reading),
            f"{subject}: {found} reads the image's channels, and no input_conv says so",
            f"add the attribute input_conv = {found!r}; {remedy}",
        )
        return
    require(name in state, f"{subject}: input_conv is {name!r}, no key of its state dict", remedy)
    shape = tuple(state[name].shape)
    require(
        len(shape) == 4 and shape[1] == 5,
        f"{subject}: for 5 channels input_conv names {name!r} of shape {shape}",
        remedy,
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


def _require_grid(subject: PatchEmbedder, part: Any, image_size: tuple[int, int]) -> None:
    __tracebackhide__ = True
    grid = part.grid(image_size)
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
