"""Load a checkpoint into a model: check the header, read, adapt, assign, report."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from vitzoo import settings
from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.containers import Tensors
from vitzoo.checkpoint.detect import format_of, identified
from vitzoo.errors import CheckpointError
from vitzoo.loading.adapt import LOADABLE, Adaptation, Adapted, adapt, fresh_head
from vitzoo.loading.assign import Slots
from vitzoo.loading.misfit import check, raise_if
from vitzoo.network.model import VisionTransformer
from vitzoo.plugin.guard import note_of
from vitzoo.report import LoadReport
from vitzoo.store.stamp import Stamps
from vitzoo.text import listed

if TYPE_CHECKING:
    from vitzoo.registry.registry import Registry


def load(
    model: nn.Module,
    checkpoint: Checkpoint,
    adaptation: Adaptation,
    zoo: Registry,
    *,
    dtype: torch.dtype | None = None,
    assumed: tuple[str, ...] = (),
    check_finite: bool = True,
) -> LoadReport:
    """Load a checkpoint into a model built on `meta`; change the model only if everything fits.

    `dtype` is the floating type of the loaded tensors, as stored if None; `assumed` are settings
    for the report. Raises CheckpointError with all problems of names, shapes, types and values.
    """
    checkpoint, slots = identified(checkpoint, zoo), Slots(model)
    layout = format_of(checkpoint, zoo)
    plan = adapt(layout.to_model(checkpoint.skeleton()), model, slots.expected, adaptation)
    check(plan, slots.expected, checkpoint.source, zoo, note_of(layout))

    found = checkpoint.tensors()
    raw = found.tensors
    if check_finite:
        _check_values(found, checkpoint)
    tensors = {name: t.contiguous() for name, t in layout.to_model(raw).items()}
    adapted = adapt(tensors, model, slots.expected, adaptation)
    converted = _assign(slots, adapted, dtype)
    if isinstance(model, VisionTransformer):
        model.loaded_positions = adapted.positions

    resampling = (adaptation.resampling,) if adapted.resampled and adaptation.resampling else ()
    prefix = (f"prefix = {checkpoint.prefix}",) if checkpoint.prefix else ()
    changed = {*adapted.resampled, *adapted.rebuilt, *converted}
    return LoadReport(
        checkpoint.source,
        found.sha256,
        stamped=found.stamped,
        format=checkpoint.format or "",
        license=checkpoint.row.license_note if checkpoint.row else "",
        trunk=checkpoint.trunk[0],
        trunk_sha256=checkpoint.trunk[1],
        kept=tuple(name for name in adapted.tensors if name not in changed),
        resampled=tuple(adapted.resampled),
        converted=(*adapted.rebuilt, *(n for n in converted if n not in adapted.rebuilt)),
        reinitialised=tuple(adapted.fresh),
        dropped=(*adapted.dropped, *layout.ignored_keys(raw), *checkpoint.outside),
        assumed=(*assumed, *resampling, *prefix, *checkpoint.notes),
    )


def _assign(slots: Slots, adapted: Adapted, dtype: torch.dtype | None) -> tuple[str, ...]:
    """Replace the tensors of a model; return the names of those whose type was converted."""
    floats = {n: t for n, t in adapted.tensors.items() if t.is_floating_point()}
    converted = tuple(n for n, t in floats.items() if dtype and t.dtype != dtype)
    state = adapted.tensors | {name: floats[name].to(dtype) for name in converted}
    stored = next(iter(floats.values())).dtype if floats else None
    if adapted.fresh:
        state |= fresh_head(slots.model, adapted.fresh, dtype or stored)
    slots.assign(state)
    if left := slots.without_data():
        raise CheckpointError(
            f"{listed(left)} have no data after loading; a part must compute buffers on the CPU "
            "(device='cpu') in its constructor"
        )
    for buffer in slots.buffers():  # computed ones too, which no file contains
        if buffer.is_floating_point():
            buffer.data = buffer.to(dtype or stored)
    return converted


def _check_values(found: Tensors, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for NaN, infinity or only zeros; a stamp in the store skips this."""
    stamps, status = Stamps(settings.home()), os.fstat(checkpoint.file.fd)
    stamp = stamps.find(status, checkpoint.sha256) if checkpoint.sha256 else None
    if stamp and stamp.finite:
        return
    floats = {n: t for n, t in found.tensors.items() if t.dtype in LOADABLE}
    odd = [] if found.finite else [n for n, t in floats.items() if not t.isfinite().all()]
    raise_if(checkpoint.source, ("with NaN or infinite values", odd))
    if floats and not any(t.any() for t in floats.values()):
        raise CheckpointError(f"{checkpoint.source}: every tensor in it is zero")
    if stamp:
        stamps.write(replace(stamp, finite=True))
