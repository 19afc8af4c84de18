"""File to tensors to model: read, verify, map, adapt, check, assign, report."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from vitzoo.catalogue import Preprocessing, Variant, Weights
from vitzoo.errors import CheckpointError, IntegrityError, WeightsUnavailable, did_you_mean
from vitzoo.formats import Format
from vitzoo.model import VisionTransformer
from vitzoo.parts.pos_embed import resample_grid
from vitzoo.plugins import data_file
from vitzoo.registry import registry
from vitzoo.report import LoadReport, fold

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LOOKS = {
    b"PK\x03\x04": "a zip or torch pickle file",
    b"\x80": "a pickle file",
    b"<": "an HTML page",
    b"version https://git-lfs": "a Git LFS pointer",
    b"\x93NUMPY": "a NumPy file",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "a gzip file",
    b"{": "a JSON text",
}


@dataclass(frozen=True)
class Checkpoint:
    """A weights file, read once.

    Args:
        source: for messages: the path, or variant and weights name.
        sha256: of the bytes that the tensors were made from.
        tensors: by the file's own keys.
        metadata: the strings in the safetensors header.
        format: name of the checkpoint format, None if it is to be found from the keys.
        labels, preprocessing: of the weights, where known.
    """

    source: str
    sha256: str
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    format: str | None = None
    labels: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = None


def read_checkpoint(path: Path, source: str = "", expected: Weights | None = None) -> Checkpoint:
    """Read a safetensors file; the tensors are made from the very bytes that were hashed.

    Raises:
        CheckpointError: the file is missing, unreadable or not safetensors.
        IntegrityError: its size or sha256 is not the expected one.
    """
    source = source or str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    digest = hashlib.sha256(data).hexdigest()
    if expected and (len(data), digest) != (expected.size, expected.sha256):
        raise IntegrityError(
            f"{source}: {path} has {len(data)} bytes, sha256 {digest}; the registry names "
            f"{expected.size} bytes, sha256 {expected.sha256}; the file is damaged or was "
            "replaced: reinstall the package it came with"
        )
    try:
        tensors = safetensors.torch.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{path} is not safetensors{_looks_like(data)}: {error}") from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return Checkpoint(source, digest, tensors, header.get("__metadata__", {}))


def choose(variant: Variant, name: str | None) -> Weights:
    """Return the weights of `variant` called `name`, its default if None.

    Raises:
        WeightsUnavailable: there are none, or none of that name.
    """
    names = [weights.name for weights in variant.weights]
    for weights in variant.weights:
        if weights.name == name or (name is None and weights.default):
            return weights
    if not names:
        raise WeightsUnavailable(
            f"{variant.name} has no weights that this version can load; create it with "
            f"pretrained=False, or pass a local file: weights='model.safetensors'"
        )
    if name is None:
        raise WeightsUnavailable(f"{variant.name} has no default weights; choose from: {names}")
    hint = did_you_mean(name, names) or f"; choose from: {', '.join(names)}"
    raise WeightsUnavailable(f"{variant.name} has no weights {name!r}{hint}")


def open_weights(variant: Variant, weights: Weights) -> Checkpoint:
    """Read the verified file of registered weights."""
    host = registry().host
    package = "vitzoo" if variant.namespace == "core" else host.packages[variant.namespace]
    path = data_file(package, weights.file)
    if path is None:
        raise WeightsUnavailable(
            f"{variant.name}: {weights.file} is missing from the package {package!r}; reinstall it"
        )
    checkpoint = read_checkpoint(path, f"{variant.name}:{weights.name}", weights)
    return replace(
        checkpoint,
        format=weights.format,
        labels=weights.labels,
        preprocessing=weights.preprocessing,
    )


def load(
    model: nn.Module,
    checkpoint: Checkpoint,
    *,
    native_size: tuple[int, int] | None = None,
    fresh_head: bool = False,
    dtype: torch.dtype | None = None,
) -> LoadReport:
    """Load a checkpoint into a model built on `meta`. Nothing is changed unless all fits.

    Args:
        model: its parameters are replaced.
        checkpoint: the file's tensors.
        native_size: (h, w) px that the file's position embedding is for; the model's if None.
        fresh_head: whether a head that does not fit is replaced by a fresh one.
        dtype: to convert the tensors to; as stored if None.

    Raises:
        CheckpointError: names, shapes, types or values that do not fit; lists what is wrong.
    """
    tensors = _format_of(checkpoint).canonical(checkpoint.tensors)
    expected = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    resampled = _resample(tensors, model, native_size)
    dropped = _drop_head(tensors, expected) if fresh_head else []
    missing = [name for name in expected if name not in tensors]
    fresh = [name for name in missing if fresh_head and name.startswith("head.")]
    _check(tensors, expected, missing=[n for n in missing if n not in fresh], source=checkpoint)
    converted = tuple(name for name, tensor in tensors.items() if dtype and tensor.dtype != dtype)
    state = {name: tensor.to(dtype or tensor.dtype) for name, tensor in tensors.items()}
    stored = next(iter(state.values())).dtype if state else None
    if fresh:
        state |= _fresh_head(model, fresh, dtype or stored)
    model.load_state_dict(state, strict=True, assign=True)
    _check_materialised(model)
    model.to(dtype=dtype or stored)  # buffers, which no file holds
    return LoadReport(
        checkpoint.source,
        checkpoint.sha256,
        kept=tuple(n for n in tensors if n not in resampled and n not in converted),
        resampled=tuple(resampled),
        converted=converted,
        reinitialised=tuple(fresh),
        dropped=tuple(dropped),
    )


def _format_of(checkpoint: Checkpoint) -> Format:
    zoo = registry()
    if checkpoint.format is not None:
        found: Format = zoo.part("checkpoint format", checkpoint.format)
        return found
    keys = checkpoint.tensors.keys()
    known = sorted(zoo.parts["checkpoint format"])
    for name in known:
        candidate: Format = zoo.part("checkpoint format", name)
        if candidate.claims(keys):
            return candidate
    raise CheckpointError(
        f"{checkpoint.source}: unknown layout; its first keys are "
        f"{', '.join(sorted(keys)[:5]) or 'none'}; formats known: {', '.join(known)}"
    )


def _resample(
    tensors: dict[str, Tensor], model: nn.Module, native_size: tuple[int, int] | None
) -> list[str]:
    if not isinstance(model, VisionTransformer) or native_size is None:
        return []
    if native_size == model.image_size or "pos_embed" not in tensors:
        return []
    old = model.patch_embed.grid(native_size)
    table = tensors["pos_embed"]
    if table.dim() == 3 and table.shape[1] == model.num_prefix_tokens + old[0] * old[1]:
        tensors["pos_embed"] = resample_grid(table, old, model.grid_size)
        return ["pos_embed"]
    return []


def _drop_head(tensors: dict[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    unfit = [
        name
        for name, tensor in tensors.items()
        if name.startswith("head.") and expected.get(name) != tuple(tensor.shape)
    ]
    layers = {name.rpartition(".")[0] for name in unfit}
    dropped = [name for name in tensors if name.rpartition(".")[0] in layers]
    for name in dropped:
        del tensors[name]
    return dropped


def _check(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, tuple[int, ...]],
    *,
    missing: list[str],
    source: Checkpoint,
) -> None:
    unexpected = [name for name in tensors if name not in expected]
    both = {name: tensor for name, tensor in tensors.items() if name in expected}
    shapes = [
        f"{name} is {tuple(t.shape)}, the model has {expected[name]}"
        for name, t in both.items()
        if tuple(t.shape) != expected[name]
    ]
    types = [f"{name} is {t.dtype}" for name, t in both.items() if t.dtype not in DTYPES]
    values = [name for name, t in both.items() if t.is_floating_point() and not t.isfinite().all()]
    problems = [
        f"{len(rows)} {what}: {_first(rows)}"
        for what, rows in (
            ("missing", fold(missing)),
            ("unexpected", fold(unexpected)),
            ("with another shape", shapes),
            ("of a type that weights do not have", types),
            ("with NaN or infinite values", values),
        )
        if rows
    ]
    if problems:
        raise CheckpointError(
            f"{source.source} does not fit the model; tensors " + "; ".join(problems)
        )


def _first(rows: list[str], count: int = 10) -> str:
    more = f" and {len(rows) - count} more" if len(rows) > count else ""
    return ", ".join(ascii(row)[1:-1] for row in rows[:count]) + more


def _fresh_head(model: nn.Module, names: list[str], dtype: torch.dtype | None) -> dict[str, Tensor]:
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
            f"{_first(left)} stayed without data; a part must compute its buffers on the CPU "
            "(device='cpu') in its constructor"
        )


def _looks_like(data: bytes) -> str:
    for magic, what in LOOKS.items():
        if data.startswith(magic):
            return f" (looks like {what})"
    return " (empty file)" if not data else ""
