"""What a network is made of: layers with shapes and parameters, terms, multiplications."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitzoo.model import VisionTransformer


@dataclass(frozen=True)
class Layer:
    """One module, or one parameter that the model itself owns.

    Args:
        name: path in the model.
        kind: class name, `Parameter` for a parameter.
        output: shape it gives for the summary's batch; empty if it does not run or gives no
            tensor.
        params: number of parameters, its submodules' included.
    """

    name: str
    kind: str
    output: tuple[int, ...]
    params: int


@dataclass(frozen=True)
class Term:
    """Parameters of one role, weights and biases (and other vectors) apart."""

    name: str
    weights: int = 0
    biases: int = 0


@dataclass(frozen=True)
class Summary:
    """Account of a network.

    Args:
        layers: in the order they are registered.
        terms: parameters by role; they add up to `params`.
        by_hand: the three sums by which ViT is counted on paper (no biases, no norms).
        params: number of parameters.
        flops: floating-point operations of the matrix products and convolutions for the batch
            (two per multiplication and addition).
    """

    layers: tuple[Layer, ...]
    terms: tuple[Term, ...]
    by_hand: tuple[tuple[str, int], ...]
    params: int
    flops: int


def summarize(model: nn.Module, batch_size: int = 1) -> Summary:
    """Run a model built on `meta` once and account for it; nothing is computed or allocated.

    Args:
        model: from `create(..., device="meta")`; its spec says the input's shape.
        batch_size: b.
    """
    described: Any = model
    spec = described.spec
    images = torch.empty(batch_size, spec.in_chans, *spec.image_size, device="meta")
    shapes: dict[str, tuple[int, ...]] = {}
    hooks = [
        module.register_forward_hook(_recorder(shapes, name))
        for name, module in model.named_modules()
    ]
    was_training = model.training
    model.eval()
    with FlopCounterMode(display=False) as counter:  # needs autograd on; meta keeps nothing
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


def _recorder(shapes: dict[str, tuple[int, ...]], name: str) -> Any:
    def record(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            shapes[name] = tuple(output.shape)

    return record


def _layers(model: nn.Module, shapes: dict[str, tuple[int, ...]]) -> Iterator[Layer]:
    own = {name: tensor.shape for name, tensor in model.named_parameters(recurse=False)}
    for name, module in model.named_modules():
        if name == "positions" or not isinstance(model, VisionTransformer):
            for own_name, shape in own.items():  # they join the tokens here
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
            if 0 < first <= model.num_prefix_tokens:  # a row for each token, prefix tokens first
                weights -= parameter[:, :first].numel()
                counts["positions of prefix tokens"][0] += parameter[:, :first].numel()
        counts[_role(name)][name.endswith("bias")] += weights
    for role, (weights, biases) in counts.items():
        if weights or biases:
            yield Term(role, weights, biases)


def _role(name: str) -> str:
    """Tell the role of a parameter from the parts of its name, the model's own first."""
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
    weights = {term.name: term.weights for term in terms}
    return (
        (
            "patch matrix + positions of patches",
            _sum(weights, "patch embedding", "positions of patches"),
        ),
        ("encoder weight matrices", _sum(weights, "attention", "MLP")),
        ("head weight matrices", _sum(weights, "head")),
    )


def _sum(weights: dict[str, int], *names: str) -> int:
    return sum(weights.get(name, 0) for name in names)
