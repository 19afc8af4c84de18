"""The network that is given to a `Predictor`: a model object, or what names one."""

from __future__ import annotations

import os
from copy import deepcopy
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitzoo.apps.predict.classes import sample_of
from vitzoo.factory import check_alone, check_place, create
from vitzoo.files.names import on_hub
from vitzoo.network.wrappers import network_of, unwrapped
from vitzoo.opening import File, Folder, Named, locate
from vitzoo.registry.choice import is_path


def fix_of_argument(name: str, _value: object) -> str:
    """Return the fix for an argument of `create` or `predict`, which `Predictor` does not have."""
    if name == "batch_size":
        return "did you mean 'chunk'?"
    if name not in signature(create).parameters:
        return ""
    return f"pass it to create, and its model here: Predictor(vitzoo.create(..., {name}=...))"


def placed(
    model: nn.Module,
    weights: object,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> nn.Module:
    """Return the network in a model, or a copy if it gets another type or device."""
    check_alone(weights)
    check_place(dtype, device)
    network_of(model)  # raises if vitzoo did not create it
    model = unwrapped(model, compiled=False)
    sample = sample_of(model)
    there = torch.empty(0, device=device or sample.device, dtype=dtype or sample.dtype)
    if (there.device, there.dtype) == (sample.device, sample.dtype):
        return model
    return deepcopy(model).to(there.device, there.dtype)


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
