"""Images of other sizes: `set_input_size`, and networks that take images of any size."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidInput, InvalidOption, VitzooError
from vitzoo.network.calls import Network, Place, Size, placed, recorded
from vitzoo.network.kept import Kept, inputs_of, seen, unchanged
from vitzoo.parts.patch_embed import ConvPatchEmbed
from vitzoo.parts.protocols import GRID, TABLE, call
from vitzoo.parts.resample import same_grid
from vitzoo.parts.shapes import Shapes
from vitzoo.schema.reader import pair

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound="Sizes")
Method = Callable[Concatenate[M, Tensor, P], R]


def for_any_size(method: Method[M, P, R]) -> Method[M, P, R]:
    """Let a method of a model with `dynamic` compute for the size of its images."""

    @wraps(method)
    def sized(self: M, images: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self.dynamic or not self._fits(images):
            return method(self, images, *args, **kwargs)
        if not torch.compiler.is_compiling():
            with placed(self, self._place_of(images)):
                return method(self, images, *args, **kwargs)
        positions: Any = self.positions
        parts = [*positions.modules()]
        before = [(part, dict(vars(part)), dict(part._buffers)) for part in parts]  # noqa: SLF001
        own = self._own
        try:  # a traced part would be another module in each call, and be compiled again
            self._own = self._place_of(images)
            return method(self, images, *args, **kwargs)
        finally:
            self._own = own
            for part, values, buffers in before:
                vars(part).update(values)
                part._buffers.update(buffers)  # noqa: SLF001

    return sized


def sharing(module: nn.Module) -> Any:
    """Return a module of the same class with the same parameters and hooks.

    A change of an attribute, or another buffer, is in one of the two alone. Unlike `copy`, it makes
    no parameters, and works where FSDP2 or a parametrization has replaced the class.
    """
    other = object.__new__(type(module))
    for name, value in vars(module).items():
        apart = isinstance(value, list | set | dict) and not name.startswith("_")
        vars(other)[name] = copy(value) if apart else value
    children = vars(module)["_modules"].items()
    vars(other)["_buffers"] = dict(vars(module)["_buffers"])
    vars(other)["_modules"] = {n: None if part is None else sharing(part) for n, part in children}
    return other


class Sizes(Network):
    """Changes of the image size. Learned positions are interpolated."""

    _kept = Kept()  # for images of other sizes

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode, and make the positions of other sizes anew."""
        self._kept = Kept()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self._kept = Kept()  # on the device that the network leaves
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]  # of torch

    def __getstate__(self) -> dict[str, Any]:
        """Return what pickles and copies have: all but positions of other sizes."""
        return {name: value for name, value in vars(self).items() if name != "_kept"}

    @torch.no_grad()
    def set_input_size(
        self, image_size: int | Size | None = None, *, img_size: int | Size | None = None
    ) -> None:
        """Accept images of another size from now on; interpolate learned positions.

        Positions are interpolated from the table that was loaded, so that a change of the size and
        back loses nothing. Positions that were trained since are interpolated as they are.

        Args:
            image_size: (height, width) in px, or one number for both.
            img_size: timm's name of this argument.

        Raises:
            InvalidOption: the size is not a whole number of patches, or it is given twice.
        """
        if None not in (image_size, img_size):
            raise InvalidOption(
                f"got image_size = {image_size} and img_size = {img_size}; pass one"
            )
        size = pair(img_size if image_size is None else image_size, "image_size", InvalidOption)
        grid = self._run("patch_embed", self.patch_embed.grid, GRID, size)
        if grid != self.grid_size and self.pos_embed is not None:
            table, old = self._source()
            with Shapes() if table.is_meta else nullcontext():
                fresh = self._run("pos_embed", self.positions.resample, TABLE, table, old, grid)
            self.loaded_positions = table.detach().clone(), old
            if fresh is not None:
                fresh = fresh.to(self.pos_embed, copy=True)
                self.pos_embed = nn.Parameter(fresh, requires_grad=self.pos_embed.requires_grad)
        self._run("pos_embed", self.positions.to_grid, None, grid)
        self._take(size, grid)
        self._note(image_size=size)

    def check_movable(self, called: str, fix: str) -> None:
        """Raise InvalidOption if the positions cannot be interpolated to a larger grid.

        Args:
            called: the option or method that needs it, for the message.
            fix: what to do instead of choosing other positions.
        """
        rows, columns = self.grid_size
        larger = rows + getattr(self.patch_embed, "grid_multiple", (1, 1))[0], columns
        table, part = self.pos_embed, cast(Any, self.positions)
        with torch.device("cpu"):
            example = None if table is None else torch.zeros(table.shape)
            try:
                what = self.checked_parts.get("pos_embed")
                call(what, part.resample, (example, self.grid_size, larger), None)
                call(what, sharing(part).to_grid, (larger,), None)
            except (VitzooError, RuntimeError, ValueError) as error:
                name = self.spec.pos_embed.name if self.spec else type(part).__name__
                raise InvalidOption(
                    f"{called}: pos_embed {name!r} cannot be moved from grid {self.grid_size} to "
                    f"{larger}: {error}; {fix}, or choose another pos_embed"
                ) from error

    def _take(self, image_size: Size, grid_size: Size) -> None:
        self._own = Place(image_size, grid_size)
        if isinstance(self.patch_embed, ConvPatchEmbed):
            self.patch_embed.expect(image_size)

    def _resampled(self, grid: Size) -> Tensor | None:
        """Return the table for another grid, None if there is none."""
        table = self.pos_embed
        if table is None:
            return None
        resample = partial(self._run, "pos_embed", self.positions.resample, TABLE)
        trained = table.requires_grad and torch.is_grad_enabled()
        loaded = None if trained else self.loaded_positions
        if loaded is None or not torch.compiler.is_compiling():
            found = resample(*self._source(), grid)
            return None if found is None else found.to(table)
        unchanged = (resample(*loaded, self.grid_size).to(table) == table).all()
        own, first = (resample(*s, grid).to(table) for s in ((table, self.grid_size), loaded))
        return torch.where(unchanged, first, own)  # what `_source` decides, without a branch

    def _source(self) -> tuple[Tensor, Size]:
        """Return the table to interpolate, and its grid.

        This is the loaded table, as long as `pos_embed` equals its interpolation. Otherwise, and
        where gradients must reach `pos_embed`, it is `pos_embed`.
        """
        table: Tensor = self.pos_embed  # type: ignore[assignment]  # callers checked
        if self.loaded_positions is None or (table.requires_grad and torch.is_grad_enabled()):
            return table, self.grid_size
        loaded, grid = self.loaded_positions
        if loaded.is_meta or table.is_meta:
            return table, self.grid_size
        shown = self._run("pos_embed", self.positions.resample, TABLE, loaded, grid, self.grid_size)
        same = shown is not None and torch.equal(shown.to(table), table)
        return (loaded, grid) if same else (table, self.grid_size)

    def _fits(self, images: Tensor) -> bool:
        """Whether images have another size than the model and a shape that it may take."""
        if not isinstance(images, Tensor) or images.dim() != 4:
            return False
        if images.shape[1] != self.patch_embed.in_chans:
            return False
        return not same_grid((images.shape[2], images.shape[3]), self.image_size)

    def _place_of(self, images: Tensor) -> Place:
        """Return the place of (b, c, h, w) images; the part of positions shares all parameters.

        Raises:
            InvalidInput: the size is not a whole number of patches.
        """
        size = images.shape[2], images.shape[3]
        try:
            grid = self._run("patch_embed", self.patch_embed.grid, GRID, size)
        except InvalidOption as error:
            raise InvalidInput(str(error)) from error
        inputs = None if recorded(images) else inputs_of(self, images.device.type)
        if inputs is None:
            return self._made(size, grid)
        kept = self._kept
        if not unchanged(kept.inputs, inputs):
            before = seen(inputs)
            if before is None:
                return self._made(size, grid)
            kept = Kept(before)
        place = kept.find(size, grid)
        if place is None:
            with torch.inference_mode(False), torch.no_grad():  # for calls in every other mode
                place = self._made(size, grid)
        if not (kept.places and kept.places[0][1] is place):
            self._kept = kept.first(place)  # one assignment: other threads may call this, too
        return place

    def _made(self, size: Size, grid: Size) -> Place:
        """Return a new place for images of a size."""
        table, part = self._resampled(grid), cast(Any, self.positions)
        positions = part if torch.compiler.is_compiling() else sharing(part)
        self._run("pos_embed", positions.to_grid, None, grid)
        return Place(size, grid, table, positions)
