"""Checkpoint to model: check the header, map, adapt, assign, report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitzoo import settings
from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.detect import format_of, identified
from vitzoo.errors import CheckpointError
from vitzoo.loading.adapt import LOADABLE, Adaptation, Adapted, adapt, fresh_head
from vitzoo.loading.misfit import check, raise_if
from vitzoo.registry.registry import Registry
from vitzoo.report import LoadReport, listed
from vitzoo.store.store import Store


@dataclass(frozen=True)
class _Model:
    """A network built on `meta`, with what its state needs.

    Args:
        module: the network.
        expected: shapes of its tensors.
        counts: types of its integer tensors.
    """

    module: nn.Module
    expected: Mapping[str, tuple[int, ...]]
    counts: Mapping[str, torch.dtype]

    @classmethod
    def of(cls, module: nn.Module) -> _Model:
        state = module.state_dict()
        expected = {name: tuple(tensor.shape) for name, tensor in state.items()}
        counts = {n: t.dtype for n, t in state.items() if not t.is_floating_point()}
        return cls(module, expected, counts)


def load(
    model: nn.Module,
    checkpoint: Checkpoint,
    adaptation: Adaptation,
    zoo: Registry,
    *,
    dtype: torch.dtype | None = None,
    assumed: tuple[str, ...] = (),
) -> LoadReport:
    """Load a checkpoint into a model built on `meta`. Nothing is changed unless all fits.

    Args:
        model: its parameters are replaced.
        checkpoint: the open file.
        adaptation: what may differ.
        zoo: holds the checkpoint formats.
        dtype: to convert the tensors to; as stored if None.
        assumed: settings to name in the report.

    Raises:
        CheckpointError: names, shapes, types or values that do not fit; lists what is wrong.
    """
    target, checkpoint = _Model.of(model), identified(checkpoint, zoo)
    layout = format_of(checkpoint, zoo)
    plan = adapt(layout.to_model(checkpoint.skeleton()), model, target.expected, adaptation)
    check(plan, target.expected, target.counts, checkpoint.source, zoo)

    raw, sha256 = checkpoint.tensors()
    _check_values(raw, checkpoint)
    adapted = adapt(layout.to_model(raw), model, target.expected, adaptation)
    converted = _assign(target, adapted, dtype)

    resampling = (adaptation.resampling,) if adapted.resampled and adaptation.resampling else ()
    changed = {*adapted.resampled, *adapted.rebuilt, *converted}
    return LoadReport(
        checkpoint.source,
        sha256,
        format=checkpoint.format or "",
        license=checkpoint.row.license_note if checkpoint.row else "",
        kept=tuple(name for name in adapted.tensors if name not in changed),
        resampled=tuple(adapted.resampled),
        converted=(*adapted.rebuilt, *(n for n in converted if n not in adapted.rebuilt)),
        reinitialised=tuple(adapted.fresh),
        dropped=(*adapted.dropped, *layout.ignored_keys(raw)),
        assumed=(*assumed, *resampling, *checkpoint.notes),
    )


def _assign(target: _Model, adapted: Adapted, dtype: torch.dtype | None) -> tuple[str, ...]:
    """Replace the parameters of a model; return the names of those whose type was converted."""
    model = target.module
    floats = {n: t for n, t in adapted.tensors.items() if n not in target.counts}
    converted = tuple(n for n, t in floats.items() if dtype and t.dtype != dtype)
    state = adapted.tensors | {name: t.to(dtype or t.dtype) for name, t in floats.items()}
    stored = next(iter(floats.values())).dtype if floats else None
    if adapted.fresh:
        state |= fresh_head(model, adapted.fresh, dtype or stored)
    model.load_state_dict(state, strict=True, assign=True)
    _check_materialised(model)
    for buffer in model.buffers():  # which no file holds
        if buffer.is_floating_point():
            buffer.data = buffer.to(dtype or stored)
    return converted


def _check_values(tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Refuse NaN, infinity and a file of zeros; a stamp remembers that a stored file has none."""
    home = settings.home()
    store = Store(home) if home and checkpoint.sha256 else None
    stamp = store and store.read_stamp(checkpoint.sha256)
    if stamp and stamp.finite and stamp.fits(os.fstat(checkpoint.file.fd)):
        return
    floats = {n: t for n, t in tensors.items() if t.is_floating_point() and t.dtype in LOADABLE}
    raise_if(
        checkpoint.source,
        ("with NaN or infinite values", [n for n, t in floats.items() if not t.isfinite().all()]),
    )
    if floats and not any(t.any() for t in floats.values()):
        raise CheckpointError(f"{checkpoint.source}: every tensor in it is zero")
    if store:
        store.note_finite(checkpoint.file.fd, checkpoint.sha256)


def _check_materialised(model: nn.Module) -> None:
    state = [*model.named_parameters(), *model.named_buffers()]
    left = [name for name, tensor in state if tensor.is_meta]
    if left:
        raise CheckpointError(
            f"{listed(left)} stayed without data; a part must compute its buffers on the CPU "
            "(device='cpu') in its constructor"
        )
