"""Settings of torch that change the numbers of a network: which are in force, and setting them."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import torch

PRECISIONS = {"none": "highest", "ieee": "highest", "tf32": "high", "bf16": "medium"}
"""Values of `torch.get_float32_matmul_precision` by those of `fp32_precision`."""
SETTINGS = {  # of torch.backends, with their defaults
    "fp32_precision": "none",
    "cuda.flash_sdp_enabled": True,  # attention on the CPU reads it, too
}
ON_CPU = {
    "mkldnn.enabled": True,
    "mkldnn.deterministic": False,
    "mkldnn.fp32_precision": "none",
    "mkldnn.conv.fp32_precision": "none",
}
ON_CUDA = {
    "cuda.math_sdp_enabled": True,
    "cuda.mem_efficient_sdp_enabled": True,
    "cuda.cudnn_sdp_enabled": True,
    "cuda.matmul.allow_fp16_accumulation": False,
    "cuda.matmul.allow_fp16_reduced_precision_reduction": True,
    "cuda.matmul.allow_bf16_reduced_precision_reduction": True,
    "cudnn.enabled": True,
    "cudnn.benchmark": False,
    "cudnn.deterministic": False,
    "cudnn.fp32_precision": "none",
    "cudnn.conv.fp32_precision": "tf32",
}


def matmul_precision(device: torch.device) -> str:
    """Return torch's precision of float32 matrix products on a device.

    `torch.get_float32_matmul_precision` knows one precision for all devices, and raises an error if
    they have different ones.
    """
    try:
        backend: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
        return PRECISIONS[backend.matmul.fp32_precision]
    except (AttributeError, AssertionError):  # torch before 2.9
        return torch.get_float32_matmul_precision()


def changed_settings(device: torch.device) -> dict[str, Any]:
    """Return the other settings that differ from torch's defaults, by their names.

    The names are those in `torch.backends`. Settings of other devices are left out.
    """
    defaults = SETTINGS | {"cpu": ON_CPU, "cuda": ON_CUDA}.get(device.type, {})
    found = {name: _value(name) for name in defaults}
    return {name: value for name, value in found.items() if value not in (None, defaults[name])}


def _value(name: str) -> Any:
    """Return the value of a setting, None if this version of torch does not have it."""
    try:
        value = attrgetter(name)(torch.backends)
    except (AttributeError, AssertionError):
        return None
    found = value() if callable(value) else value
    return "none" if found == "ieee" else found  # the same precision


def apply_settings(precision: str, changed: Mapping[str, Any]) -> None:
    """Set the precision of `matmul_precision` and the settings of `changed_settings`."""
    torch.set_float32_matmul_precision(precision)
    for name, value in changed.items():
        holder, _, last = name.rpartition(".")
        place: Any = attrgetter(holder)(torch.backends) if holder else torch.backends
        if last.endswith("_sdp_enabled"):
            getattr(place, f"enable_{last.removesuffix('_enabled')}")(value)
        else:
            setattr(place, last, value)
