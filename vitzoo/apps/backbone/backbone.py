"""`backbone`: a network as a module from images to feature maps."""

from __future__ import annotations

import inspect
import math
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy

from vitzoo.advice.arguments import hint
from vitzoo.apps.backbone.feature_info import FeatureInfo
from vitzoo.apps.backbone.pyramid import SCALES, SimpleFeaturePyramid
from vitzoo.display import html_table
from vitzoo.errors import InvalidInput, InvalidOption, MissingDependency, short_repr
from vitzoo.factory import built, create
from vitzoo.installing import pip
from vitzoo.keywords import check_choice, check_keywords, check_types
from vitzoo.network.build import construct, make_dynamic
from vitzoo.network.inputs import check_images, explained
from vitzoo.network.members import MAPS, check_members, name_of
from vitzoo.network.model import VisionTransformer
from vitzoo.network.shortcut import HOOKS
from vitzoo.network.wrappers import network_of
from vitzoo.opening import is_model, stated
from vitzoo.registry.registry import registry
from vitzoo.schema.rows import built_of_parts
from vitzoo.schema.spec import Spec

NORMS = ("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm")  # whose hooks make weights
POOLS = ("pool", "attn_pool")
RETURNS = ("list", "dict", "output")
FREE = "leave dynamic=False out of backbone()"
DECIDED = {"num_classes", "head", "pool", "class_embeddings", "labels", "logit_scale", "logit_bias"}
OTHER = "choose another network"
NO_HEAD = "a backbone has no classifier; leave it out"
PAD = "images of one batch must have one size: pad the smaller ones, then pass torch.stack(images)"
INSTEAD = {  # of arguments of timm and transformers; {} is their value
    **dict.fromkeys(("out_indices", "indices"), "pass out={}"),
    "features_only": "leave it out",
    **dict.fromkeys(("num_labels", "global_pool"), NO_HEAD),
}


def _hint(name: str, value: object) -> str:
    return INSTEAD[name].format(short_repr(value)) if name in INSTEAD else hint(name, value)


@check_keywords(_hint, create)
def backbone(
    source: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
    *,
    out: int | Sequence[int] = 1,
    pyramid: bool | Mapping[str, Any] | None = None,
    norm: bool = False,
    prefix_tokens: bool = False,
    frozen: int = 0,
    returns: str = "list",
    dynamic: bool = True,
    **options: Any,
) -> Backbone:
    """Return a module that maps images of any size to feature maps.

    Args:
        source: the network, see docs/create.md#which-network. A model is used itself, not copied,
            and takes images of any size from then on. Of another source, no classifier is made.
        out: number of last blocks whose results are returned, or indices of blocks, negative from
            the end. The stages of a hierarchical network (`timm/*`) count as blocks.
        pyramid: `True` or a mapping with options of `SimpleFeaturePyramid`: maps of several strides
            are made of the result of the block, and returned instead.
        norm: whether the final norm acts on each result.
        prefix_tokens: return pairs of a map and its (b, p, d) prefix tokens (class token and
            registers).
        frozen: number of first blocks that are not trained, counted as in `out`. They, and all
            before them, get no gradients and stay in evaluation mode. With 0, everything is
            trained.
        returns: `list`; `dict` for names and maps, as torchvision's detectors need them; `output`
            for transformers' `BackboneOutput`.
        dynamic: whether images of any size are taken. False: only those of `image_size`, for
            networks of `timm/*` that cannot take others.
        options: arguments of `create`, such as `pretrained`, `weights`, `block` and `drop_path`.

    Raises:
        InvalidOption: an argument is not possible, or the network cannot take images of any size.
        VitzooError: as `create`.

    >>> features = backbone("vit_ti16", out=[5, 11])
    >>> [tuple(x.shape) for x in features(torch.zeros(1, 3, 96, 130))]
    [(1, 192, 6, 9), (1, 192, 6, 9)]
    """
    for name in options.keys() & DECIDED:
        raise InvalidOption(f"backbone() takes no {name}=: {NO_HEAD}")
    check_types("backbone", dynamic=(dynamic, "a boolean"))
    model = is_model(source)
    if model and options:
        raise InvalidOption(
            f"a model object is built already, got {', '.join(f'{name}=' for name in options)}; "
            "leave this out, or pass the name of the model"
        )
    if not model:
        network = _created(source, out, norm, {"dynamic": dynamic, **options})
    else:
        network = network_of(source)
        check_members(network, MAPS, OTHER)
        if dynamic and not getattr(network, "dynamic", False):
            make_dynamic(network)
    return Backbone(
        network,
        out=out,
        pyramid=pyramid,
        norm=norm,
        prefix_tokens=prefix_tokens,
        frozen=frozen,
        returns=returns,
    )


