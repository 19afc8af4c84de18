"""Fingerprints: what determines the numbers that a network gives for an image.

A fingerprint describes a network by its spec. `changes` finds what the spec does not state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import PIL
import torch
from PIL import features
from torch import nn

import vitzoo
from vitzoo.apps.predict.arithmetic import matmul_precision
from vitzoo.checkpoint.comparison import SIMPLE, compare, opaque_parts, without_wrappers
from vitzoo.display import brief
from vitzoo.errors import InvalidOption
from vitzoo.files.platform.libraries import cublas_version
from vitzoo.registry.registry import registry
from vitzoo.schema.spec import Spec
from vitzoo.text import fold, listed

ADDED = ("changes", "parts", "settings", "native_size")
GPUS = ("cuda", "mps")  # names in `versions`; of other kinds of devices, `device` has the name
COMPILED = "torch._dynamo.eval_frame.OptimizedModule"


@dataclass(frozen=True)
class Fingerprint:
    """What determines the numbers of a `Predictor`.

    On one machine, equal fingerprints give equal bytes.

    Args:
        weights: SHA-256 of the weights file; of a model object, that of its state dict.
        network: the spec of the network, as plain data.
        preprocessing: how images are prepared, as plain data.
        outputs: names of the outputs.
        labels: SHA-256 of the class names, their number in a row, and the output activation if it
            is not the usual one; empty without labels.
        dtype: type of the parameters, such as `float32`.
        chunk: shape (b, c, h, w) of the input of each forward pass, (b, c) with native sizes.
        versions: of vitzoo, of the libraries that compute, and the kind of processor.
        changes: what distinguishes the model from the network of its spec.
        parts: classes and plain attributes of the parts that were given as objects.
        settings: settings of torch that differ from its defaults, by their names. On CUDA also the
            order of the kernels of attention, the workspaces of cuBLAS, the precision of
            convolutions if there are any, and variables of the environment.
        native_size: largest number of patches of an image with native sizes, otherwise 0.
    """

    weights: str
    network: Mapping[str, Any]
    preprocessing: Mapping[str, Any]
    outputs: tuple[str, ...]
    labels: str
    dtype: str
    chunk: tuple[int, ...]
    versions: Mapping[str, str]
    changes: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    native_size: int = 0

    __repr__ = brief

    def to_data(self) -> dict[str, Any]:
        """Return the fingerprint as plain data, which JSON can store.

        The last four fields are left out if they are empty.
        """
        data: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {key: value for key, value in data.items() if value or key not in ADDED}

    @property
    def sha256(self) -> str:
        """SHA-256 of the data as JSON with sorted keys."""
        return hash_data(self.to_data())


def describe_network(spec: Spec) -> dict[str, Any]:
    """Return a spec as plain data; without windows as an earlier version, which had none."""
    data = spec.to_data()
    if not spec.block.window:
        for name in ("window", "global_blocks"):
            data["block"].pop(name, None)
    return data


def hash_data(data: object) -> str:
    """Return the SHA-256 of plain data as JSON with sorted keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def hash_tensors(model: nn.Module) -> str:
    """Return the SHA-256 of a state dict: names, types, shapes and bytes, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        head = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        digest.update(json.dumps(head).encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def describe_tensors(model: nn.Module) -> dict[str, list[Any]]:
    """Return type, shape and SHA-256 of the tensors of a state dict by their names.

    Names are those without wrappers. Floating numbers are hashed as float32 if that holds all of
    them exactly, otherwise as float64, so that the type in which they are stored has no effect.
    """
    found: dict[str, list[Any]] = {}
    for name, value in without_wrappers(model.state_dict().items()).items():
        parts = value if isinstance(value, tuple) else (value,)  # of torch's quantised layers
        for number, part in enumerate(parts):
            own = f"{name}.{number}" if isinstance(value, tuple) else name
            found[own] = _described(part)
    return found


def _described(value: object) -> list[Any]:
    if not isinstance(value, torch.Tensor):
        return [type(value).__name__, [], hashlib.sha256(repr(value).encode()).hexdigest()]
    plain = value.detach().cpu()
    plain = plain.dequantize() if plain.is_quantized or type(plain) is not torch.Tensor else plain
    if plain.is_floating_point() and plain.dtype != torch.float32:
        narrow = plain.float()
        exact = plain.dtype.itemsize < narrow.itemsize or torch.equal(narrow.double(), plain)
        plain = narrow if exact else plain
    data = plain.contiguous().reshape(-1).view(torch.uint8).numpy().data
    kind = str(plain.dtype).removeprefix("torch.")
    return [kind, list(plain.shape), hashlib.sha256(data).hexdigest()]


def versions(device: torch.device) -> dict[str, str]:
    """Return the versions of the libraries that compute, and the kind of processor."""
    found = {
        "vitzoo": vitzoo.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pillow": PIL.__version__,
        "jpeg": str(features.version("libjpeg_turbo") or features.version("jpg")),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "float32_matmul_precision": matmul_precision(device),
    }
    if device.type == "cuda":
        count = torch.cuda.get_device_properties(device).multi_processor_count
        found |= {"cuda": torch.cuda.get_device_name(device), "multiprocessors": str(count)}
        libraries = {"cudnn": _cudnn(), "cublas": _cublas()}
        found |= {name: version for name, version in libraries.items() if version}
    if device.type == "mps":
        found["mps"] = getattr(torch.backends.mps, "get_name", str)()  # torch 2.6 has none
    if device.type not in (*GPUS, "cpu"):
        found["device"] = device.type
    return found


def _cudnn() -> str:
    """Return the version of cuDNN, such as `92600`; empty if it cannot be used with this GPU."""
    cudnn: Any = torch.backends.cudnn
    try:
        return str(cudnn.version() or "")
    except RuntimeError:
        return ""


def _cublas() -> str:
    return cublas_version(torch.__file__, torch.version.cuda or "")


def device_in(found: object) -> str:
    """Return the device that `versions` states, such as `cuda (NVIDIA H200)`, or `cpu`."""
    stated = found if isinstance(found, Mapping) else {}
    kind = next((kind for kind in GPUS if kind in stated), str(stated.get("device", "cpu")))
    return f"{kind} ({stated[kind]})" if stated.get(kind) and kind != "cpu" else kind


def changes(model: nn.Module) -> tuple[str, ...]:
    """Return sentences on what distinguishes a model from the network of its spec."""
    spec: Any = getattr(model, "spec", None)
    try:
        groups = compare(model, spec, registry())[1]
        rows = [f"{name} is {what}" for what in ("missing", "unexpected") for name in groups[what]]
        rows += groups["different"]
    except InvalidOption as error:
        rows = [str(error)]
    for name, module in model.named_modules():
        found: dict[str, Any] = vars(module)
        state = {
            f"has a forward hook: {(names := _hooks(found))}": names,
            "is compiled": found.get("_compiled_call_impl") or _path(module) == COMPILED,
            "is in training mode": module.training,
            "has no fused attention": found.get("fused_attn") is False,
        }
        rows += [f"{name or 'the model'} {what}" for what, value in state.items() if value]
    if names := _hooks(vars(torch.nn.modules.module), "_global"):
        rows.append(f"every module has a forward hook: {names}")
    return tuple(rows)


def _hooks(state: Mapping[str, Any], kind: str = "") -> str:
    """Return the names of forward hooks."""
    tables = (state[f"{kind}_forward{when}_hooks"] for when in ("", "_pre"))
    hooks = [hook for table in tables for hook in table.values()]
    return ", ".join(getattr(hook, "__qualname__", type(hook).__qualname__) for hook in hooks)


def check_unchanged(rows: Sequence[str], device: torch.device) -> None:
    """Raise InvalidOption if other processes could not compute the numbers of a model again.

    Args:
        rows: what distinguishes the model from the network of its spec.
        device: of the model.
    """
    if rows:
        raise InvalidOption(
            "the model is not the network of model.spec, so the numbers of other processes would "
            f"differ: {listed(fold(rows))}; create the model with these settings, merge adapters, "
            "and remove hooks, parametrizations and torch.compile"
        )
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
        raise InvalidOption(
            f"autocast to {dtype} is active, which has no effect on a Predictor; leave its block, "
            f"or pass dtype={dtype}"
        )


def describe_parts(model: nn.Module, spec: Spec) -> tuple[str, ...]:
    """Return the class and the plain attributes of each module in parts given as objects."""
    found = []
    for name, part in opaque_parts(model, spec).items():
        for path, module in part.named_modules(prefix=name) if isinstance(part, nn.Module) else ():
            plain = {k: v for k, v in vars(module).items() if k[0] != "_" and isinstance(v, SIMPLE)}
            table = json.dumps(plain, sort_keys=True, default=_path)
            found.append(f"{path}: {_path(module)} {table}")
    return tuple(found)


def _path(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
