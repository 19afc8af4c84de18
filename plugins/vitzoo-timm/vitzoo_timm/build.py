"""Builds wrapped networks of timm."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import timm
import torch
from timm.layers.format import Format
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import vitzoo
from vitzoo import Spec
from vitzoo.errors import InvalidOption, PluginError

NAMESPACE = "timm/"
ONE_SIZE = ("MultiScaleVit",)  # reads positions at indices, which `meta` does not check
# The second pads images: timm's check of sizes has a text that is compiled again for each size.
DYNAMIC = ("dynamic_img_size", "dynamic_img_pad")
IN_PLACE = {
    getattr(Tensor, name)
    for name in ("add_", "clamp_", "erfinv_", "fill_", "mul_", "normal_", "uniform_", "zero_")
}


def build(spec: Spec) -> nn.Module:
    """Build timm's network with the name of a variant, without weights.

    Args:
        spec: of the variant; changes are passed to timm.

    Raises:
        InvalidOption: timm's network does not support a change.

    Source: timm, `create_model`, without its weights.
    """
    name = (spec.variant or "").removeprefix(NAMESPACE)
    model = _make(name, **_options(spec))
    _compute_buffers(model)
    noted: Any = model
    noted.foreign = TimmWeights(model, name, spec)
    return model


class TimmWeights:
    """Adapts weights to a timm network, with the protocol `vitzoo.parts.WeightsAdapter`.

    Args:
        model: the network.
        name: of the network in timm.
        spec: of the network.

    Attributes:
        classifiers: beginnings of the names of classifier tensors.
        input_convs: names of the kernels that read the channels of the image.
    """

    def __init__(self, model: nn.Module, name: str, spec: Spec) -> None:
        config: Any = model.pretrained_cfg
        self.name = name
        self.spec = spec
        self.shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
        self.classifiers = tuple(f"{part}." for part in _names(config.get("classifier")))
        self.input_convs = tuple(f"{part}.weight" for part in _names(config.get("first_conv")))

    def resample(
        self, tensors: Mapping[str, Tensor], native_size: tuple[int, int]
    ) -> dict[str, Tensor]:
        """Return tensors for the image size of the network, interpolated by timm.

        Args:
            tensors: of a file, with data or on `meta`.
            native_size: (h, w) px of the images that the tensors were trained with.
        """
        if native_size == self.spec.image_size or not can_resample(self.name):
            return dict(tensors)
        hollow = {name: t.to("meta") for name, t in tensors.items()}
        # `set_input_size` may change windows that the constructor keeps; their tables stay.
        wanted = {
            name
            for name, t in self._moved(hollow, native_size).items()
            if tuple(t.shape) == self.shapes.get(name)
        }
        moved = self._moved(tensors, native_size) if wanted else {}
        return {**tensors, **{name: moved[name] for name in wanted}}

    @torch.no_grad()
    def _moved(
        self, tensors: Mapping[str, Tensor], native_size: tuple[int, int]
    ) -> dict[str, Tensor]:
        """Return the tensors that timm replaces when the image size of a network changes."""
        with torch.device("meta"):
            old: Any = _make(self.name, img_size=native_size)
        before = dict(old.named_parameters())
        own = {n: t for n, t in tensors.items() if n in before and t.shape == before[n].shape}
        old.load_state_dict(own, strict=False, assign=True)
        before = dict(old.named_parameters())
        old.set_input_size(self.spec.image_size)
        after = dict(old.named_parameters())
        return {n: after[n].detach() for n in own if after.get(n) is not before[n]}

    def make_dynamic(self, model: nn.Module) -> None:
        """Let the network take images of any size, with timm's options for it if it has them.

        Raises:
            InvalidOption: timm's network takes images of one size.
        """
        switch = {key: True for key in DYNAMIC if key in parameters(type(model))}
        usual = _options(self.spec)
        with torch.device("meta"):
            _check_sizes(self.name, _make(self.name, **usual, **switch).eval(), self.spec)
            if not switch:
                return
            before, after = _make(self.name, **usual), _make(self.name, **usual, **switch)
        _compute_buffers(after)
        _take_settings(model, before, after)


def _check_sizes(name: str, model: Any, spec: Spec) -> None:
    """Raise InvalidOption unless the maps of a network on `meta` follow the size of the image."""
    stride = max(info["reduction"] for info in model.feature_info)
    height, width = (-(-side // stride) * stride for side in spec.image_size)
    size = height + stride, width
    try:
        maps = model.forward_intermediates(
            torch.empty(1, spec.in_chans, *size), intermediates_only=True
        )
        shapes = [tuple(found.shape[2:]) for found in maps]
    except (AssertionError, RuntimeError):
        shapes = []
    wanted = [tuple(s // info["reduction"] for s in size) for info in model.feature_info]
    if type(model).__name__ in ONE_SIZE or shapes != wanted:
        raise InvalidOption(
            f"dynamic = True: {NAMESPACE}{name} takes images of one size, "
            f"{'x'.join(map(str, spec.image_size))} px; pass dynamic=False"
        )


def _take_settings(model: nn.Module, before: nn.Module, after: nn.Module) -> None:
    """Change the settings and computed buffers of a network as they differ in two others."""
    weight = next(model.parameters())
    place = "cpu" if weight.is_meta else weight.device
    for name, new in after.named_modules():
        module, old = model.get_submodule(name), vars(before.get_submodule(name))
        for key, value in vars(new).items():
            if isinstance(value, bool | Format) and old[key] != value:
                setattr(module, key, value)
        kept = new.state_dict(keep_vars=True)
        for key, buffer in new._buffers.items():  # None in some
            if key not in kept:
                setattr(module, key, None if buffer is None else buffer.to(place))


def parameters(cls: type) -> set[str]:
    """Return the arguments of a class, with those that it passes to its bases."""
    found: set[str] = set()
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        signature = inspect.signature(base.__init__).parameters.values()  # type: ignore[misc]
        found |= {p.name for p in signature if p.kind is not p.VAR_KEYWORD}
        if all(p.kind is not p.VAR_KEYWORD for p in signature):
            break
    return found


def can_resample(name: str) -> bool:
    """Return whether timm can interpolate the positions of a network."""
    with torch.device("meta"):
        model = _make(name)
    return hasattr(model, "set_input_size") and "img_size" in parameters(type(model))


def _make(name: str, **options: Any) -> nn.Module:
    with _NothingOnMeta():
        model: nn.Module = timm.create_model(name, pretrained=False, **options)
    return model


class _NothingOnMeta(TorchFunctionMode):
    """Skips the initialisation of tensors on `meta`, which has no effect and takes most time."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return the tensor that a function would have changed, or call the function."""
        if func in IN_PLACE and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))


