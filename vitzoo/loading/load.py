"""Load a checkpoint into a model: check the header, read, adapt, assign, report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from vitzoo import settings
from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.containers import Tensors
from vitzoo.checkpoint.detect import format_of, identified
from vitzoo.errors import CheckpointError, VitzooError
from vitzoo.loading.adapt import LOADABLE, Adapted, adapt, fresh_head
from vitzoo.loading.assign import Slots
from vitzoo.loading.plan import Plan
from vitzoo.network.model import VisionTransformer
from vitzoo.parts.protocols import blame
from vitzoo.parts.shapes import Shapes
from vitzoo.plugin.guard import note_of
from vitzoo.registry.registry import Registry
from vitzoo.report import LoadReport
from vitzoo.store.stamp import Stamps
from vitzoo.text import fold, listed

FIELDS = {"positions": "pos_embed", "attn_pool": "pool"}  # of a spec, by the names of modules


class Misfit(NamedTuple):
    """A file that does not fit a model.

    Args:
        adapted: its tensors by the names of the model, without data.
        slots: where the tensors of the model are.
        checkpoint: the open file.
        zoo: the registry.
        note: the end of the first line of the message, of the checkpoint format.
        missing, unexpected: names of tensors that only the model, or only the file, has.
        unfit: names of tensors of another shape.
        problems: the second line of the message.
    """

    adapted: Adapted
    slots: Slots
    checkpoint: Checkpoint
    zoo: Registry
    note: str
    missing: list[str]
    unexpected: list[str]
    unfit: list[str]
    problems: str


def load(
    model: nn.Module,
    checkpoint: Checkpoint,
    plan: Plan,
    zoo: Registry,
    *,
    dtype: torch.dtype | None = None,
    notes: tuple[str, ...] = (),
    check_finite: bool = True,
) -> LoadReport:
    """Load a checkpoint into a model built on `meta`; change the model only if everything fits.

    `dtype` is the floating type of the loaded tensors, as stored if None; `notes` are further ones
    for the report. Raises CheckpointError with all problems of names, shapes, types and values.
    """
    # First with the shapes alone, so that a wrong file is refused before its data are read.
    checkpoint, slots = identified(checkpoint, zoo), Slots(model)
    layout = format_of(checkpoint, zoo)
    hollow = checkpoint.shapes(layout)
    with Shapes():
        fitted = adapt(hollow, model, slots.expected, plan, pooled=layout.pooled)
    check(fitted, slots, checkpoint, zoo, note_of(layout))

    # The same steps with the data. Until `_assign` the model is unchanged.
    ignored = layout.ignored_keys(checkpoint.header.tensors)
    found = checkpoint.tensors(unread=[n for n in ignored if n.startswith(layout.beside)])
    if check_finite:
        _check_values(found, checkpoint)
    tensors = {name: t.contiguous() for name, t in layout.to_model(found.tensors).items()}
    adapted = adapt(tensors, model, slots.expected, plan, pooled=layout.pooled)
    converted = _assign(slots, adapted, dtype)
    if isinstance(model, VisionTransformer):
        model.loaded_positions = adapted.positions

    resampling = (plan.resampling,) if adapted.resampled and plan.resampling else ()
    prefix = (f"prefix = {checkpoint.prefix}",) if checkpoint.prefix else ()
    row, changed = checkpoint.row, {*adapted.resampled, *adapted.rebuilt, *converted}
    before = checkpoint.stated.made_from
    return LoadReport(
        checkpoint.source,
        found.sha256,
        stamped=found.stamped,
        first_use=bool(row and row.repo and not row.sha256),
        format=checkpoint.format or "",
        license=row.license_note if row else "",
        trunk=checkpoint.trunk[0],
        trunk_sha256=checkpoint.trunk[1],
        made_from=str(before or ""),
        made_from_sha256=before.sha256 if before else "",
        kept=tuple(name for name in adapted.tensors if name not in changed),
        resampled=tuple(adapted.resampled),
        converted=(*adapted.rebuilt, *(n for n in converted if n not in adapted.rebuilt)),
        reinitialised=tuple(adapted.fresh),
        dropped=(*adapted.dropped, *ignored, *checkpoint.outside),
        assumed=(*plan.assumed, *notes, *resampling, *prefix, *checkpoint.notes),
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
        raise _hollow(slots.model, left)
    for buffer in slots.buffers():  # computed ones too, which no file contains
        if buffer.is_floating_point():
            buffer.data = buffer.to(dtype or stored)
    return converted


def _hollow(model: nn.Module, names: list[str]) -> VitzooError:
    """Return the error about tensors that no file contains and that are still on `meta`."""
    problem = f"no data after loading: {listed(names)}"
    fix = "must compute buffers on the CPU (device='cpu') in its constructor"
    checked: Mapping[str, str] = getattr(model, "checked_parts", {})
    for name in names:
        module = name.partition(".")[0]
        if what := checked.get(FIELDS.get(module, module)):
            part = getattr(model, module)
            return blame(what, f"{fix} ({problem})", code=type(part).__init__)
    return CheckpointError(f"{problem}; a part, or the builder of a network, {fix}")


def _check_values(found: Tensors, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for NaN, infinity or only zeros; a stamp in the store skips this."""
    stamps, state = Stamps(settings.home()), checkpoint.file.state()
    stamp = stamps.find(state, checkpoint.sha256) if checkpoint.sha256 else None
    if stamp and stamp.finite:
        return
    floats = {n: t for n, t in found.tensors.items() if t.dtype in LOADABLE}
    odd = [] if found.finite else [n for n, t in floats.items() if not t.isfinite().all()]
    if odd:
        raise_if(checkpoint.source, ("with NaN or infinite values", odd))
    if floats and not any(t.any() for t in floats.values()):
        raise CheckpointError(f"{checkpoint.source}: every tensor in it is zero")
    if stamp and not checkpoint.outside:  # other tensors of the file were not searched
        stamps.write(replace(stamp, finite=True))


