"""Comparing a model with the network that its spec describes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from vitzoo.errors import InvalidOption, UnknownName, VitzooError, short_repr
from vitzoo.network.build import build
from vitzoo.parts.block import Blocks
from vitzoo.parts.heads import LinearHead, NoHead
from vitzoo.registry.registry import Registry
from vitzoo.schema.rows import built_of_parts
from vitzoo.schema.spec import PartSpec, Spec
from vitzoo.text import fold, listed

T = TypeVar("T")
WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")  # of torch.compile and of checkpointing
SAME: dict[type, type] = {LinearHead: nn.Linear, NoHead: nn.Identity, Blocks: nn.Sequential}
SIMPLE = (bool, int, float, str, tuple, type(None))
FREE = {  # attributes that do not change the outputs in evaluation, or that the file has anyway
    *(
        "training",
        "grad_checkpointing",
        "dynamic",
        "inplace",
        "rate",
        "drop_prob",
        "fused_attn",
    ),
    *("spec", "load_report", "labels", "preprocessing", "checked_parts", "loaded_positions"),
}
ADAPTERS = "merge the adapters of PEFT first: vitzoo.save(model.merge_and_unload(), path)"
PLAIN = (
    "make the weights plain parameters first: torch.nn.utils.parametrize."
    "remove_parametrizations, or torch.nn.utils.prune.remove"
)
DEPTH = (
    "move the tensors to a model of this depth, and save that model: "
    "small = vitzoo.create({**model.spec.to_data(), 'depth': len(model.blocks)}); "
    "small.load_state_dict(model.state_dict())"
)
FIXES = (  # the first whose pattern is found in the problems
    (r"\b(lora_|base_layer|modules_to_save)", ADAPTERS),
    (r"parametrizations|weight_[gv]\b|_(orig|mask)\b", PLAIN),
    (r"(?i)quanti[sz]|torchao|no tensor", "save the model before it is quantised"),
    (r"len\(blocks\)", DEPTH),
    (r"computed numbers", "model.set_input_size(model.image_size) computes them again"),
)
FIX_OF_HEAD = "replace the whole head: model.head = nn.Linear(model.embed_dim, num_classes)"
FIX_OF_MORE = "delete what was added, or register a buffer with persistent=False"
OTHERWISE = (
    "pass the other parts and options to vitzoo.create, or write the tensors alone: "
    "safetensors.torch.save_file(model.state_dict(), path)"
)


def tensors_of(model: nn.Module, spec: Spec, zoo: Registry) -> dict[str, Tensor]:
    """Return the tensors of a model, by the names in the network that `spec` describes.

    Raises:
        InvalidOption: the model has other tensors, modules or computed buffers than that network.
    """
    tensors, groups = compare(model, spec, zoo)
    problems = [
        f"{len(rows)} {what}: {listed(fold(rows))}" for what, rows in groups.items() if rows
    ]
    if problems:
        raise InvalidOption(
            "the model is not the network of model.spec, so create could not restore it; "
            f"tensors and modules: {'; '.join(problems)}; {_fix(*groups.values())}"
        )
    return tensors


def compare(
    model: nn.Module, spec: Spec, zoo: Registry
) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
    """Compare a model with the network that `spec` describes.

    Returns:
        The tensors of the model by their names in the network, and the differences: names of
        `missing` and of `unexpected` tensors, and sentences on what is `different`.

    Raises:
        InvalidOption: the network cannot be built.
    """
    try:
        network = _network(model, spec, zoo)
    except VitzooError as error:
        raise InvalidOption(f"create could not restore the model from its spec: {error}") from error
    tensors, expected = (without_wrappers(m.state_dict().items()) for m in (model, network))
    return tensors, {
        "missing": [name for name in expected if name not in tensors],
        "unexpected": [name for name in tensors if name not in expected],
        "different": [
            *_other_modules(model, network),
            *_other_shapes(tensors, expected),
            *_other_buffers(model, network, tensors),
        ],
    }


def _network(model: Any, spec: Spec, zoo: Registry) -> nn.Module:
    """Build the network of a spec on `meta`, with the parts of `model` that were given as objects.

    Computed buffers are on the CPU, as in `create`. The random generator stays as it is.
    """
    try:
        variant = zoo.variant(spec.variant) if spec.variant else None
    except UnknownName:
        variant = None
    with torch.random.fork_rng(devices=()), torch.device("meta"):
        if variant is None or built_of_parts(variant):
            return build(spec, opaque_parts(model, spec), part=zoo.part)
        network: nn.Module = zoo.host.network(variant, spec)
        return network


def opaque_parts(model: Any, spec: Spec) -> dict[str, Any]:
    """Return the parts of a model that were given as objects, by their fields of the spec."""
    names = {"pos_embed": "positions", "pool": "_pool"}  # of attributes of the model
    opaque = [f for f, part in vars(spec).items() if isinstance(part, PartSpec) and part.opaque]
    return {field: getattr(model, names.get(field, field), _no_rates) for field in opaque}


def _no_rates(*, depth: int) -> list[float]:
    """Return drop-path rates in place of a policy that was given as an object."""
    return [0.0] * depth


def without_wrappers(items: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return items by the names that they have without wrappers of submodules."""
    return {".".join(s for s in name.split(".") if s not in WRAPPERS): item for name, item in items}


