"""Summary of a network: layers with shapes and parameters, parameters by role, operations, memory.

Networks run on `meta`, where tensors have shapes and no data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from vitzoo.display import html_table
from vitzoo.network.model import VisionTransformer
from vitzoo.text import count, megabytes, three_digits

IN_LATER_BLOCK = re.compile(r"blocks\.[1-9]\d*\.")


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
    operations of matrix products and convolutions for the batch, two per multiply-accumulate.
    `activations` is the peak memory of the batch in bytes, see `Cost`.
    """

    layers: tuple[Layer, ...]
    terms: tuple[Term, ...]
    by_hand: tuple[tuple[str, int], ...]
    params: int
    flops: int
    activations: int

    def __repr__(self) -> str:
        memory = f"activations {megabytes(self.activations)}"
        return f"Summary({count(self.params)} parameters, {self._gmacs}, {memory})"

    def _repr_html_(self) -> str:
        layers = (
            {
                "layer": layer.name,
                "kind": layer.kind,
                "output": "x".join(map(str, layer.output)),
                "params": count(layer.params),
            }
            for layer in self.outside_later_blocks
        )
        terms = (
            {"parameters of": term.name, "weights": count(term.weights)}
            | {"biases": count(term.biases)}
            for term in self.terms
        )
        total = f"{count(self.params)} parameters, {self._gmacs}"
        memory = f"peak memory of activations: {megabytes(self.activations)} in fp32"
        return html_table(layers, total) + html_table(terms, notes=[memory])

    @property
    def outside_later_blocks(self) -> tuple[Layer, ...]:
        """The layers without those of the second and later blocks, which are like the first."""
        return tuple(layer for layer in self.layers if not IN_LATER_BLOCK.match(layer.name))

    @property
    def _gmacs(self) -> str:
        return f"{three_digits(self.flops / 2e9)} GMACs"


@dataclass(frozen=True)
class Cost:
    """What one forward pass of a network takes besides its parameters.

    Args:
        macs: multiply-accumulates of all matrix products, attention included, and convolutions.
            All blocks compute all tokens, also those that the pool does not read.
        activations: peak memory in bytes in fp32 without gradients: the largest sum of the sizes
            of all tensors that are alive at the same time, images included, parameters and
            buffers excluded. Each operation of eager torch allocates its result. Attention is
            fused, so it allocates no matrix of probabilities. Temporary memory inside a kernel
            does not count.

    Source: on a CPU, `activations` equals the peak that torch's allocator reports.
    """

    macs: int
    activations: int


def cost(model: nn.Module, images: Tensor) -> Cost:
    """Run a model without gradients and return what the images take.

    Args:
        model: on `meta`; it is evaluated.
        images: (b, c, h, w) on `meta`.
    """
    usual = every = _counted(model, model, images)
    if isinstance(model, VisionTransformer):  # its forward computes fewer tokens in the last block
        every = _counted(model, lambda x: model.forward_head(model.forward_features(x)), images)
    return Cost(macs=every.flops // 2, activations=usual.peak)


def _counted(model: nn.Module, forward: Callable[[Tensor], Any], images: Tensor) -> _Counter:
    kept = [*model.parameters(), *model.buffers()]
    with _evaluated(model), torch.no_grad(), _Counter(images, kept) as counter, _Replaced(counter):
        forward(images)
    return counter


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of torch
    """Adds up operations, and notes the largest number of bytes that are alive at the same time.

    Args:
        images: tensor that is alive from the beginning.
        kept: tensors that do not count.
    """

    def __init__(self, images: Tensor, kept: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.kept = {_storage(tensor) for tensor in kept}
        self.alive = {_storage(images): images.untyped_storage().nbytes()}
        self.peak = sum(self.alive.values())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operation, and count it and the memory of its results."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        count = flop_registry.get(func.overloadpacket)
        self.flops += count(*args, **kwargs, out_val=result) if count else 0
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and (ref := _storage(tensor)) not in self.kept:
                self.alive[ref] = tensor.untyped_storage().nbytes()
        self.alive = {ref: size for ref, size in self.alive.items() if not ref.expired()}  # type: ignore[no-untyped-call]
        self.peak = max(self.peak, sum(self.alive.values()))
        return result


def _storage(tensor: Tensor) -> StorageWeakRef:
    """Return what identifies the memory of a tensor, and tells whether it was freed."""
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class _Replaced(TorchFunctionMode):
    """Replaces functions on `meta` by empty results of their shape, and counts their operations.

    Attention on `meta` would allocate a matrix of probabilities, which fused kernels do not. The
    other functions take most of the time on `meta`.
    """

    def __init__(self, counter: _Counter) -> None:
        super().__init__()
        self.counter = counter

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return an empty result, or call the function."""
        replacement = REPLACEMENTS.get(func)
        if replacement is None:
            return func(*args, **(kwargs or {}))
        result, flops = replacement(*args, **(kwargs or {}))
        self.counter.flops += flops
        return result


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, int]:  # noqa: A002, ARG001  # as torch names them
    flops = 2 * input.numel() * weight.shape[0]
    return _empty(*input.shape[:-1], weight.shape[0]), flops


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, int]:
    *batch, n, width = query.shape  # (b, heads, n, head_dim)
    width_out = value.shape[-1]
    flops = 2 * math.prod(batch) * n * key.shape[-2] * (width + width_out)
    if len(batch) != 2:
        return _empty(*batch, n, width_out), flops
    return _empty(batch[0], n, batch[1], width_out).transpose(1, 2), flops  # as fused kernels do


def _same_shape(input: Tensor, *_: Any, **__: Any) -> tuple[Tensor, int]:  # noqa: A002
    return _empty(*input.shape), 0


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device="meta")


REPLACEMENTS: dict[Any, Callable[..., tuple[Tensor, int]]] = {
    F.linear: _linear,
    F.scaled_dot_product_attention: _attention,
    F.layer_norm: _same_shape,
    F.gelu: _same_shape,
}


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
    with _evaluated(model), torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    taken = cost(model, images)
    terms = tuple(_terms(model))
    return Summary(
        layers=tuple(_layers(model, shapes)),
        terms=terms,
        by_hand=_by_hand(terms),
        params=sum(p.numel() for p in model.parameters()),
        flops=2 * taken.macs,
        activations=taken.activations,
    )


def _record(shapes: dict[str, tuple[int, ...]], name: str, *call: Any) -> None:
    """Note the shape of a module's output, the last argument of a forward hook.

    An output of several tensors, such as `vitzoo.parts.Merged`, begins with the tokens.
    """
    output = call[-1][0] if isinstance(call[-1], tuple) and call[-1] else call[-1]
    if isinstance(output, Tensor):
        shapes[name] = tuple(output.shape)


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
    **dict.fromkeys(("ls1", "ls2", "ls"), "layer scale"),
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