def check(
    adapted: Adapted,
    slots: Slots,
    checkpoint: Checkpoint,
    zoo: Registry,
    note: str,
) -> None:
    """Raise CheckpointError, with all problems, unless adapted tensors without data fit a model.

    `note` is the end of the first line of its message.
    """
    expected = slots.expected
    missing = [n for n in expected if n not in adapted.tensors and n not in adapted.fresh]
    unexpected = [name for name in adapted.tensors if name not in expected]
    both = {name: (t, expected[name]) for name, t in adapted.tensors.items() if name in expected}
    unfit = [name for name, (found, own) in both.items() if found.shape != own.shape]
    shapes = [
        f"{n} is {tuple(both[n][0].shape)}, the model has {tuple(both[n][1].shape)}" for n in unfit
    ]
    types = [
        f"{name} is {found.dtype}"
        for name, (found, own) in both.items()
        if found.dtype not in (LOADABLE if own.is_floating_point() else (own.dtype,))
    ]
    problems = _problems(
        ("missing", missing),
        ("unexpected", unexpected),
        ("with another shape", shapes),
        ("of a type that weights do not have", types),
    )
    if problems:
        error = CheckpointError(f"{checkpoint.source} does not fit the model")
        differ = missing, unexpected, unfit
        raise error.of(Misfit(adapted, slots, checkpoint, zoo, note, *differ, problems))


def raise_if(source: str, *groups: tuple[str, list[str]], hint: str = "") -> None:
    """Raise the error about a file that does not fit, if a group has a problem."""
    if problems := _problems(*groups):
        raise CheckpointError(f"{source} does not fit the model; {problems}{hint}")


def _problems(*groups: tuple[str, list[str]]) -> str:
    """Return the text about all groups with names of tensors, empty if there are none."""
    texts = [f"{len(rows)} {what}: {listed(fold(rows))}" for what, rows in groups if rows]
    return f"problems with tensors: {'; '.join(texts)}" if texts else ""
