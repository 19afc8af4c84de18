"""Checking that a file fits a network, and explaining why it does not."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vitzoo.errors import CheckpointError
from vitzoo.loading.adapt import CLASSIFIERS, LOADABLE, Adapted
from vitzoo.registry.registry import Registry
from vitzoo.report import fold, listed
from vitzoo.schema.spec import PartSpec, Spec

MAX_NAMES = 4  # of variants in a message


def fitting(tensors: Mapping[str, Tensor], zoo: Registry) -> str:
    """Name the core's variants whose depth, widths, patches and tokens tensors have, for a message.

    Args:
        tensors: by the model's own names.
        zoo: holds the variants.
    """
    numbers = _numbers({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    variants = zoo.host.core.variants if numbers else ()
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


def check(
    plan: Adapted,
    expected: Mapping[str, tuple[int, ...]],
    counts: Mapping[str, torch.dtype],
    source: str,
    zoo: Registry,
) -> None:
    """Refuse tensors that are missing, unexpected, of another shape or of another type.

    Args:
        plan: the file's tensors by the model's names, without data.
        expected: shapes that the model has.
        counts: types of the model's integer tensors.
        source: for messages.
        zoo: whose variants a message may suggest.

    Raises:
        CheckpointError: the file does not fit; lists every problem.
    """
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
    hint = _hint(plan, expected, missing, unexpected, unfit, zoo)
    raise_if(
        source,
        ("missing", missing),
        ("unexpected", unexpected),
        ("with another shape", shapes),
        ("of a type that weights do not have", types),
        hint=hint or _unnamed_kernel(plan, expected, unfit),
    )


def _hint(
    plan: Adapted,
    expected: Mapping[str, tuple[int, ...]],
    missing: list[str],
    unexpected: list[str],
    unfit: list[str],
    zoo: Registry,
) -> str:
    """Say which argument, or which variant, would make the tensors of a misfit fit."""
    if not all(name.startswith("head.") for name in (*missing, *unexpected, *unfit)):
        same = _numbers({n: tuple(t.shape) for n, t in plan.tensors.items()}) == _numbers(expected)
        return "" if same else fitting(plan.tensors, zoo)
    if unfit and not missing and not unexpected:
        for name in CLASSIFIERS:
            shape = tuple(plan.tensors[name].shape) if name in unfit else ()
            if len(shape) == 2 and shape[1:] == expected[name][1:]:
                return f"; the file has {shape[0]} classes: pass num_classes={shape[0]}"
    if missing and not unexpected and not any(name.startswith("head.") for name in plan.tensors):
        return "; the file has no classifier: pass num_classes=, 0 for none or K for a fresh one"
    return ""


def _unnamed_kernel(
    plan: Adapted, expected: Mapping[str, tuple[int, ...]], unfit: list[str]
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


def raise_if(source: str, *groups: tuple[str, list[str]], hint: str = "") -> None:
    """Raise the error about a file that does not fit, if any group of problems has one."""
    problems = [f"{len(rows)} {what}: {listed(fold(rows))}" for what, rows in groups if rows]
    if problems:
        raise CheckpointError(
            f"{source} does not fit the model; tensors " + "; ".join(problems) + hint
        )
