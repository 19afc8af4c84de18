"""What to do with a file that does not fit a model: the message about its tensors.

The first advice that fits counts. An argument of `create` comes with the whole call.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitzoo.advice.calls import passing, written
from vitzoo.advice.fitting import fitting, main_shapes
from vitzoo.formats.timm import HEADS
from vitzoo.loading.adapt import PRE_LOGITS
from vitzoo.loading.load import Misfit
from vitzoo.network.model import VisionTransformer
from vitzoo.schema.terms import AVG
from vitzoo.text import fold, listed, px

KERNEL, TABLE = "patch_embed.proj.weight", "pos_embed"
FIRST = re.compile(r"blocks\.\d+\.mlp\.fc1\.(weight|bias)")  # gate and values in one matrix
GATED = "an MLP with a gate, whose activation no config states (in vitzoo it is SiLU)"
NORM, NORM_AFTER = ({f"{norm}.{key}" for key in ("weight", "bias")} for norm in ("norm", "fc_norm"))
FRESH = re.compile(rf"head\.(?!{PRE_LOGITS.removeprefix('head.')})")  # a layer that may be new
MOST = 3  # grids of one number of patches


@dataclass(frozen=True)
class Case:
    """A file that does not fit a model, and the call of `create` that opened it."""

    about: Misfit
    call: Mapping[str, Any]

    @property
    def classifiers(self) -> list[str]:
        """Keys of the file that may be those of a classifier, and that are not read."""
        inside = [name for name in self.about.unexpected if name.startswith(HEADS)]
        return [*self.about.checkpoint.unread, *inside] or self._linear_layers()

    def _linear_layers(self) -> list[str]:
        """Return matrices beside the network that read its features."""
        checkpoint = self.about.checkpoint
        whole = getattr(checkpoint.container, "whole", checkpoint.container)
        width = getattr(self.about.slots.model, "embed_dim", 0)
        tables = ((key, whole.header.tensors.get(key)) for key in checkpoint.outside)
        return [key for key, info in tables if info and info.shape[1:] == (width,)]

    def shapes(self, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of a tensor in the file and in the model; empty if they are equal."""
        about = self.about
        if name not in about.unfit:
            return (), ()
        return tuple(about.adapted.tensors[name].shape), tuple(about.slots.expected[name].shape)


def advice(about: Misfit, call: Mapping[str, Any]) -> Iterator[str]:
    """Yield what to do with a file that does not fit, if it is known, and the line of problems."""
    fix = ""
    if about.missing or about.unexpected or about.unfit:
        sizes = _stem, _patches, _width, _classifier, _arguments, _grid
        steps = (*sizes, _head_or_variant, _unnamed_kernel)
        case = Case(about, call)
        fix = next(filter(None, (step(case) for step in steps)), "")
    yield fix + about.note
    yield about.problems


def _stem(case: Case) -> str:
    """Return what to do about tokens with a batch dimension, or a matrix of patches."""
    for name in (TABLE, "cls_token"):
        found, own = case.shapes(name)
        if len(found) == len(own) == 3 and found[::2] != own[::2] and found[2] == own[2]:
            return (
                f"; {name} has a batch dimension of {found[0]}, expected {own[0]}, the same for "
                f"every image: train and save it with the shape {own}"
            )
        if found and found == own[1:]:
            return f"; {name} has no batch dimension, expected {own}: store {name}[None]"
    kernel, own = case.shapes(KERNEL)
    if len(kernel) == 2 and len(own) == 4 and kernel[1] == own[1] * own[2] * own[3]:
        return (
            "; a linear layer reads flattened patches, and its shape does not show their order; "
            f"for that of nn.Unfold, store weight.reshape{own}"
        )
    return ""


def _patches(case: Case) -> str:
    """Return what to do about patches of another size."""
    kernel, own = case.shapes(KERNEL)
    same = len(kernel) == len(own) == 4 and kernel[0] == own[0] and kernel[2:] != own[2:]
    others = {name for name in case.about.unfit if not name.startswith(HEADS)} - {KERNEL, TABLE}
    if not same or others:
        return ""
    sizes, (height, width) = (kernel[2], kernel[3]), own[2:]
    fits = fitting(case.about.adapted.tensors, case.about.zoo)
    fix = _with_spec(case.call, patch_size=sizes[0] if sizes[0] == sizes[1] else list(sizes))
    return (
        f"{fits}; the file has patches of {px(sizes)} px, the model of {px((height, width))} px"
        f"{fix}; vitzoo does not resample patch kernels. For patches of another size, store the "
        "kernel that "
        f"timm.layers.resample_patch_embed(kernel, [{height}, {width}]) returns, as FlexiViT "
        "(arXiv:2212.08013) does"
    )


