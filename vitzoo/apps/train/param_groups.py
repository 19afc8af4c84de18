"""Groups of parameters for an optimizer, with layer-wise learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from vitzoo.apps.train.layers import keys_of, numbers_of
from vitzoo.errors import InvalidOption, short_repr
from vitzoo.keywords import short_errors
from vitzoo.network.wrappers import unwrapped


@short_errors
def param_groups(
    model: nn.Module, lr: float, *, layer_decay: float = 1.0, weight_decay: float = 0.05
) -> list[dict[str, Any]]:
    """Return the trainable parameters of a model as groups for an optimizer of torch.

    With `layer_decay`, the learning rate of a layer is `lr * layer_decay ** n`, where n is the
    number of layers between it and the head: `lr` for the head, `lr * layer_decay` for the last
    block, and the smallest rate for patch embedding, tokens and positions. Biases, norms, other
    vectors and the names of `model.no_weight_decay()` get no weight decay. Parameters with
    `requires_grad=False` are left out; they do not change the rates of the others.

    The model may be sharded by `fully_shard`, before or after this call. It may also be inside
    DistributedDataParallel, torch.compile or PEFT.

    Args:
        model: a network of `create`, or any with timm's methods `group_matcher` and
            `no_weight_decay`.
        lr: learning rate of the head.
        layer_decay: in (0, 1]; 1 gives one rate to all layers.
        weight_decay: of matrices and kernels.

    Returns:
        Groups with `params`, `lr`, `weight_decay` and `layer`. Layer 0 is the first, the last one
        has the head. Schedulers of torch scale the rate of each group.

    Raises:
        InvalidOption: a number is out of range, the model has no trainable parameters, or, with
            `layer_decay`, does not tell its layers.

    Example:
        >>> import vitzoo
        >>> groups = vitzoo.param_groups(vitzoo.create("vit_ti16"), 1e-3, layer_decay=0.75)
        >>> optimizer = torch.optim.AdamW(groups)

    Source: BEiT, arXiv:2106.08254, and MAE, arXiv:2111.06377; every rate and weight decay is
    compared with timm's `param_groups_layer_decay`.
    """
    _check("lr", lr, lambda rate: 0 < rate < math.inf, "a finite number above 0")
    _check("layer_decay", layer_decay, lambda decay: 0 < decay <= 1, "in (0, 1], such as 0.75")
    _check("weight_decay", weight_decay, lambda decay: 0 <= decay < math.inf, "0 or above, finite")
    network: Any = unwrapped(model)
    named = dict(network.named_parameters())
    layers = dict.fromkeys(named, 0) if layer_decay == 1 else numbers_of(keys_of(network))
    last = max(layers.values(), default=0)
    patterns = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()

    groups: dict[tuple[int, float], dict[str, Any]] = {}
    for name, parameter in named.items():
        if not parameter.requires_grad:
            continue
        layer, kept = layers[name], any(fnmatchcase(name, pattern) for pattern in patterns)
        decay = 0.0 if parameter.ndim <= 1 or kept else weight_decay
        rate = lr * layer_decay ** (last - layer)
        empty = {"params": [], "lr": rate, "weight_decay": decay, "layer": layer}
        groups.setdefault((layer, decay), empty)["params"].append(parameter)
    if not groups:
        raise InvalidOption(
            "the model has no trainable parameters: requires_grad is False for all "
            f"{len(named)}; model.requires_grad_(True) makes them trainable"
        )
    return [groups[key] for key in sorted(groups)]


def _check(name: str, value: Any, holds: Callable[[float], bool], expected: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds(float(value)):
        raise InvalidOption(f"{name} must be {expected}, got {short_repr(value)}")
