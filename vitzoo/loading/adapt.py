"""Adapting weights to another number of classes, of channels, or another image size."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.formats.timm import HEADS
from vitzoo.loading.plan import Plan
from vitzoo.network.model import VisionTransformer
from vitzoo.parts.init import WithoutData
from vitzoo.parts.protocols import GRID, MODULE, TABLE, WeightsAdapter, blame, call
from vitzoo.text import listed

CLASSIFIERS = ("head.weight", "head.fc.weight")
PRE_LOGITS = "head.pre_logits."
LOADABLE = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class Adapted:
    """The tensors of a file after adaptation, with the names of changed and removed tensors."""

    tensors: dict[str, Tensor]
    resampled: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    positions: tuple[Tensor, tuple[int, int]] | None = None  # table before interpolation, and grid
    unnamed: bool = False  # whether no kernel was found to adapt to other channels


def adapt(
    tensors: dict[str, Tensor],
    model: nn.Module,
    expected: Mapping[str, Tensor],
    plan: Plan,
    *,
    pooled: bool = False,
) -> Adapted:
    """Adapt the tensors of a file to those of a model.

    Args:
        tensors: with or without data, by the names of the model.
        model: the network `plan.wanted`.
        expected: its tensors.
        plan: the networks of the weights and of the model.
        pooled: whether a classifier on pre-logits may be one of the class token, see `Format`.
    """
    result, native_size = Adapted(tensors), plan.trained.image_size
    foreign: WeightsAdapter | None = getattr(model, "foreign", None)
    if isinstance(model, VisionTransformer):
        _resample(result, model, native_size)
    elif foreign is not None:
        moved = foreign.resample(tensors, native_size)
        result.resampled += [name for name in moved if moved[name] is not tensors.get(name)]
        result.tensors = moved
    if plan.trained.in_chans != plan.wanted.in_chans:
        part = getattr(model, "patch_embed", None)
        own = (f"patch_embed.{getattr(part, 'input_conv', 'proj.weight')}",)
        for name in own if foreign is None else foreign.input_convs:
            _change_channels(result, name, expected)
    if pooled and CLASSIFIERS[0] in expected:
        _leave_pooler_out(result)
    if plan.asked:
        heads = HEADS if foreign is None else foreign.classifiers
        new = {name for name in expected if name.startswith(heads)}
        if isinstance(model, VisionTransformer) and "head" not in plan.asked:
            new = _classifier(model)
        dropped = result.dropped
        _drop_head(result, expected, heads, new, pre_logits=plan.other_pre_logits)
        result.dropped = [*dropped, *result.dropped]
        result.fresh = [name for name in expected if name in new - result.tensors.keys()]
    return result


def _leave_pooler_out(result: Adapted) -> None:
    """Give a linear head the classifier that a file has beside a pooler."""
    tensors = result.tensors
    if CLASSIFIERS[1] in tensors:
        result.dropped += [name for name in tensors if name.startswith(PRE_LOGITS)]
        moved = {name.replace("head.fc.", "head."): t for name, t in tensors.items()}
        result.tensors = {name: t for name, t in moved.items() if name not in result.dropped}


def _classifier(model: VisionTransformer) -> set[str]:
    """Return the names of the tensors of a head whose shapes the number of classes determines."""
    with WithoutData():
        other = _reset(model, model.head.num_classes + 1).state_dict()
    state = model.head.state_dict().items()
    return {f"head.{n}" for n, t in state if n not in other or other[n].shape != t.shape}


def _reset(model: VisionTransformer, num_classes: int) -> Any:
    """Return a new head with another number of classes."""
    return call(model.checked_parts.get("head"), model.head.reset, (num_classes,), MODULE)


def _resample(result: Adapted, model: VisionTransformer, native_size: tuple[int, int]) -> None:
    table = result.tensors.get("pos_embed")
    if table is None or native_size == model.image_size or model.pos_embed is None:
        return
    if table.dtype not in LOADABLE:
        return  # `check` reports its dtype later
    what = model.checked_parts.get
    old = call(what("patch_embed"), model.patch_embed.grid, (native_size,), GRID)
    with torch.device("meta"):
        expected = call(what("pos_embed"), model.positions.initial_table, (old,), TABLE)
    if expected is not None and table.shape == expected.shape:
        inputs = table, old, model.grid_size
        moved = call(what("pos_embed"), model.positions.resample, inputs, TABLE)
        result.tensors["pos_embed"] = table if moved is None else moved
        result.resampled.append("pos_embed")
        result.positions = table, old


def _change_channels(result: Adapted, name: str, expected: Mapping[str, Tensor]) -> None:
    """Sum the input channels of a kernel to one, or repeat and scale them to another number.

    Source: timm's `adapt_input_conv`.
    """
    kernel = result.tensors.get(name)
    shape = expected[name].shape if name in expected else ()
    if kernel is None or len(shape) != 4 or kernel.dim() != 4 or kernel.shape[1] == shape[1]:
        result.unnamed = True
        return
    if kernel.dtype not in LOADABLE or not kernel.shape[1]:
        return  # `check` reports its dtype or shape later
    if shape[1] == 1:
        changed = kernel.float().sum(dim=1, keepdim=True)
    else:
        copies = -(-shape[1] // kernel.shape[1])
        changed = kernel.float().repeat(1, copies, 1, 1)[:, : shape[1]]
        changed = changed * (kernel.shape[1] / shape[1])
    result.tensors[name] = changed.to(kernel.dtype)
    result.rebuilt.append(name)


def _drop_head(
    result: Adapted,
    expected: Mapping[str, Tensor],
    heads: tuple[str, ...],
    new: Collection[str],
    *,
    pre_logits: bool,
) -> None:
    """Remove each layer of the head that the model does not have, or that may be new and differs.

    `new` are the tensors that may be newly initialised.
    """
    unfit = [
        name
        for name, tensor in result.tensors.items()
        if name.startswith(heads)
        and (name not in expected or (name in new and expected[name].shape != tensor.shape))
    ]
    unfit += [name for name in result.tensors if pre_logits and name.startswith(PRE_LOGITS)]
    layers = {name.rpartition(".")[0] for name in unfit}
    result.dropped = [name for name in result.tensors if name.rpartition(".")[0] in layers]
    for name in result.dropped:
        del result.tensors[name]


def fresh_head(model: nn.Module, names: list[str], dtype: torch.dtype | None) -> dict[str, Tensor]:
    """Return new tensors, with data, for these parameters of a model's head.

    Raises:
        PluginError, InvalidOption: the head's `reset` returned none for some of them.
    """
    if not isinstance(model, VisionTransformer):
        shapes = {name: model.state_dict()[name] for name in names}
        return {n: torch.zeros_like(t, dtype=dtype, device="cpu") for n, t in shapes.items()}
    head: Any = model.head
    if any(p.is_meta for p in head.parameters()):
        head = _reset(model, head.num_classes)
    state = {f"head.{name}": tensor for name, tensor in head.state_dict().items()}
    if lacking := [name for name in names if name not in state or state[name].is_meta]:
        problem = (
            f"reset({model.head.num_classes}) of a head on meta returned no data for "
            f"{listed(lacking)}, expected new layers on the CPU: make them without the device of "
            "this head"
        )
        raise blame(model.checked_parts.get("head", "head"), problem, code=model.head.reset)
    return {name: state[name].to(dtype or state[name].dtype) for name in names}