def _created(source: Any, out: Any, norm: bool, options: dict[str, Any]) -> nn.Module:
    """Return a new network without classifier; what no result depends on is not trained."""
    zoo = registry()
    variant = stated(source, zoo, options.get("weights")).variant
    headless: dict[str, Any] = {"num_classes": 0, "head": "none"}
    if variant is not None and not built_of_parts(variant):
        headless = {key: 0 for key in ("num_classes",) if key in variant.accepts}
    try:
        network: Any = create(source, **headless, **options)
    except InvalidOption:
        if variant is not None and options["dynamic"]:  # which may be refused before the members
            with torch.device("meta"):
                empty: Any = built(variant.spec, {}, variant, zoo)
            empty.spec = variant.spec
            check_members(empty, MAPS, OTHER)
        raise
    check_members(network, MAPS, OTHER)
    indices = _indices(out, len(network.feature_info))
    modules = dict(network.named_modules())
    neck = norm and any(hasattr(modules.get(name), "neck") for name in POOLS)
    unused = ["fc_norm", "head", *([] if norm else ["norm"]), *([] if neck else POOLS)]
    unused += [each["module"] for each in network.feature_info[indices[-1] + 1 :]]
    for name in {*unused} & modules.keys():
        modules[name].requires_grad_(False)
    return network


