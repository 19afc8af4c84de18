"""Images of other sizes: `set_input_size`, and networks that take images of any size."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidInput, InvalidOption, VitzooError
from vitzoo.network.calls import Network, Size
from vitzoo.parts.patch_embed import ConvPatchEmbed
from vitzoo.parts.protocols import GRID, TABLE, call
from vitzoo.schema.reader import pair

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound="Sizes")
Method = Callable[Concatenate[M, Tensor, P], R]


def for_any_size(method: Method[M, P, R]) -> Method[M, P, R]:
    """Let a method of a model with `dynamic` act on the model for the size of its images."""

    @wraps(method)
    def sized(self: M, images: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if not self.dynamic or not self._fits(images):
            return method(self, images, *args, **kwargs)
        if not torch.compiler.is_compiling():
            return method(self._sized(images), images, *args, **kwargs)
        positions: Any = self.positions
        parts = [self, *positions.modules()]
        before = [(part, dict(vars(part)), dict(part._buffers)) for part in parts]  # noqa: SLF001
        table = self.pos_embed
        try:  # a traced copy would be another module in each call, and be compiled again
            self._place(images)
            return method(self, images, *args, **kwargs)
        finally:
            self._parameters["pos_embed"] = table
            for part, values, buffers in before:
                vars(part).update(values)
                part._buffers.update(buffers)  # noqa: SLF001

    return sized


class Sizes(Network):
    """Changes of the image size. Learned positions are interpolated."""

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
                call(what, deepcopy(part).to_grid, (larger,), None)
            except (VitzooError, RuntimeError, ValueError) as error:
                name = self.spec.pos_embed.name if self.spec else type(part).__name__
                raise InvalidOption(
                    f"{called}: pos_embed {name!r} cannot be moved from grid {self.grid_size} to "
                    f"{larger}: {error}; {fix}, or choose another pos_embed"
                ) from error

    def _take(self, image_size: Size, grid_size: Size) -> None:
        self.image_size, self.grid_size = image_size, grid_size
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
        return images.shape[2:] != self.image_size and images.shape[1] == self.patch_embed.in_chans

    def _sized(self: M, images: Tensor) -> M:
        """Return the model for the size of (b, c, h, w) images; it shares all parameters.

        Raises:
            InvalidInput: the size is not a whole number of patches.
        """
        part: Any = self.positions
        positions = deepcopy(part, {id(shared): shared for shared in part.parameters()})
        model = copy(self)
        vars(model).update(
            _parameters=dict(self._parameters), _modules={**self._modules, "positions": positions}
        )
        model._place(images)  # noqa: SLF001
        return model

    def _place(self, images: Tensor) -> None:
        """Take another image size, without a change of shared parameters and modules."""
        size = images.shape[2], images.shape[3]
        try:
            grid = self._run("patch_embed", self.patch_embed.grid, GRID, size)
        except InvalidOption as error:
            raise InvalidInput(str(error)) from error
        self._parameters["pos_embed"] = self._resampled(grid)  # type: ignore[assignment]  # no leaf
        self._run("pos_embed", self.positions.to_grid, None, grid)
        vars(self).update(image_size=size, grid_size=grid)