def _names(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def _options(spec: Spec) -> dict[str, Any]:
    """Return the changes to the variant as arguments of timm."""
    native = vitzoo.describe(spec.variant or "").spec
    options: dict[str, Any] = {"num_classes": spec.num_classes}
    if spec.in_chans != native.in_chans:
        options["in_chans"] = spec.in_chans
    if spec.image_size != native.image_size:
        options["img_size"] = spec.image_size
    if spec.dropout:
        with torch.device("meta"):
            known = parameters(type(_make(spec.variant.removeprefix(NAMESPACE))))  # type: ignore[union-attr]
        rates = [key for key in ("proj_drop_rate", "pos_drop_rate") if key in known]
        options |= dict.fromkeys(rates, spec.dropout)
    if spec.drop_path.name != "none":
        options["drop_path_rate"] = _drop_path_rate(spec)
    return options


def _drop_path_rate(spec: Spec) -> float:
    chosen = dict(spec.drop_path.options)
    rate, mode = chosen.pop("rate", None), chosen.pop("mode", "mask")
    if (spec.drop_path.name, mode) != ("linear", "mask") or chosen or type(rate) is not float:
        raise InvalidOption(
            f"{spec.variant} is a timm network, which has drop path 'linear' in mode 'mask' only; "
            f"pass a rate, drop_path=0.1; got {spec.drop_path.to_data()}"
        )
    return rate


def _compute_buffers(model: nn.Module) -> None:
    """Compute on the CPU the buffers of a network on `meta` that are in no file."""
    for name, module in model.named_modules():
        kept = module.state_dict(keep_vars=True).keys()
        own = dict(module.named_buffers(recurse=False))
        left = [n for n, buffer in own.items() if buffer.is_meta and n not in kept]
        if not left:
            continue
        compute = getattr(module, "init_non_persistent_buffers", None)
        if compute is None:
            raise PluginError(
                f"timm {timm.__version__} cannot compute the buffers {', '.join(left)} of {name}, "
                f"a {type(module).__name__}; vitzoo-timm was tested with timm 1.0.31"
            )
        for n in left:
            setattr(module, n, torch.empty_like(own[n], device="cpu"))
        with torch.device("cpu"), _memory_of(module):
            compute()


@contextmanager
def _memory_of(module: nn.Module) -> Iterator[None]:
    """Put the parameters of a module on the CPU for a while, because some buffers follow them."""
    kept = [(part, dict(part.named_parameters(recurse=False))) for part in module.modules()]
    for part, own in kept:
        for name, parameter in own.items():
            empty = torch.empty_like(parameter, device="cpu")
            setattr(part, name, nn.Parameter(empty, requires_grad=False))
    yield
    for part, own in kept:
        for name, parameter in own.items():
            setattr(part, name, parameter)