class Backbone(nn.Module):
    """Maps (b, c, h, w) images of any size to feature maps, see `backbone`.

    Images are padded with zeros at the right and bottom to H and W, multiples of the largest
    stride. A map is (b, channels, H / stride, W / stride).

    Attributes:
        network: the network of `create`, with its `spec`, `load_report` and `preprocessing`.
        pyramid: the `SimpleFeaturePyramid`, None without.
        feature_info: channels, strides and names of the maps, with the methods of timm's class.
    """

    def __init__(
        self,
        network: Any,
        *,
        out: int | Sequence[int] = 1,
        pyramid: bool | Mapping[str, Any] | None = None,
        norm: bool = False,
        prefix_tokens: bool = False,
        frozen: int = 0,
        returns: str = "list",
    ) -> None:
        super().__init__()
        check_choice("returns", returns, RETURNS)
        for name, value in {"norm": norm, "prefix_tokens": prefix_tokens}.items():
            check_types("backbone", **{name: (value, "a boolean")})
        info = [_described(each, norm=norm) for each in network.feature_info]
        self.network = network
        self.norm, self.prefix_tokens, self.returns = norm, prefix_tokens, returns
        self.frozen = frozen
        self._results = _indices(out, len(info))
        self.pyramid = _pyramid(pyramid, info[self._results[-1]], network)
        if self.pyramid is None:
            self.feature_info = FeatureInfo(info, self._results)
        else:
            levels = _levels(self.pyramid)
            self.feature_info = FeatureInfo(levels, range(len(levels)))
        self._multiple = _multiple(network, info[: self._results[-1] + 1], self.pyramid)
        self._check()
        _freeze(network, frozen)

    def forward(self, images: Tensor) -> Any:
        """Map (b, c, h, w) images to feature maps, in the form that `returns` names."""
        maps = self.network.forward_intermediates(
            self._padded(images),
            indices=self._results,
            norm=self.norm,
            stop_early=True,
            intermediates_only=True,
            **({"return_prefix_tokens": True} if self.prefix_tokens else {}),
        )
        if self.pyramid is not None:
            maps = self.pyramid(maps[-1])
        if self.returns == "dict":
            return OrderedDict(zip(self.out_features, maps, strict=True))
        return maps if self.returns == "list" else _backbone_output(maps)

    def forward_with_filtered_kwargs(self, pixel_values: Tensor, **ignored: Any) -> Any:
        """Return transformers' `BackboneOutput`; its heads call this method."""
        maps = self(pixel_values)
        if self.returns == "output":
            return maps
        return _backbone_output(maps.values() if self.returns == "dict" else maps)

    def _padded(self, images: Any) -> Any:
        if isinstance(images, Proxy):
            return self._traced(images)
        channels = self.network.spec.in_chans
        if not isinstance(images, Tensor) or images.dim() != 4:
            wanted = None if self._any_size else self.image_size
            raise InvalidInput(explained(images, channels, wanted, mixed=PAD))
        height, width = images.shape[2:]
        check_images(images, channels, (height, width), dynamic=True)
        if not images.numel():
            raise InvalidInput(f"expected one image of 1 px or more, got {tuple(images.shape)}")
        if not self._any_size:
            if (height, width) != self.image_size:
                own = isinstance(self.network, VisionTransformer)
                raise InvalidInput(
                    f"the backbone takes images of {self.image_size} px only, got "
                    f"{(height, width)}; resize the images{f', or {FREE}' * own}"
                )
            return images
        below, right = -height % self._multiple[0], -width % self._multiple[1]
        # A compiled graph has no branch: it would be compiled for each combination of sides.
        pads = torch.compiler.is_compiling() or below or right
        return F.pad(images, (0, right, 0, below)) if pads else images

    def _traced(self, images: Any) -> Any:
        """Return the images of a graph of torch.fx, which has one size: that of the network.

        Raises:
            InvalidOption: images of this size are padded, and the network would get another size.
        """
        size = self.image_size
        padded = tuple(side + -side % m for side, m in zip(size, self._multiple, strict=True))
        if padded != size and self._any_size:
            raise InvalidOption(
                f"torch.fx traces images of one size, and {size} px is no multiple of the "
                f"stride {self._multiple}; first call network.set_input_size({padded})"
            )
        return images

    @property
    def _any_size(self) -> bool:
        return bool(getattr(self.network, "dynamic", False))

    def train(self, mode: bool = True) -> Backbone:
        """Set training mode; frozen modules stay in evaluation mode."""
        super().train(mode)
        if mode and self.frozen:
            for name in ("pos_drop", "patch_drop"):
                getattr(self.network, name, nn.Identity()).eval()
            for module in self.network.modules():
                parameters = list(module.parameters())
                if parameters and not any(p.requires_grad for p in parameters):
                    module.eval()
        return self

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass instead of keeping its activations.

        Raises:
            InvalidOption: the network of a plugin cannot do this.
        """
        if not hasattr(self.network, "set_grad_checkpointing"):
            raise InvalidOption(
                f"{name_of(self.network)} has no set_grad_checkpointing(); leave this call out, or "
                "add the method to the class of the network"
            )
        self.network.set_grad_checkpointing(enable)

    def _repr_html_(self) -> str:
        names = {"module": "map", "num_chs": "channels", "reduction": "stride"}
        maps = self.feature_info.get_dicts(tuple(names))
        rows = [{heading: each[key] for key, heading in names.items()} for each in maps]
        return html_table(rows, f"Backbone, {type(self.network).__name__}")

    @property
    def out_indices(self) -> list[int]:
        """Index of each map among the results of the network, or among those of the pyramid."""
        return list(self.feature_info.out_indices)

    @property
    def channels(self) -> list[int]:
        """Number of channels of each map."""
        found: list[int] = self.feature_info.channels()
        return found

    @property
    def out_features(self) -> list[str]:
        """Name of each map."""
        found: list[str] = self.feature_info.module_name()
        return found

    @property
    def out_channels(self) -> int:
        """Number of channels of all maps.

        Raises:
            InvalidOption: the maps have different numbers.
        """
        if len(set(self.channels)) > 1:
            raise InvalidOption(
                f"the maps have different numbers of channels, {self.channels}, and out_channels "
                "is one number; read channels, or choose one map with out="
            )
        return self.channels[0]

    @property
    def num_features(self) -> int:
        """Width of the last result of the network."""
        last = self.network.feature_info[-1]["num_chs"]
        found: int = getattr(self.network, "num_features", last)
        return found

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) in px that the network was made for."""
        found: tuple[int, int] = self.network.spec.image_size
        return found

    def _check(self) -> None:
        if self.prefix_tokens and self.returns == "output":
            raise InvalidOption(
                "returns='output' is transformers' BackboneOutput, which has maps only; leave out "
                "prefix_tokens"
            )
        if self.pyramid is not None and (len(self._results) > 1 or self.prefix_tokens):
            raise InvalidOption(
                "a pyramid is made of the map of one block; leave out "
                + ("prefix_tokens" if self.prefix_tokens else "out, or name one block in it")
            )
        if self.pyramid is not None:
            self._check_strides()
        known = inspect.signature(self.network.forward_intermediates).parameters
        if self.prefix_tokens and "return_prefix_tokens" not in known:
            raise InvalidOption(
                f"{type(self.network).__name__} returns no prefix tokens; leave out prefix_tokens"
            )
        if self.norm and not isinstance(self.network, VisionTransformer):
            self._check_norm()

    def _check_norm(self) -> None:
        """Raise InvalidOption if a network of other code cannot norm its results."""
        last = Backbone(self.network, out=self._results[-1:])
        last.norm = True
        try:
            _before(last)
        except AssertionError as error:
            name = type(self.network).__name__
            raise InvalidOption(f"{name} takes no norm = True: {error}; leave norm out") from error

    def _check_strides(self) -> None:
        """Raise InvalidOption for maps of other strides than are stated, or torchvision reads."""
        strides, side = self.feature_info.reduction(), math.gcd(*self.image_size)
        stride = self.network.feature_info[self._results[-1]]["reduction"]
        if self.returns == "dict" and any(each % 1 for each in strides):
            whole = {"scales": tuple(s for s in SCALES if not stride / s % 1), "top": True}
            why, fix = "torchvision (returns='dict') needs whole strides", f"pass pyramid={whole}"
        elif not self._any_size and any(side % each for each in (stride, *strides)):
            fitting = () if side % stride else tuple(s for s in SCALES if not side % (stride / s))
            why = f"they do not divide {self.image_size}, the only size of images"
            fix = f"pass pyramid={{'scales': {fitting}}}" if fitting else "leave pyramid out"
            fix = FREE if isinstance(self.network, VisionTransformer) else fix
        else:
            return
        raise InvalidOption(f"the maps of the pyramid have strides {strides}; {why}; {fix}")


