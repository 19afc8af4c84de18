"""Initial weights of the published ViT, and the context in which none are computed.

Source: google-research/vision_transformer, `vit_jax/models_vit.py`. Projections of attention and
MLP are Xavier-uniform, with MLP biases of standard deviation 1e-6. Patch and pre-logits layers are
LeCun-normal as in flax, positions normal(0.02), class token and classifier zero.

`trunc_normal_` draws the weights of a whole network again, as a port to PyTorch does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils._device import DeviceContext

from vitzoo.parts.shapes import Shapes

TRUNCATED_STD = 0.87962566103423978  # of a standard normal cut at two standard deviations

FILLED = (nn.Linear, nn.Conv2d, nn.LayerNorm)  # by `trunc_normal_`
M = TypeVar("M", bound=nn.Module)
FILLING = {getattr(nn.init, n) for n in dir(nn.init) if n.endswith("_") and not n.startswith("_")}
FILLING |= {Tensor.fill_, Tensor.normal_, Tensor.uniform_, Tensor.zero_}


class WithoutData(DeviceContext):
    """`torch.device("meta")`, in which functions that fill a tensor without data do nothing.

    Without this context, torch fills every layer, and some of its random functions import a
    thousand modules on `meta`. It also acts on layers of torch and on parts of plugins.
    """

    def __init__(self) -> None:
        super().__init__("meta")

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in FILLING:
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        if func is torch.empty or getattr(func, "__name__", "") == "__get__":  # nearly all calls
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        with Shapes():
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def layer(kind: type[M], *args: Any, **kwargs: Any) -> M:
    """Construct a layer of torch; without data, its own initialisation is skipped."""
    made: Any = kind.__new__(kind)
    vars(made)["reset_parameters"] = _nothing  # of this layer only, until it is constructed
    made.__init__(*args, **kwargs)
    del vars(made)["reset_parameters"]
    if not made.weight.is_meta:
        made.reset_parameters()
    return cast("M", made)


def _nothing() -> None: ...


def lecun_normal_(weight: Tensor) -> None:
    """Fill `weight` (out, in, ...) from a normal of variance `1 / fan_in`, cut at 2 std."""
    if not weight.is_meta:
        std = math.sqrt(1 / weight[0].numel()) / TRUNCATED_STD
        nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def normal_(tensor: Tensor, std: float) -> Tensor:
    """Fill `tensor` from a normal of mean 0."""
    return tensor if tensor.is_meta else nn.init.normal_(tensor, std=std)


def xavier_uniform_(linear: nn.Linear, *, bias_std: float = 0.0, fused: int = 1) -> None:
    """Fill a linear layer; `fused` is the number of projections stacked in its weight."""
    if linear.weight.is_meta:
        return
    out_dim, in_dim = linear.weight.shape
    bound = math.sqrt(6 / (in_dim + out_dim // fused))
    nn.init.uniform_(linear.weight, -bound, bound)
    if linear.bias is not None:
        normal_(linear.bias, bias_std)


@torch.no_grad()
def trunc_normal_(model: nn.Module, kept: Iterable[object] = ()) -> None:
    """Initialise a network from truncated normals.

    Linear layers get std 0.01, convolutions Kaiming's normal by fan out, class token, registers and
    learned positions std 0.02. Biases become 0, gains of norms 1.

    Args:
        model: the network.
        kept: parts whose weights stay.

    Source: `_init_vit_weights` in `vit_model.py`, a port of timm's ViT that many projects copied.
    """
    keep = {id(module) for part in kept if isinstance(part, nn.Module) for module in part.modules()}
    for module in model.modules():
        if id(module) in keep or not isinstance(module, FILLED):
            continue
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.01)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        else:
            nn.init.ones_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    for name in ("cls_token", "reg_token", "pos_embed"):
        if (tokens := getattr(model, name)) is not None:
            nn.init.trunc_normal_(tokens, std=0.02)


@torch.no_grad()
def zeros_(linear: nn.Linear) -> None:
    """Fill a classifier with zeros."""
    for parameter in linear.parameters():
        parameter.zero_()
