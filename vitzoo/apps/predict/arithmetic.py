"""Settings of torch that change the numbers of a network: which are in force, and setting them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any

import torch
from torch.nn import functional as F

PRECISIONS = {"none": "highest", "ieee": "highest", "tf32": "high", "bf16": "medium"}
"""Values of `torch.get_float32_matmul_precision` by those of `fp32_precision`."""
SETTINGS: dict[str, Any] = {  # of torch.backends, with their defaults
    "fp32_precision": "none",
    "cuda.flash_sdp_enabled": True,  # attention on the CPU reads it, too
}
ON_CPU = {
    "mkldnn.enabled": True,
    "mkldnn.deterministic": False,
    "mkldnn.fp32_precision": "none",
    "mkldnn.conv.fp32_precision": "none",
}
CONVOLUTIONS = "cudnn.conv.fp32_precision"
ATTENTION, FLASH = "sdp_priority_order", "flash_attention_impl"
DETERMINISTIC = "deterministic_debug_mode"
SPLIT_K = "_split_k"
ON_CUDA = {  # None: the default depends on the GPU, so that the value is always stated
    "cuda.preferred_blas_library": "cublas",
    "cuda.cublas_workspace_size": None,
    "cuda.cublaslt_workspace_size": None,
    ATTENTION: None,
    FLASH: None,
    DETERMINISTIC: 0,
    "cuda.math_sdp_enabled": True,
    "cuda.mem_efficient_sdp_enabled": True,
    "cuda.cudnn_sdp_enabled": True,
    "cuda.fp16_bf16_reduction_math_sdp_allowed": False,
    "cuda.matmul.allow_fp16_accumulation": False,
    "cuda.matmul.allow_fp16_reduced_precision_reduction": True,
    "cuda.matmul.allow_bf16_reduced_precision_reduction": True,
    "cuda.matmul.allow_fp16_reduced_precision_reduction_split_k": True,
    "cuda.matmul.allow_bf16_reduced_precision_reduction_split_k": True,
    "cudnn.enabled": True,
    "cudnn.deterministic": False,
    "cudnn.fp32_precision": "none",
    CONVOLUTIONS: "tf32",
}
VARIABLES = (  # of the environment, which worker processes inherit; CUDA's libraries read them
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "TORCH_BLAS_PREFER_CUBLASLT",
    "NVIDIA_TF32_OVERRIDE",
)


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


def convolution_precision() -> str:
    """Return torch's precision of float32 convolutions on CUDA: `tf32` by default, else `none`."""
    cudnn: Any = torch.backends.cudnn
    try:
        found = cudnn.conv.fp32_precision
    except (AttributeError, AssertionError):  # torch before 2.9
        found = "tf32" if cudnn.allow_tf32 else "none"
    return "none" if found == "ieee" else str(found)


def changed_settings(device: torch.device) -> dict[str, Any]:
    """Return the other settings that differ from torch's defaults, by their names.

    The names are those in `torch.backends`, and on CUDA those of variables of the environment.
    Settings of other devices are left out. On CUDA, some settings have no default here.
    """
    every: dict[str, dict[str, Any]] = {"cpu": ON_CPU, "cuda": ON_CUDA}
    defaults = SETTINGS | every.get(device.type, {})
    if device.type == "cuda":
        _order_attention(device)
    found = {name: _value(name) for name in defaults}
    found = {name: value for name, value in found.items() if value not in (None, defaults[name])}
    names = VARIABLES if device.type == "cuda" else ()
    return found | {name: os.environ[name] for name in names if os.environ.get(name)}


def _order_attention(device: torch.device) -> None:
    """Let torch order its kernels of attention, which it does at the first attention on CUDA."""
    with suppress(RuntimeError, AssertionError):  # no kernel is enabled, or there is no GPU
        x = torch.zeros(1, 1, 16, 64, dtype=torch.float16, device=device)
        F.scaled_dot_product_attention(x, x, x)


def _numbers() -> dict[str, int]:
    """Return torch's numbers of the kernels of attention by their names, such as `math`."""
    members: Any = torch.nn.attention.SDPBackend.__members__
    return {name.lower().removesuffix("_attention"): int(kind) for name, kind in members.items()}


def _order() -> str | None:
    names = {number: name for name, number in _numbers().items()}
    order: list[int] = getattr(torch._C, "_get_sdp_priority_order", list)()  # noqa: SLF001  # not public
    return " ".join(names.get(number, str(number)) for number in order) or None


def _set_order(order: str) -> None:
    numbers = _numbers()
    found = [numbers[name] if name in numbers else int(name) for name in order.split()]
    torch._C._set_sdp_priority_order(found)  # noqa: SLF001


def _set_convolutions(precision: str) -> None:
    cudnn: Any = torch.backends.cudnn
    if hasattr(cudnn, "conv"):
        cudnn.conv.fp32_precision = precision
    else:
        cudnn.allow_tf32 = precision == "tf32"


def _flash() -> str | None:  # torch before 2.10 has none
    return torch.nn.attention.current_flash_attention_impl()


def _set_flash(name: str) -> None:
    torch.nn.attention.activate_flash_attention_impl(name)


OTHERS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {  # how to read and set
    CONVOLUTIONS: (convolution_precision, _set_convolutions),
    ATTENTION: (_order, _set_order),
    FLASH: (_flash, _set_flash),
    DETERMINISTIC: (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
}


def _value(name: str) -> Any:
    """Return the value of a setting, None if this version of torch does not have it."""
    try:
        value = OTHERS[name][0] if name in OTHERS else attrgetter(name)(torch.backends)
        found = value() if callable(value) else value
    except (AttributeError, AssertionError, RuntimeError):  # RuntimeError: without a GPU
        return None
    if name.endswith("_library"):
        return found.name.lower()
    return "none" if found == "ieee" else found  # the same precision


def apply_settings(precision: str, changed: Mapping[str, Any], device: torch.device) -> None:
    """Set the precision of `matmul_precision` and the settings of `changed_settings`.

    Variables of the environment are left as they are.
    """
    torch.set_float32_matmul_precision(precision)
    if ATTENTION in changed:
        _order_attention(device)  # later, it would replace the order that is set here
    for name, value in changed.items():
        if name not in VARIABLES:
            _set(name, value)


def _set(name: str, value: Any) -> None:
    if name in OTHERS:
        OTHERS[name][1](value)
        return
    holder, _, last = name.rpartition(".")
    place: Any = attrgetter(holder)(torch.backends) if holder else torch.backends
    if last.endswith("_sdp_enabled"):
        getattr(place, f"enable_{last.removesuffix('_enabled')}")(value)
    elif last.endswith("_sdp_allowed"):
        getattr(place, f"allow_{last.removesuffix('_allowed')}")(value)
    elif last.endswith(SPLIT_K):
        whole = last.removesuffix(SPLIT_K)
        setattr(place, whole, (getattr(place, whole), value))
    elif callable(getattr(place, last)):
        getattr(place, last)(value)
    else:
        setattr(place, last, value)