def _indices(out: Any, count: int) -> list[int]:
    """Return increasing indices of results.

    Raises:
        InvalidOption: there is no such result, or one is named twice.
    """
    found: list[int] = []
    if type(out) is int and 0 < out <= count:
        found = list(range(count - out, count))
    elif isinstance(out, Sequence) and all(type(i) is int and -count <= i < count for i in out):
        found = sorted(i % count for i in out)
    if not found or len(set(found)) < len(found):
        raise InvalidOption(
            f"out must be a list of different indices of blocks or stages, 0 to {count - 1}, or a "
            f"number of last ones, 1 to {count}; got {short_repr(out)}"
        )
    return found


def _freeze(network: Any, count: Any) -> None:
    """Freeze what the first results depend on, or nothing for 0 results."""
    blocks = len(network.feature_info)
    if type(count) is not int or not 0 <= count <= blocks:
        raise InvalidOption(
            f"frozen must be a whole number from 0 (nothing) to {blocks} (all blocks or stages), "
            f"got {short_repr(count)}"
        )
    for parameter in _before(Backbone(network, out=[count - 1])) if count else ():
        parameter.requires_grad_(False)


@torch.enable_grad()
def _before(first: Backbone) -> list[nn.Parameter]:
    """Return all parameters that the results of a backbone depend on.

    They are read from the graph of a forward pass on `meta`, because the networks of plugins do
    not tell which parameters belong to a block. In evaluation mode, no block is skipped. The pass
    is that of a copy without data: other threads may use the network.
    """
    parameters = list(first.parameters())
    hollow = [_without_data(p).requires_grad_() for p in parameters]
    copy = _copy_of(first, dict(zip(map(id, parameters), hollow, strict=True))).eval()
    size = 1, first.network.spec.in_chans, *first.image_size
    (result,) = copy(torch.empty(size, dtype=hollow[0].dtype, device="meta"))
    reached = torch.autograd.grad(result.sum(), hollow, allow_unused=True)
    return [p for p, g in zip(parameters, reached, strict=True) if g is not None]


