"""Checks of variants: numbers of parameters, specs, and a small copy that runs and trains."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import SkipTest

import tomlkit
import torch
from torch import Tensor, nn

import vitzoo
from vitzoo.errors import InvalidOption
from vitzoo.factory import create
from vitzoo.network.members import CLASSIFIER, LAYERS, MAPS, NEEDED, POOLED, missing
from vitzoo.network.model import VisionTransformer
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Variant, built_of_parts
from vitzoo.schema.spec import Spec
from vitzoo.testing.checks.modules import DATA, USED, require_no_memory
from vitzoo.testing.subject import Tested, WrongValue, draw, fill, flat

__tracebackhide__ = True
LARGEST = 100_000_000  # parameters of a small copy; larger copies take too much memory
ONE: dict[str, Any] = dict.fromkeys(
    ("in_chans", "num_classes", "embed_dim", "depth", "num_heads", "mlp_dim", "num_registers"), 1
)
SIZES = ONE | {"image_size": (1, 1), "patch_size": (1, 1), "variant": None}
SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 2, "mlp_dim": 64, "num_classes": 5}
CALLED = (
    "call the linear layers of blocks and pool as modules, `self.qkv(x)`: code that reads their "
    "`weight` would not use the adapter"
)
BUFFERS = (
    "put them into a module without other modules in it, outside the patch embedder, or do not "
    "change them in training"
)
REPORT = "report this as an error of vitzoo"
DEFAULT = (
    "write `default = true` into the entry that the authors mean by the plain name of the network"
)
MEMBERS = "correct it as vitzoo.parts.Network describes, or leave the member out"
NETWORKS = "give numbers that fit in the `networks` table of the test class"


@dataclass(frozen=True)
class VariantSubject(Tested):
    """A variant under test.

    Args:
        name: registered name.
        network: changes to the spec of its small copy, such as options of a cheap patch embedder.
    """

    name: str
    network: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"variant {self.name!r}"

    @property
    def row(self) -> Variant:
        """The registered variant."""
        return vitzoo.describe(self.name)

    def small(self) -> dict[str, Any]:
        """Return the spec of a small copy, with the changes that the variant's builder accepts."""
        row, multiple = self.row, (1, 1)
        if built_of_parts(row):
            part: Any = create(row.name, device="meta").patch_embed
            multiple = getattr(part, "grid_multiple", multiple)
        sides = zip((2, 3), multiple, row.spec.patch_size, strict=True)
        changes = SMALL | {"image_size": [-(-n // step) * step * px for n, step, px in sides]}
        if not row.spec.num_classes:
            changes |= {"num_classes": 0}
        if not built_of_parts(row):
            changes = {key: value for key, value in changes.items() if key in row.accepts}
        return {"variant": self.name, **changes, **self.network}


def one_of_each(namespace: str) -> list[str]:
    """Return the name of the smallest variant of each architecture.

    Variants of the core's builder have one architecture if they differ in `SIZES` alone. Those
    of another builder have one if builder, paper and accepted changes are equal.
    """
    smallest: dict[str, Variant] = {}
    for row in vitzoo.variants(namespace=namespace):
        own = (row.builder, row.accepts, row.paper)
        kind = repr(replace(row.spec, **SIZES) if built_of_parts(row) else own)
        if kind not in smallest or row.params < smallest[kind].params:
            smallest[kind] = row
    return [row.name for row in smallest.values()]


def check_params(subject: VariantSubject) -> None:
    """`params` is the number of parameters. Built on `meta`, the variant takes no memory."""
    with subject.doing("built on meta"), torch.device("meta"):
        model = create(subject.name)  # device="meta" would move it there after it is built
    params, stated = count(model), subject.row.params
    if params != stated:
        problem = f"it states params = {stated}, the network has {params}"
        fix = f"write params = {params}, or correct its sizes"
        raise WrongValue(f"{subject}: {problem}\n  {fix}", "params")
    require_no_memory(subject, model)


def check_default(subject: VariantSubject) -> None:
    """A variant with weights has a default: `pretrained=True` loads it."""
    row = subject.row
    names = ", ".join(weights.name for weights in row.weights)
    problem = f"pretrained=True is an error, because none of its weights is the default: {names}"
    subject.require(bool(row.default_weights) or not names, problem, DEFAULT)


def check_spec(subject: VariantSubject) -> None:
    """The spec of a variant from a module of hooks can be written as TOML and JSON and read from
    them unchanged.
    """
    spec = subject.row.spec
    data = spec.to_data()
    with subject.doing("its spec is written as TOML and JSON", DATA):
        toml, as_json = tomllib.loads(tomlkit.dumps(data)), json.loads(json.dumps(data))
    for language, again in (("TOML", toml), ("JSON", as_json)):
        read = Spec.read(Reader(again, f"{subject}, {language}"), Spec(variant=spec.variant))
        subject.require(read == spec, f"{language} changes its spec to {again}", DATA)


def check_runs(subject: VariantSubject) -> None:
    """A small copy of the variant gives finite logits of the right shape. A loss gives every
    parameter a gradient.
    """
    made, images = small_copy(subject)
    with subject.doing("a small copy of it runs", NETWORKS):
        logits = made(images)
    width, shape = made.spec.num_classes, tuple(logits.shape)
    right = shape == (2, width) if width else shape[0] == 2
    problem = f"a small copy gives logits {shape}, expected finite ones of (2, {width})"
    subject.require(right and bool(logits.isfinite().all()), problem, NETWORKS)
    with subject.doing("a small copy of it is trained"):
        (logits * torch.randn(logits.shape)).sum().backward()
    idle = [name for name, p in made.named_parameters() if p.requires_grad and p.grad is None]
    subject.require_none(idle, "no gradient reaches", USED)


def check_network(subject: VariantSubject) -> None:
    """What a network of another builder has of `vitzoo.parts.Network` is right: `num_classes` is
    that of the spec; `forward_head` gives logits, and (b, d) before the classifier; every map of
    `feature_info` has its channels and stride; classifier and layers have parameters.
    """
    from vitzoo.apps.train.freeze import freeze  # here, because an app is optional

    if built_of_parts(subject.row):
        return
    classes = {"num_classes": SMALL["num_classes"]}
    changes = classes if "num_classes" in subject.row.accepts else {}
    made: Any = create({"variant": subject.name, **changes}, device="meta").eval()
    spec = made.spec
    problem = f"its num_classes is {made.num_classes!r}, that of its spec {spec.num_classes}"
    subject.require(made.num_classes == spec.num_classes, problem, "set it to spec.num_classes")
    images = torch.empty(2, spec.in_chans, *spec.image_size, device="meta")
    if not missing(made, POOLED):
        _check_pooled(subject, made, images)
    if not missing(made, MAPS):
        _check_maps(subject, made, images)
    if not missing(made, CLASSIFIER) and spec.num_classes:
        _check_layers(subject, "get_classifier()", partial(freeze, made, until="head"))
    if not missing(made, LAYERS):
        _check_layers(subject, "group_matcher()", partial(freeze, made, until=0))


def refused_by(name: str) -> str:
    """Return which members the network of a variant lacks, and what refuses it; empty if none."""
    network = create(name, device="meta")
    lacking = {use: " and ".join(missing(network, use)) for use in NEEDED}
    said = "; ".join(f"{use} needs {names}" for use, names in lacking.items() if names)
    return said and f"it lacks members of vitzoo.parts.Network: {said}"


def _check_pooled(subject: VariantSubject, made: Any, images: Tensor) -> None:
    with subject.doing("forward_head(forward_features(images)) is computed", MEMBERS):
        features = made.forward_features(images)
        found, pooled = made.forward_head(features), made.forward_head(features, pre_logits=True)
        expected, shape = flat(made(images))[0].shape, tuple(pooled.shape)
    problem = f"forward_head(forward_features(images)) gives {tuple(flat(found)[0].shape)}"
    said = f"{problem}, a call {tuple(expected)}"
    subject.require(flat(found)[0].shape == expected, said, MEMBERS)
    problem = f"forward_head(..., pre_logits=True) gives {shape} for 2 images, expected (2, d)"
    subject.require(len(shape) == 2 and shape[0] == 2, problem, MEMBERS)


def _check_maps(subject: VariantSubject, made: Any, images: Tensor) -> None:
    every = list(range(len(made.feature_info)))
    options = {"norm": False, "stop_early": True, "intermediates_only": True}
    with subject.doing("forward_intermediates is called as backbone calls it", MEMBERS):
        maps = made.forward_intermediates(images, indices=every, **options)
        found = [tuple(one.shape) for one in maps]
        rows = [(info["num_chs"], info["reduction"], info["module"]) for info in made.feature_info]
    wanted = [(2, n, *(round(px / step) for px in images.shape[2:])) for n, step, _ in rows]
    near = len(found) == len(wanted) and all(map(_near, found, wanted))
    problem = f"feature_info states maps {wanted}, forward_intermediates gives {found}"
    subject.require(near, problem, MEMBERS)


def _near(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether shapes of maps are equal but for one row and column, as padding makes."""
    sides = zip(shape[2:], other[2:], strict=False)
    same = len(shape) == len(other) and shape[:2] == other[:2]
    return same and all(abs(a - b) <= 1 for a, b in sides)


def _check_layers(subject: VariantSubject, what: str, use: Callable[[], object]) -> None:
    """Fail if a method names no parameters: `use` then raises InvalidOption."""
    try:
        with subject.doing(f"{what} is called", MEMBERS):
            use()
    except InvalidOption as error:
        subject.fail(f"{what} names no parameters: {error}", MEMBERS)


def check_lora(subject: VariantSubject) -> None:
    """Every layer that `vitzoo.lora` adapts is called as a module, in training and in evaluation,
    and its outputs change those of the network. Every buffer that training changes is in a module
    that the adapter holds. No part has a module named like the head. A network that is no
    `vitzoo.VisionTransformer` is refused.
    """
    from vitzoo.apps.train.lora import lora  # here, because an app is optional

    made, images = small_copy(subject)
    if not isinstance(made, VisionTransformer):
        with suppress(InvalidOption):
            lora(made, r=1)
            subject.fail(f"vitzoo.lora adapts {type(made).__name__}", REPORT)
        return
    arguments = lora(made, r=1)
    targets, whole = arguments["target_modules"], arguments["modules_to_save"] or ()
    heads = [name for name, _ in made.named_modules() if name.endswith("head") and name != "head"]
    problem = "PEFT trains modules whose names end with that of the head like the head:"
    subject.require_none(heads, problem, "give these modules other names")
    with torch.no_grad():
        before = flat(made(images))
    added: dict[str, _Added] = {}
    for name, layer in list(made.named_modules()):
        if isinstance(layer, nn.Linear) and re.fullmatch(targets, name):
            parent, _, child = name.rpartition(".")
            added[name] = _Added(layer, seed=len(added))
            setattr(made.get_submodule(parent), child, added[name])
    wrapped = subject.doing("its linear layers are wrapped as LoRA wraps them", CALLED)
    with wrapped, torch.no_grad():
        after = flat(made(images))
    idle = [name for name, layer in added.items() if not layer.called]
    subject.require_none(idle, "LoRA has no effect, because the network does not call", CALLED)
    same = all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    subject.require(same, "with wrapped layers the outputs change", CALLED)
    kept = {name: made.state_dict()[name].clone() for name in _buffers(made)}
    with subject.doing("a small copy of it is trained with LoRA", CALLED):
        # Drop path may drop a branch for some of the images, but not for so many.
        found = flat(made.train()(images.repeat(16, 1, 1, 1)))
        torch.autograd.backward([(x * draw(*x.shape)).sum() for x in found])
    idle = [n for n, a in added.items() if a.amount.grad is None or not a.amount.grad.any()]
    subject.require_none(idle, "the outputs of the network do not depend on", CALLED)
    held = tuple(f"{module}." for module in ("head", *whole))
    changed = [n for n, old in kept.items() if not torch.equal(made.state_dict()[n], old)]
    lost = [name for name in changed if not name.startswith(held)]
    subject.require_none(lost, "training changes buffers that an adapter does not hold:", BUFFERS)


def _buffers(model: nn.Module) -> list[str]:
    """Return the names of the buffers in the state dict of a model."""
    buffers = dict(model.named_buffers())
    return [name for name in model.state_dict() if name in buffers]


class _Added(nn.Module):
    """A linear layer with a change of rank 1; it has no `weight` to read."""

    def __init__(self, layer: nn.Linear, seed: int) -> None:
        super().__init__()
        self.base_layer = layer
        self.rows = draw(layer.in_features, seed=seed)  # a constant would not change a softmax
        self.direction = draw(layer.out_features, seed=seed)
        self.amount = nn.Parameter(torch.zeros(()))
        self.called = False

    def forward(self, x: Tensor) -> Tensor:
        self.called = True
        change = self.amount * (x @ self.rows)[..., None] * self.direction
        found: Tensor = self.base_layer(x) + change
        return found


def small_copy(subject: VariantSubject) -> tuple[Any, Tensor]:
    """Return a small copy of a variant, with parameters that reveal mistakes, and two images.

    Raises:
        AssertionError: it cannot be built.
        unittest.SkipTest: it is too large to run.
    """
    spec = subject.small()
    try:
        params = count(create(spec, device="meta"))
    except InvalidOption as error:
        subject.fail(f"a small copy cannot be built from {spec}: {error}", NETWORKS)
    if params > LARGEST:
        raise SkipTest(
            f"{subject} was not run, because its small copy has {params} parameters; the limit is "
            f"{LARGEST}. Let its builder accept depth, or give smaller numbers in the `networks` "
            "table of the test class"
        )
    made: Any = fill(create(spec))
    return made, draw(2, made.spec.in_chans, *made.spec.image_size)


def count(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())
