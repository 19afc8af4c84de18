"""Checkpoint to model: check the header, map, adapt, assign, report."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vitzoo import settings
from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.detect import format_of
from vitzoo.errors import CheckpointError
from vitzoo.formats import Format, LeavesOut
from vitzoo.model import VisionTransformer
from vitzoo.registry.registry import registry
from vitzoo.report import LoadReport, fold, listed
from vitzoo.schema.spec import PartSpec, Spec
from vitzoo.store.store import Store

HEADS = ("head.",)
CLASSIFIERS = ("head.weight", "head.fc.weight")
MAX_NAMES = 4  # of variants in a message
LOADABLE = (torch.float32, torch.float16, torch.bfloat16)


class Foreign(Protocol):
    """What a network of a builder of its own says of its weights, as its attribute `foreign`.

    Without it, the weights of such a network are loaded as they are or not at all.

    Attributes:
        classifiers: how the names of its classifiers' tensors begin, `head.`; where other classes
            are asked for, those that do not fit are zero.
        input_convs: names of the kernels that read the channels of the image.
    """

    classifiers: tuple[str, ...]
    input_convs: tuple[str, ...]

    def resample(
        self, tensors: Mapping[str, Tensor], native_size: tuple[int, int]
    ) -> dict[str, Tensor]:
        """Return what becomes of a file's tensors with the images of this network.

        Args:
            tensors: with data or on `meta`.
            native_size: (h, w) px of the images that they are for.
        """
        ...


@dataclass(frozen=True)
class Adaptation:
    """What the caller asked for that the file may not have.

    Args:
        native_size: (h, w) px that the file's position embedding is for.
        fresh_head: whether a head that does not fit is replaced by a fresh one.
        fresh_pre_logits: whether the file's pre-logits belong to a head of another kind, whatever
            their shape.
        in_chans: whether the patch projection may be brought to other channels.
    """

    native_size: tuple[int, int] | None = None
    fresh_head: bool = False
    fresh_pre_logits: bool = False
    in_chans: bool = False


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
    plan = _adapt(layout.canonical(checkpoint.skeleton()), model, expected, adaptation)
    _check(plan, expected, counts, checkpoint.source)

    raw, sha256 = checkpoint.tensors()
    _check_values(raw, checkpoint)
    adapted = _adapt(layout.canonical(raw), model, expected, adaptation)
    floats = {n: t for n, t in adapted.tensors.items() if n not in counts}
    converted = tuple(n for n, t in floats.items() if dtype and t.dtype != dtype)
    state = adapted.tensors | {name: t.to(dtype or t.dtype) for name, t in floats.items()}
    stored = next(iter(floats.values())).dtype if floats else None
    if adapted.fresh:
        state |= _fresh_head(model, adapted.fresh, dtype or stored)
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
        dropped=(*adapted.dropped, *_left_out(layout, raw)),
        assumed=assumed,
    )


def _left_out(layout: Format, keys: Collection[str]) -> list[str]:
    return layout.left_out(keys) if isinstance(layout, LeavesOut) else []


@dataclass
class _Adapted:
    tensors: dict[str, Tensor]
    resampled: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    unnamed: bool = False  # whether channels shall change, and no kernel that does is known


def _adapt(
    tensors: dict[str, Tensor],
    model: nn.Module,
    expected: Mapping[str, tuple[int, ...]],
    adaptation: Adaptation,
) -> _Adapted:
    result = _Adapted(tensors)
    foreign: Foreign | None = getattr(model, "foreign", None)
    if adaptation.native_size is not None:
        if isinstance(model, VisionTransformer):
            _resample(result, model, adaptation.native_size)
        elif foreign is not None:
            moved = foreign.resample(tensors, adaptation.native_size)
            result.resampled += [name for name in moved if moved[name] is not tensors.get(name)]
            result.tensors = moved
    if adaptation.in_chans:
        part = getattr(model, "patch_embed", None)
        own = (f"patch_embed.{getattr(part, 'input_conv', 'proj.weight')}",)
        for name in own if foreign is None else foreign.input_convs:
            _change_channels(result, name, expected)
    if adaptation.fresh_head:
        heads = HEADS if foreign is None else foreign.classifiers
        _drop_head(result, expected, heads, pre_logits=adaptation.fresh_pre_logits)
        missing = [name for name in expected if name not in result.tensors]
        result.fresh = [name for name in missing if name.startswith(heads)]
    return result


def _resample(result: _Adapted, model: VisionTransformer, native_size: tuple[int, int]) -> None:
    table = result.tensors.get("pos_embed")
    if table is None or native_size == model.image_size or model.pos_embed is None:
        return
    if table.dtype not in LOADABLE:
        return  # refused later, by name
    old = model.patch_embed.grid(native_size)
    with torch.device("meta"):
        expected = model.positions.initial_table(old)
    if expected is not None and table.shape == expected.shape:
        moved = model.positions.resample(table, old, model.grid_size)
        result.tensors["pos_embed"] = table if moved is None else moved
        result.resampled.append("pos_embed")


def _change_channels(result: _Adapted, name: str, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Bring the first convolution to other channels: summed to one, else repeated and scaled.

    Source: timm's `adapt_input_conv`.
    """
    kernel, wanted = result.tensors.get(name), expected.get(name, ())
    if kernel is None or len(wanted) != 4 or kernel.dim() != 4 or kernel.shape[1] == wanted[1]:
        result.unnamed = True
        return
    if kernel.dtype not in LOADABLE or not kernel.shape[1]:
        return  # refused later, by name
    if wanted[1] == 1:
        changed = kernel.float().sum(dim=1, keepdim=True)
    else:
        copies = -(-wanted[1] // kernel.shape[1])
        changed = kernel.float().repeat(1, copies, 1, 1)[:, : wanted[1]]
        changed = changed * (kernel.shape[1] / wanted[1])
    result.tensors[name] = changed.to(kernel.dtype)
    result.rebuilt.append(name)


def _drop_head(
    result: _Adapted,
    expected: Mapping[str, tuple[int, ...]],
    heads: tuple[str, ...],
    *,
    pre_logits: bool,
) -> None:
    unfit = [
        name
        for name, tensor in result.tensors.items()
        if (name.startswith(heads) and expected.get(name) != tuple(tensor.shape))
        or (pre_logits and name.startswith("head.pre_logits."))
    ]
    layers = {name.rpartition(".")[0] for name in unfit}
    result.dropped = [name for name in result.tensors if name.rpartition(".")[0] in layers]
    for name in result.dropped:
        del result.tensors[name]


def fitting(tensors: Mapping[str, Tensor]) -> str:
    """Name the core's variants whose depth, widths, patches and tokens tensors have, for a message.

    Args:
        tensors: by the model's own names.
    """
    numbers = _numbers({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    variants = registry().host.core.variants if numbers else ()
    names = [row.name for row in variants if _numbers_of(row.spec) == numbers]
    return f"; the tensors fit {' or '.join(names[:MAX_NAMES])}" if names else ""


def _numbers(shapes: Mapping[str, tuple[int, ...]]) -> tuple[object, ...]:
    """Return depth, patch kernel, MLP width and table of a network; empty if they do not show."""
    kernel, mlp = shapes.get("patch_embed.proj.weight", ()), shapes.get("blocks.0.mlp.fc1.weight")
    if len(kernel) != 4 or mlp is None or len(mlp) != 2:
        return ()
    depth = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    return depth, kernel, mlp, "cls_token" in shapes, shapes.get("pos_embed")


def _numbers_of(spec: Spec) -> tuple[object, ...]:
    (h, w), d = spec.patch_size, spec.embed_dim
    tokens = spec.image_size[0] // h * (spec.image_size[1] // w) + spec.class_token
    table = (1, tokens + spec.num_registers, d) if spec.pos_embed == PartSpec("learned") else None
    return spec.depth, (d, spec.in_chans, h, w), (spec.mlp_dim, d), spec.class_token, table


def _check(
    plan: _Adapted,
    expected: Mapping[str, tuple[int, ...]],
    counts: Mapping[str, torch.dtype],
    source: str,
) -> None:
    missing = [n for n in expected if n not in plan.tensors and n not in plan.fresh]
    unexpected = [name for name in plan.tensors if name not in expected]
    both = {name: tensor for name, tensor in plan.tensors.items() if name in expected}
    shapes = [
        f"{name} is {tuple(t.shape)}, the model has {expected[name]}"
        for name, t in both.items()
        if tuple(t.shape) != expected[name]
    ]
    types = [
        f"{name} is {t.dtype}"
        for name, t in both.items()
        if t.dtype not in ((counts[name],) if name in counts else LOADABLE)
    ]
    unfit = [name for name, t in both.items() if tuple(t.shape) != expected[name]]
    hint = _hint(plan, expected, missing, unexpected, unfit)
    _raise_if(
        source,
        ("missing", missing),
        ("unexpected", unexpected),
        ("with another shape", shapes),
        ("of a type that weights do not have", types),
        hint=hint or _unnamed_kernel(plan, expected, unfit),
    )


def _hint(
    plan: _Adapted,
    expected: Mapping[str, tuple[int, ...]],
    missing: list[str],
    unexpected: list[str],
    unfit: list[str],
) -> str:
    """Say which argument, or which variant, would make the tensors of a misfit fit."""
    if not all(name.startswith("head.") for name in (*missing, *unexpected, *unfit)):
        same = _numbers({n: tuple(t.shape) for n, t in plan.tensors.items()}) == _numbers(expected)
        return "" if same else fitting(plan.tensors)
    if unfit and not missing and not unexpected:
        for name in CLASSIFIERS:
            shape = tuple(plan.tensors[name].shape) if name in unfit else ()
            if len(shape) == 2 and shape[1:] == expected[name][1:]:
                return f"; the file has {shape[0]} classes: pass num_classes={shape[0]}"
    if missing and not unexpected and not any(name.startswith("head.") for name in plan.tensors):
        return "; the file has no classifier: pass num_classes=, 0 for none or K for a fresh one"
    return ""


def _unnamed_kernel(
    plan: _Adapted, expected: Mapping[str, tuple[int, ...]], unfit: list[str]
) -> str:
    """Say why a kernel of a patch embedder was not brought to the channels that were asked for."""
    for name in unfit if plan.unnamed else ():
        shape, wanted = tuple(plan.tensors[name].shape), expected[name]
        own = name.removeprefix("patch_embed.")
        if own != name and len(shape) == 4 and (shape[0], *shape[2:]) == (wanted[0], *wanted[2:]):
            return (
                "; to bring it to other in_chans the patch embedder has to name it, with an "
                f"attribute input_conv = {own!r}"
            )
    return ""


def _check_values(tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Refuse NaN, infinity and a file of zeros; a stamp remembers that a stored file has none."""
    home = settings.home()
    store = Store(home) if home and checkpoint.sha256 else None
    stamp = store and store.read_stamp(checkpoint.sha256)
    if stamp and stamp.finite and stamp.fits(os.fstat(checkpoint.file.fd)):
        return
    floats = {n: t for n, t in tensors.items() if t.is_floating_point() and t.dtype in LOADABLE}
    _raise_if(
        checkpoint.source,
        ("with NaN or infinite values", [n for n, t in floats.items() if not t.isfinite().all()]),
    )
    if floats and not any(t.any() for t in floats.values()):
        raise CheckpointError(f"{checkpoint.source}: every tensor in it is zero")
    if store:
        store.note_finite(checkpoint.file.fd, checkpoint.sha256)


def _raise_if(source: str, *groups: tuple[str, list[str]], hint: str = "") -> None:
    problems = [f"{len(rows)} {what}: {listed(fold(rows))}" for what, rows in groups if rows]
    if problems:
        raise CheckpointError(
            f"{source} does not fit the model; tensors " + "; ".join(problems) + hint
        )


def _fresh_head(model: nn.Module, names: list[str], dtype: torch.dtype | None) -> dict[str, Tensor]:
    if not isinstance(model, VisionTransformer):
        shapes = {name: model.state_dict()[name] for name in names}
        return {n: torch.zeros_like(t, dtype=dtype, device="cpu") for n, t in shapes.items()}
    head: Any = model.head
    if any(p.is_meta for p in head.parameters()):
        head = head.reset(head.num_classes)
    state = {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    return {name: state[name].to(dtype or state[name].dtype) for name in names}


def _check_materialised(model: nn.Module) -> None:
    state = [*model.named_parameters(), *model.named_buffers()]
    left = [name for name, tensor in state if tensor.is_meta]
    if left:
        raise CheckpointError(
            f"{listed(left)} stayed without data; a part must compute its buffers on the CPU "
            "(device='cpu') in its constructor"
        )
