"""Summary of a network: layers with shapes and parameters, parameters by role, operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitzoo.model import VisionTransformer


@dataclass(frozen=True)
class Layer:
    """One module, or one parameter that the model itself owns.

    `output` is the shape of its output for the batch, empty if there is none; `params` counts the
    parameters of submodules, too.
    """

    name: str
    kind: str
    output: tuple[int, ...]
    params: int


@dataclass(frozen=True)
class Term:
    """Numbers of parameters of one role: weights, and biases (with other vectors)."""

    name: str
    weights: int = 0
    biases: int = 0


@dataclass(frozen=True)
class Summary:
    """Summary of a network; the sum of `terms` is `params`.

    `by_hand` are the three sums of a count on paper, without biases and norms. `flops` are the
    operations of matrix products and convolutions for the batch, two per multiply-add.
    """

    layers: tuple[Layer, ...]
    terms: tuple[Term, ...]
    by_hand: tuple[tuple[str, int], ...]
    params: int
    flops: int


def summarize(model: nn.Module, batch_size: int = 1) -> Summary:
    """Run a model of `create(..., device="meta")` once and return its summary."""
    described: Any = model
    spec = described.spec
    images = torch.empty(batch_size, spec.in_chans, *spec.image_size, device="meta")
    shapes: dict[str, tuple[int, ...]] = {}
    hooks = [
        module.register_forward_hook(partial(_record, shapes, name))
        for name, module in model.named_modules()
    ]
    was_training = model.training
    model.eval()
    with FlopCounterMode(display=False) as counter:  # needs gradients enabled
        model(images)
    model.train(was_training)
    for hook in hooks:
        hook.remove()
    terms = tuple(_terms(model))
    return Summary(
        layers=tuple(_layers(model, shapes)),
        terms=terms,
        by_hand=_by_hand(terms),
        params=sum(p.numel() for p in model.parameters()),
        flops=counter.get_total_flops(),
    )


def _record(shapes: dict[str, tuple[int, ...]], name: str, *call: Any) -> None:
    """Note the shape of a module's output, the last argument of a forward hook."""
    if isinstance(call[-1], Tensor):
        shapes[name] = tuple(call[-1].shape)


def _layers(model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> Iterator[Layer]:
    own = {name: tensor.shape for name, tensor in model.named_parameters(recurse=False)}
    for name, module in model.named_modules():
        if name == "positions" or not isinstance(model, VisionTransformer):
            for own_name, shape in own.items():  # the forward adds them to the tokens here
                yield Layer(own_name, "Parameter", tuple(shape), shape.numel())
            own.clear()
        params = sum(p.numel() for p in module.parameters())
        idle = not params and isinstance(module, nn.Identity | nn.Dropout)
        if name and name in shapes and not idle:
            yield Layer(name, type(module).__name__, shapes[name], params)


def _terms(model: nn.Module) -> Iterator[Term]:
    counts: dict[str, list[int]] = {role: [0, 0] for role in (*ROLES.values(), *OTHERS)}
    for name, parameter in model.named_parameters():
        weights = parameter.numel()
        if name == "pos_embed" and isinstance(model, VisionTransformer):
            first = parameter.shape[1] - model.grid_size[0] * model.grid_size[1]
            if 0 < first <= model.num_prefix_tokens:  # the table starts with prefix tokens
                weights -= parameter[:, :first].numel()
                counts["positions of prefix tokens"][0] += parameter[:, :first].numel()
        counts[_role(name)][name.endswith("bias")] += weights
    for role, (weights, biases) in counts.items():
        if weights or biases:
            yield Term(role, weights, biases)


def _role(name: str) -> str:
    """Return the role of a parameter, by the first known part of its name."""
    for part in name.split("."):
        if part.startswith(("norm", "fc_norm")):
            return "norms"
        if part in ROLES:
            return ROLES[part]
    return "other"


ROLES = {
    "patch_embed": "patch embedding",
    "cls_token": "class token",
    "reg_token": "registers",
    "ls1": "layer scale",
    "ls2": "layer scale",
    "ls": "layer scale",
    "attn_pool": "pooling",
    "pos_embed": "positions of patches",
    "attn": "attention",
    "mlp": "MLP",
    "head": "head",
}
OTHERS = ("positions of prefix tokens", "norms", "other")


def _by_hand(terms: tuple[Term, ...]) -> tuple[tuple[str, int], ...]:
    rows = {
        "patch matrix + positions of patches": ("patch embedding", "positions of patches"),
        "encoder weight matrices": ("attention", "MLP"),
        "head weight matrices": ("head",),
    }
    weights = {term.name: term.weights for term in terms}
    return tuple((row, sum(weights.get(r, 0) for r in roles)) for row, roles in rows.items())
