"""The network that is given to a `Predictor`: a model object, or what names one."""

from __future__ import annotations

import itertools
import os
from copy import deepcopy
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.apps.predict.classes import sample_of
from vitzoo.apps.predict.on_cuda import state_precision
from vitzoo.factory import check_alone, create
from vitzoo.files.names import on_hub
from vitzoo.log import log
from vitzoo.network.device import check_place, choose_device, label, of_rank, running_on
from vitzoo.network.wrappers import network_of, unwrapped
from vitzoo.opening import File, Folder, Named, is_model, locate
from vitzoo.registry.choice import is_path


def fix_of_argument(name: str, _value: object) -> str:
    """Return the fix for an argument of `create` or `predict`, which `Predictor` does not have."""
    if name == "batch_size":
        return "did you mean 'chunk'?"
    if name not in signature(create).parameters:
        return ""
    return f"pass it to create, and its model here: Predictor(vitzoo.create(..., {name}=...))"


def opened(
    model: Any,
    *,
    weights: str | os.PathLike[str] | None = None,
    pretrained: bool = True,
    device: torch.device | str | None = None,
    **options: Any,
) -> Any:
    """Return a new network of `create` on the device of the computation, or a model object.

    The load report of a new network says if a Predictor computes convolutions in TF32.

    Args:
        model: the network, see docs/create.md#which-network. A model object stays where it is, and
            is copied to another device.
        weights, pretrained: as in `create`; the default weights of a variant are loaded.
        device: as for `choose_device`.
        options: further arguments of `create`.

    Raises:
        VitzooError: as `create`, or the device cannot be used.
    """
    if is_model(model):
        return model if device is None else placed(model, device=device)
    place = of_rank(choose_device(device))
    with running_on(place):
        network = create(model, pretrained=pretrained, weights=weights, device=place, **options)
    state_precision(network, place)
    log.info("computing on %s", label(place))
    return network


def placed(
    model: nn.Module,
    weights: object = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> nn.Module:
    """Return the network in a model, or a copy if it gets another type or device."""
    check_alone(weights)
    check_place(dtype, device)
    device = None if device is None else of_rank(torch.device(device))
    network_of(model)  # raises if vitzoo did not create it
    model = unwrapped(model, compiled=False)
    sample = sample_of(model)
    there = torch.empty(0, device=device or sample.device, dtype=dtype or sample.dtype)
    if (there.device, there.dtype) == (sample.device, sample.dtype):
        return model
    with running_on(there.device):
        return deepcopy(model).to(there.device, there.dtype)


def on_cpu(model: nn.Module) -> nn.Module:
    """Return a copy of a network whose tensors are on the CPU.

    Pickled tensors of a GPU can only be loaded where that GPU is.
    """
    return copied_to("cpu", model)


def copied_to(device: str, model: nn.Module) -> nn.Module:
    """Return a copy of a network on another device; it takes no memory where the network is."""
    tensors = itertools.chain(model.parameters(), model.buffers())
    return deepcopy(model, {id(tensor): _copy(tensor, device) for tensor in tensors})


def _copy(tensor: Tensor, device: str) -> Tensor:
    copy = tensor.detach().to(device, copy=True)
    return nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy


def absolute(model: Any, weights: Any) -> tuple[Any, Any]:
    """Return both arguments with absolute paths: a worker may have another working folder."""
    found, variant = locate(model, weights), None
    if isinstance(found, File | Folder):
        model = found.path.absolute()
    elif isinstance(found, Named):
        model, variant = found.name, found.variant
        weights = found.row.name if found.row else weights
    if weights and isinstance(weights, str | os.PathLike) and not on_hub(weights):
        weights = Path(weights).absolute() if is_path(weights, variant) else weights
    return model, weights
