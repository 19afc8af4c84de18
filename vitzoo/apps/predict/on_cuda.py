"""What a Predictor does on CUDA alone: without it, equal fingerprints could give other bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from vitzoo.apps.predict.arithmetic import CONVOLUTIONS, changed_settings, convolution_precision
from vitzoo.apps.predict.outputs import Outputs
from vitzoo.errors import InvalidOption
from vitzoo.parts.patch_embed import PatchConv, PatchProduct

TF32 = (
    "convolutions are computed in TF32, with 10 bits, which is torch's default on CUDA "
    "(torch.backends.cudnn.allow_tf32)"
)
Copies = list[tuple[nn.Module, dict[str, Any], nn.Module]]


class OutputsOnCuda(Outputs):
    """Results of a network on CUDA: patches are projected by products of matrices.

    Kernels that are chosen by their time are refused.
    """

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Map (b, c, h, w) images to results by name, each (b, ...).

        Raises:
            InvalidOption: as `check_kernels`.
        """
        check_kernels()
        copies: Copies = []
        try:  # copied for each call, because users change the model, and its forward may
            return Outputs.forward(with_products(self, copies), images)
        finally:
            for module, before, copy in copies:
                after = vars(copy).items()
                vars(module).update({k: v for k, v in after if v is not before.get(k, before)})


def outputs_on(device: torch.device) -> type[Outputs]:
    """Return the class that computes the results of a Predictor on a device."""
    return OutputsOnCuda if device.type == "cuda" else Outputs


def with_products(module: Any, copies: Copies | None = None) -> Any:
    """Return a module that computes convolutions of patches without overlap as products.

    It shares everything with the given one, which stays as it is, but the modules around such a
    convolution. Without any, and where another object has a method of the module, as after
    `torch.compile`, it is the given one.

    Args:
        module: with any modules in it.
        copies: gets each module that was copied, its attributes and its copy.
    """
    copies = [] if copies is None else copies
    if type(module) in (nn.Conv2d, PatchConv):
        return _copied(module, copies, PatchProduct) if _is_of_patches(module) else module
    every = vars(module)["_modules"]
    parts = {name: part for name, part in every.items() if part is not None}
    new = {name: with_products(part, copies) for name, part in parts.items()}
    if all(part is parts[name] for name, part in new.items()) or _is_held(vars(module)):
        return module
    return _copied(module, copies, type(module), _modules={**every, **new})


def _copied(module: nn.Module, copies: Copies, kind: type[nn.Module], **changed: Any) -> nn.Module:
    copy, before = object.__new__(kind), {**vars(module), **changed}
    vars(copy).update(before)
    copies.append((module, before, copy))
    return copy


def _is_held(values: Mapping[str, Any]) -> bool:
    """Tell whether another object has a method of a module, and so would not call a copy."""
    compiled = values.get("_compiled_call_impl") or "forward" in values
    return bool(compiled) or any(isinstance(value, MethodType) for value in values.values())


def _is_of_patches(conv: nn.Conv2d) -> bool:
    """Tell whether a convolution cuts images into patches of more than one pixel."""
    plain = conv.groups == 1 and conv.dilation == (1, 1) and not _is_held(vars(conv))
    zeros = conv.padding_mode == "zeros" and conv.padding != "same"
    return plain and zeros and conv.kernel_size == conv.stride != (1, 1)


def has_convolutions(network: nn.Module) -> bool:
    """Tell whether a Predictor on CUDA computes convolutions of a network as convolutions."""
    modules = with_products(network).modules()
    return any(isinstance(part, _ConvNd) and type(part) is not PatchProduct for part in modules)


def settings_on(device: torch.device, network: nn.Module) -> dict[str, Any]:
    """Return the settings of torch in the fingerprint of a Predictor.

    Raises:
        InvalidOption: as `check_kernels`.
    """
    found = changed_settings(device)
    if device.type == "cuda":
        check_kernels()
        if has_convolutions(network):
            found[CONVOLUTIONS] = convolution_precision()
    return found


def state_precision(network: Any, device: torch.device) -> None:
    """State in the load report of a network that its convolutions are computed in TF32."""
    report = getattr(network, "load_report", None)
    if report is None or device.type != "cuda" or convolution_precision() != "tf32":
        return
    kinds = {parameter.dtype for parameter in network.parameters()}
    if torch.float32 in kinds and has_convolutions(network):
        network.load_report = replace(report, assumed=(*report.assumed, TF32))


def check_kernels() -> None:
    """Raise InvalidOption if torch chooses kernels on CUDA by their time.

    The setting is one of the whole process. It is not changed here, because other threads compute.
    """
    names = []
    if torch.backends.cudnn.benchmark:
        names.append("torch.backends.cudnn.benchmark is True; set it to False")
    if torch.cuda.tunable.is_enabled():
        names.append(
            "TunableOp is enabled; unset PYTORCH_TUNABLEOP_ENABLED, or call "
            "torch.cuda.tunable.enable(False)"
        )
    if names:
        raise InvalidOption(
            "a Predictor promises the same bytes in each process, and on CUDA kernels that are "
            f"chosen by their time can give others: {'; '.join(names)}"
        )