def _with_spec(call: Mapping[str, Any], **changes: Any) -> str:
    """Return the advice to create the same network with a changed spec."""
    name = written(call).get("name")
    if isinstance(name, str) and not re.search(r"[:./\\]", name):
        name = {"variant": name}
    if not isinstance(name, Mapping):
        return f": create a network with {', '.join(f'{k} = {v}' for k, v in changes.items())}"
    return f": {passing({**call, 'name': {**name, **changes}}, {}).partition(': ')[2]}"


def _classifier(case: Case) -> str:
    """Return what to do about a classifier in the file that the model does not have."""
    lacks = [name for name in case.about.missing if FRESH.match(name)]
    others = [name for name in case.about.unexpected if not name.startswith(HEADS)]
    own = [name for name in (*case.about.missing, *case.about.unfit) if not name.startswith(HEADS)]
    if others or own or not case.classifiers or len(lacks) < len(case.about.missing):
        return ""
    classes = getattr(case.about.slots.model, "num_classes", 0)
    features = passing(case.call, {"num_classes": 0})
    new = passing(case.call, {"num_classes": classes}) if classes else ""
    linear = (
        "If it is one linear layer on the features, store it as head.weight and head.bias. "
        if lacks
        else ""
    )
    return (
        f"; the file has what may be its classifier, {listed(fold(case.classifiers), 5)}, and no "
        f"tensor shows what it computes. {linear}For the features without it, {features}"
        + (f". For a new classifier, {new}" if new else "")
    )


def _width(case: Case) -> str:
    """Return what to do about a classifier that does not read the features."""
    found, own = case.shapes("head.weight")
    others = {*case.about.unfit} - {"head.weight", "head.bias"}
    if len(found) != 2 or found[1:] == own[1:] or others:
        return ""
    return (
        f"; the classifier of the file reads {found[1]} numbers, not the {own[1]} features, such "
        "as the outputs of another layer; for a new classifier, "
        f"{passing(case.call, {'num_classes': own[0]})}"
    )


def _arguments(case: Case) -> str:
    """Return the arguments that the tensors would fit."""
    missing, unexpected, unfit = case.about.missing, case.about.unexpected, case.about.unfit
    after = set(unexpected) == NORM_AFTER and NORM.issubset(missing)
    missing = [name for name in missing if not (after and name in NORM)]
    if (unexpected and not after) or not (missing or unfit or after):
        return ""
    plan, slots = case.about.adapted, case.about.slots
    words, arguments = needed(plan.tensors, slots.expected, unfit, slots.model)
    if unfit and not arguments:
        return ""
    fresh = ""
    if after:
        words = " and ".join(filter(None, (words, "a mean that is normalised (timm's pool 'avg')")))
        arguments |= {"pool": AVG}
    if missing:
        heads = (name.startswith("head.") for name in plan.tensors)
        if any(heads) or not all(FRESH.match(name) for name in missing):
            return ""
        unread = listed(fold(case.classifiers), 5)
        what = f"a classifier that vitzoo does not read ({unread})" if unread else "no classifier"
        words = " and ".join(filter(None, (words, what)))
        arguments |= {"num_classes": 0}
        fresh = "; another num_classes gives a new classifier"
    return f"; the file is for {words}: {passing(case.call, arguments)}{fresh}" if words else ""