def _other_shapes(tensors: dict[str, Any], expected: dict[str, Any]) -> Iterator[str]:
    for name in expected.keys() & tensors.keys():
        found, wanted = tensors[name], expected[name]
        if not isinstance(found, Tensor):
            yield f"{name} is no tensor but {type(found).__name__}"
        elif type(found) is not Tensor:
            yield f"{name} is {_full_name(found)}"
        elif found.shape != wanted.shape:
            yield f"{name} is {tuple(found.shape)}, expected {tuple(wanted.shape)}"
        elif not wanted.is_floating_point() and found.dtype != wanted.dtype:
            yield f"{name} is {found.dtype}, expected {wanted.dtype}"


def _other_modules(model: Any, network: Any) -> Iterator[str]:
    """Yield the modules of another class, or with other numbers, than in the network."""
    blocks, depth = (len(list(getattr(m, "blocks", ()))) for m in (model, network))
    if blocks != depth:
        yield f"len(blocks) is {blocks}, expected {depth}"
    modules = without_wrappers(model.named_modules(remove_duplicate=False))
    for name, wanted in network.named_modules(remove_duplicate=False):
        found = modules.get(name)
        label = name or "the model"
        if found is wanted:  # a part that was given as an object
            continue
        if found is None:
            if not name.startswith("blocks.") or blocks == depth:
                yield f"{label} is missing, expected {type(wanted).__name__}"
        elif SAME.get(type(found), type(found)) is not SAME.get(type(wanted), type(wanted)):
            yield f"{label} is {_full_name(found)}, expected {type(wanted).__name__}"
        else:
            yield from _other_numbers(label, found, vars(wanted))
            yield from _appended(name, found, wanted)


def _appended(name: str, found: nn.Module, wanted: nn.Module) -> Iterator[str]:
    """Yield the modules without tensors that a `Sequential` has, and that of the network has not.

    Names of tensors show other additional modules, and the number of blocks shows blocks.
    """
    if isinstance(found, nn.Sequential):
        own, expected = (dict(module.named_children()) for module in (found, wanted))
        if own.keys() == expected.keys() and list(own) != list(expected):
            yield f"{name} has the order {', '.join(own)}, expected {', '.join(expected)}"
    if isinstance(found, nn.Sequential) and name != "blocks":
        for key, child in found.named_children():
            if not hasattr(wanted, key) and not child.state_dict():
                yield f"{name}.{key} is {_full_name(child)}, expected no such module"


def _other_numbers(label: str, module: nn.Module, wanted: dict[str, Any]) -> Iterator[str]:
    found, inert = vars(module), {"p"} if isinstance(module, _DropoutNd) else set()
    for key, value in found.items():
        if not key.startswith("_") and callable(value) and callable(getattr(type(module), key, 0)):
            yield f"{label}.{key} is replaced by another function"
    for key, value in wanted.items():
        if key in FREE | inert or key.startswith("_") or not isinstance(value, SIMPLE):
            continue
        if key in found and not _same(found[key], value):
            yield f"{label}.{key} is {short_repr(found[key])}, expected {short_repr(value)}"


def _same(found: Any, wanted: object) -> bool:
    """Return whether two values are equal; a tensor with several numbers equals no plain value."""
    try:
        return bool(found == wanted)
    except (RuntimeError, ValueError):
        return False


def _other_buffers(model: Any, network: Any, tensors: dict[str, Any]) -> Iterator[str]:
    """Yield the computed buffers, which a file does not contain, that `create` would change."""
    named = ((n, t) for n, t in tensors.items() if isinstance(t, Tensor) and t.is_floating_point())
    first = min(named, key=lambda item: (-item[1].dtype.itemsize, item[0]), default=None)
    stored = first[1].dtype if first else None  # of the first tensor in the file
    found = without_wrappers(model.named_buffers())
    for name, wanted in without_wrappers(network.named_buffers()).items():
        buffer = found.get(name)
        if name in tensors or buffer is None or buffer is wanted or wanted.is_meta:
            continue
        restored = wanted.to(stored) if wanted.is_floating_point() and stored else wanted
        if buffer.is_meta:
            continue
        if buffer.dtype != restored.dtype:
            yield f"{name} is {buffer.dtype}, expected {restored.dtype} as the weights"
        elif not torch.equal(buffer.cpu(), restored):
            yield f"{name} has other computed numbers"


def _full_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _fix(missing: list[str], unexpected: list[str], other: list[str]) -> str:
    rows = (*missing, *unexpected, *other)
    text = "; ".join(rows)
    for pattern, fix in FIXES:
        if re.search(pattern, text):
            return fix
    if all(re.match(r"head\b", row) for row in rows):
        return FIX_OF_HEAD
    return FIX_OF_MORE if not missing and not other else OTHERWISE
