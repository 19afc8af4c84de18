"""Places of the last few image sizes, kept while all that they were made from is as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitzoo.network.calls import Network, Place, Size

MOST = 16  # sizes
MOST_BYTES = 2**27  # of their tensors


class Seen(NamedTuple):
    """A tensor from which places were made.

    Args:
        tensor: itself.
        state: what torch tells about it without reading its numbers.
        numbers: of a parameter on the CPU a copy, because a write to `tensor.data` counts as no
            version; otherwise an alias, so that no other tensor gets its memory.
    """

    tensor: Tensor
    state: tuple[object, ...]
    numbers: Tensor


class Kept(NamedTuple):
    """Places by image size and grid, the last one first, and what they were made from."""

    inputs: Sequence[object] = ()
    places: tuple[tuple[tuple[Size, Size], Place], ...] = ()

    def find(self, size: Size, grid: Size) -> Place | None:
        """Return the place of a size and its grid, None if it is not kept."""
        return next((place for key, place in self.places if key == (size, grid)), None)

    def first(self, place: Place) -> Kept:
        """Return this with a place before all others, as many as there is room for."""
        key = place.image_size, place.grid_size
        others = [one for one in self.places if one[0] != key]
        places, room = list[tuple[tuple[Size, Size], Place]](), MOST_BYTES
        for one in [(key, place), *others][:MOST]:
            room -= _bytes_of(one[1])
            if room < 0:
                break
            places.append(one)
        return self._replace(places=tuple(places))


def inputs_of(network: Network, kind: str) -> list[object] | None:
    """Return what a place is made from beside the size of images, None if none may be kept.

    None is kept where gradients must reach the positions, and in a group of processes: FSDP and
    DeepSpeed write to gathered parameters without a new version.

    Args:
        network: with the positions.
        kind: of the device, for autocast.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return None
    table, part = network.pos_embed, network.positions
    found: list[object] = [table, *(network.loaded_positions or ())]
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        found.append(torch.get_autocast_dtype(kind))
    for module in part.modules():  # type: ignore[attr-defined]  # a part is a module
        parts: dict[str, Any] = vars(module)
        found += [module, *parts.values(), *parts["_parameters"].values()]
        found += parts["_buffers"].values()
    learned = (x for x in found if isinstance(x, Tensor) and x.requires_grad)
    return None if torch.is_grad_enabled() and any(True for _ in learned) else found


def seen(inputs: Sequence[object]) -> list[object] | None:
    """Return inputs with all tensors as `Seen`; None if a tensor does not count its changes.

    Such are tensors of inference mode and of torch.func.
    """
    try:
        return [_seen(x) if isinstance(x, Tensor) else x for x in inputs]
    except RuntimeError:
        return None


def unchanged(before: Sequence[object], inputs: Sequence[object]) -> bool:
    """Whether inputs are those that `seen` was called with, and their tensors have not changed."""
    return len(before) == len(inputs) and all(map(_is_same, before, inputs))


def _seen(tensor: Tensor) -> Seen:
    copied = tensor.is_cpu and isinstance(tensor, nn.Parameter)
    numbers = tensor.detach()
    return Seen(tensor, _state(tensor), numbers.clone() if copied else numbers)


def _state(tensor: Tensor) -> tuple[object, ...]:
    """Return what changes if a tensor is written to, or gets other memory by `tensor.data = x`."""
    return (
        tensor._version,  # noqa: SLF001  # torch has no public name
        tensor.untyped_storage()._cdata,  # noqa: SLF001
        tensor.storage_offset(),
    )


def _is_same(before: object, now: object) -> bool:
    if not isinstance(before, Seen):
        return before is now
    if before.tensor is not now or before.state != _state(before.tensor):
        return False
    copied = before.tensor.is_cpu and isinstance(now, nn.Parameter)
    return not copied or torch.equal(before.tensor, before.numbers)


def _bytes_of(place: Place) -> int:
    tensors = [place.table, *place.positions.buffers()]
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