def _grid(case: Case) -> str:
    """Return what to do about a table of positions of another grid, which is no square."""
    found, own = case.shapes(TABLE)
    model = case.about.slots.model
    if case.about.missing or case.about.unexpected or {*case.about.unfit} != {TABLE}:
        return ""
    if not isinstance(model, VisionTransformer) or len(found) != 3 or found[2:] != own[2:]:
        return ""
    patches = math.prod(model.grid_size)
    prefix = own[1] - patches
    what = f"; pos_embed has {found[1]} rows, the model has {patches} patches and {prefix} more"
    if prefix and found[1] == patches:
        part = {"name": "learned", "prefix": False}
        fix = passing(case.call, {"pos_embed": part})
        return f"{what}, for prefix tokens; if these have no positions in your network, {fix}"
    count = found[1] - prefix
    sides = [n for n in range(math.isqrt(max(0, count)), 1, -1) if count % n == 0][:MOST]
    if not sides:
        return f"{what}; no grid of patches has {count}: name the network that the file is of"
    (height, width), (down, across) = model.image_size, model.grid_size
    rows, columns = height // down, width // across
    sizes = ", ".join(f"({n * rows}, {count // n * columns})" for n in sides)
    return (
        f"{what}, and no tensor shows the sides of a grid of {count}; pass the (height, width) of "
        f"the images that it was trained on: image_size= one of {sizes}, or the reverse"
    )


def _head_or_variant(case: Case) -> str:
    """Return a head or a variant that the tensors would fit."""
    differ = (*case.about.missing, *case.about.unexpected, *case.about.unfit)
    if not all(name.startswith("head.") for name in differ):
        tensors = case.about.adapted.tensors
        same = main_shapes(tensors) == main_shapes(case.about.slots.expected)
        return "" if same else fitting(tensors, case.about.zoo)
    if any(name.startswith(PRE_LOGITS) for name in (*case.about.missing, *case.about.unfit)):
        return (
            "; pre-logits are newly initialised only for head=: pass head='linear' for a head "
            "without them, or head= with the name of this head"
        )
    return ""


def _unnamed_kernel(case: Case) -> str:
    """Return what to do about a patch embedder that does not name its kernel."""
    for name in case.about.unfit if case.about.adapted.unnamed else ():
        shape, wanted = case.shapes(name)
        own = name.removeprefix("patch_embed.")
        if own != name and len(shape) == 4 and (shape[0], *shape[2:]) == (wanted[0], *wanted[2:]):
            return (
                "; to adapt this kernel to other in_chans, the patch embedder needs an attribute "
                f"input_conv = {own!r}"
            )
    return ""


def needed(
    tensors: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    unfit: Iterable[str],
    model: nn.Module,
) -> tuple[str, dict[str, Any]]:
    """Return what a file is made for, in words and as arguments of `create`.

    Args:
        tensors, expected: of the file and of the model.
        unfit: names of the tensors of another shape.
        model: the network that does not fit.

    Returns:
        Nothing if arguments do not explain every other shape.
    """
    found: dict[str, tuple[str, Any]] = {}
    for name in unfit:
        shape, own = tuple(tensors[name].shape), tuple(expected[name].shape)
        if len(shape) != len(own):
            return "", {}
        if name.startswith(HEADS) and own == (getattr(model, "num_classes", 0), *shape[1:]):
            found["num_classes"] = f"{shape[0]} classes", shape[0]
        elif name == KERNEL and (shape[0], *shape[2:]) == (own[0], *own[2:]):
            found["in_chans"] = f"{shape[1]}-channel images", shape[1]
        elif FIRST.fullmatch(name) and shape == (2 * own[0], *own[1:]):
            found["block"] = GATED, {"mlp": "swiglu_packed"}
        elif name == "pos_embed" and (size := _image_size(shape, own, model)):
            found["image_size"] = f"images of {px(size)} px", size
        else:
            return "", {}
    names = ("block", "image_size", "in_chans", "num_classes")
    pairs = {name: found[name] for name in names if name in found}
    words = " and ".join(what for what, _ in pairs.values())
    return words, {name: value for name, (_, value) in pairs.items()}


def _image_size(
    shape: tuple[int, ...], own: tuple[int, ...], model: nn.Module
) -> tuple[int, int] | None:
    """Return the (h, w) px of a square grid that a (1, p + n, d) table of positions is for."""
    if not isinstance(model, VisionTransformer) or len(own) != 3 or shape[2:] != own[2:]:
        return None
    (rows, columns), (height, width) = model.grid_size, model.image_size
    patches = shape[1] - (own[1] - rows * columns)
    side = math.isqrt(max(0, patches))
    if not side or side * side != patches or own[1] < rows * columns:
        return None
    return side * (height // rows), side * (width // columns)