def _copy_of(first: Backbone, instead: dict[int, Any]) -> Backbone:
    """Return a copy with other parameters, without data, and without hooks of the user.

    Modules may refuse `deepcopy`, as those that FSDP2 has sharded do.

    Args:
        first: the backbone.
        instead: the new parameters, by the identity of the old ones.
    """
    modules = list(first.modules())
    for module in modules:
        own = vars(module)
        computed = (x for x in own.values() if isinstance(x, Tensor) and x.grad_fn)
        for tensor in (*module.buffers(recurse=False), *computed):
            instead.setdefault(id(tensor), _without_data(tensor))
        for name in HOOKS:
            kept = [(k, hook) for k, hook in own[name].items() if type(hook).__module__ in NORMS]
            instead[id(own[name])] = OrderedDict(kept)
        of_torch = (own[key] for key in own if key.startswith("__composable_api_state_key"))
        instead |= {id(state): {} for state in of_torch}  # of FSDP2, with process groups
        instead[id(module)] = object.__new__(type(module))
    for module in modules:  # a method in place of that of the class, as FSDP2 has, stays behind
        own = {k: x for k, x in vars(module).items() if not isinstance(x, MethodType)}
        vars(instead[id(module)]).update(deepcopy(own, instead))
    copied: Backbone = instead[id(first)]
    return copied


def _without_data(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _described(info: Mapping[str, Any], *, norm: bool) -> dict[str, Any]:
    channels = info.get("num_chs_norm", info["num_chs"]) if norm else info["num_chs"]
    return {**info, "num_chs": channels}


def _pyramid(
    options: bool | Mapping[str, Any] | None, info: Mapping[str, Any], network: nn.Module
) -> SimpleFeaturePyramid | None:
    """Return a pyramid for the map that `info` describes, with the type of a network."""
    if options is None or options is False:
        return None
    if options is not True and not isinstance(options, Mapping):
        raise InvalidOption(
            "pyramid must be True or a mapping with options such as {'channels': 256}, got "
            f"{short_repr(options)}"
        )
    given = {} if options is True else dict(options)
    numbers = {"embed_dim": info["num_chs"], "stride": info["reduction"]}
    made: SimpleFeaturePyramid = construct(SimpleFeaturePyramid, "pyramid", given, **numbers)
    weight = next(network.parameters())
    return made.to(weight.device, weight.dtype)


def _levels(pyramid: SimpleFeaturePyramid) -> list[dict[str, Any]]:
    """Describe the maps of a pyramid; map p4 has stride 16, as in detectron2."""
    return [
        {"module": f"p{math.floor(math.log2(stride))}", "num_chs": pyramid.channels}
        | {"reduction": int(stride) if stride == int(stride) else stride}
        for stride in pyramid.strides
    ]


def _multiple(
    network: Any, info: Sequence[Mapping[str, Any]], pyramid: SimpleFeaturePyramid | None
) -> tuple[int, int]:
    """Return the px of which the sides of an image must be multiples, (height, width)."""
    if isinstance(network, VisionTransformer):
        several = getattr(network.patch_embed, "grid_multiple", (1, 1))
        sides = zip(network.image_size, network.grid_size, several, strict=True)
        height, width = (px // patches * multiple for px, patches, multiple in sides)
    else:
        height = width = max(each["reduction"] for each in info)
    if pyramid is None:
        return height, width
    further = max(1, round(max(pyramid.strides) / info[-1]["reduction"]))
    return height * further, width * further


def _backbone_output(maps: Sequence[Tensor]) -> Any:
    try:
        from transformers.modeling_outputs import BackboneOutput
    except ImportError as error:
        raise MissingDependency(
            f"BackboneOutput needs transformers, which cannot be imported: {error}; install it "
            f"({pip('install', 'transformers')}), or pass returns='list'"
        ) from error
    return BackboneOutput(feature_maps=tuple(maps))  # type: ignore[arg-type]  # one or more
