"""Checkpoint to model: check the header, map, adapt, assign, report."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vitzoo import settings
from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.detect import format_of
from vitzoo.errors import CheckpointError
from vitzoo.loading.adapt import LOADABLE, Adaptation, adapt, fresh_head
from vitzoo.loading.misfit import check, raise_if
from vitzoo.report import LoadReport, listed
from vitzoo.store.store import Store


def load(
    model: nn.Module,
    checkpoint: Checkpoint,
    adaptation: Adaptation,
    *,
    dtype: torch.dtype | None = None,
    assumed: tuple[str, ...] = (),
) -> LoadReport:
    """Load a checkpoint into a model built on `meta`. Nothing is changed unless all fits.

    Args:
        model: its parameters are replaced.
        checkpoint: the open file.
        adaptation: what may differ.
        dtype: to convert the tensors to; as stored if None.
        assumed: facts to name in the report.

    Raises:
        CheckpointError: names, shapes, types or values that do not fit; lists what is wrong.
    """
    layout = format_of(checkpoint)
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    counts = {n: t.dtype for n, t in model.state_dict().items() if not t.is_floating_point()}
    plan = adapt(layout.to_model(checkpoint.skeleton()), model, expected, adaptation)
    check(plan, expected, counts, checkpoint.source)

    raw, sha256 = checkpoint.tensors()
    _check_values(raw, checkpoint)
    adapted = adapt(layout.to_model(raw), model, expected, adaptation)
    floats = {n: t for n, t in adapted.tensors.items() if n not in counts}
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
    changed = {*adapted.resampled, *adapted.rebuilt, *converted}
    return LoadReport(
        checkpoint.source,
        sha256,
        kept=tuple(name for name in adapted.tensors if name not in changed),
        resampled=tuple(adapted.resampled),
        converted=(*adapted.rebuilt, *(n for n in converted if n not in adapted.rebuilt)),
        reinitialised=tuple(adapted.fresh),
        dropped=(*adapted.dropped, *layout.ignored_keys(raw)),
        assumed=assumed,
    )


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
