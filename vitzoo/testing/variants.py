"""Variants: they build as stated, and a small copy of each runs."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tomlkit
import torch
from torch import nn

import vitzoo
from vitzoo.errors import InvalidOption
from vitzoo.factory import create
from vitzoo.schema.manifest import CORE_BUILDER
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Variant
from vitzoo.schema.spec import Spec
from vitzoo.testing.subject import doing, draw, fill, require

LARGEST = 100_000_000  # parameters that a check makes room for
NUMBERS: dict[str, Any] = {
    "variant": None,
    "image_size": (1, 1),
    "patch_size": (1, 1),
    "in_chans": 1,
    "num_classes": 1,
    "embed_dim": 0,
    "depth": 0,
    "num_heads": 0,
    "mlp_dim": 0,
    "num_registers": 0,
}
SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 2, "mlp_dim": 64, "num_classes": 5}


@dataclass(frozen=True)
class VariantSubject:
    """A variant under test.

    Args:
        name: as registered.
        network: changes to its small copy, such as options that make its patch embedder cheap.
    """

    name: str
    network: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"variant {self.name!r}"

    @property
    def row(self) -> Variant:
        """What is registered."""
        return vitzoo.describe(self.name)

    def small(self) -> dict[str, Any]:
        """Return the spec of a small copy; of one with its own builder what it accepts changed."""
        row = self.row
        sides = zip((2, 3), _grid_multiple(row), row.spec.patch_size, strict=True)
        size = {"image_size": [-(-n // step) * step * px for n, step, px in sides]}
        changes = {**SMALL, **size} if row.spec.num_classes else {**SMALL, **size, "num_classes": 0}
        if row.builder != CORE_BUILDER:
            changes = {key: value for key, value in changes.items() if key in row.accepts}
        return {"variant": self.name, **changes, **self.network}


def _grid_multiple(row: Variant) -> tuple[int, int]:
    """Return what rows and columns of a variant's grid must be multiples of."""
    if row.builder != CORE_BUILDER:
        return 1, 1
    part: Any = create(row.name, device="meta").patch_embed
    stated: tuple[int, int] = getattr(part, "grid_multiple", (1, 1))
    return stated


def one_of_each(namespace: str) -> list[str]:
    """Return the name of the smallest variant of each architecture.

    Variants of the core's builder are of one architecture if they differ in `NUMBERS` alone, those
    of a builder of its own if they name the same paper and accept the same changes.
    """
    smallest: dict[str, Variant] = {}
    for row in vitzoo.variants(namespace=namespace):
        own = (row.builder, row.accepts, row.paper)
        kind = repr(replace(row.spec, **NUMBERS) if row.builder == CORE_BUILDER else own)
        if kind not in smallest or row.params < smallest[kind].params:
            smallest[kind] = row
    return [row.name for row in smallest.values()]


def check_params(subject: VariantSubject) -> None:
    """It builds without memory, with as many parameters as stated."""
    __tracebackhide__ = True
    with doing(subject, "built on meta"), torch.device("meta"):
        model = create(subject.name)  # with device= it would be moved there afterwards
    params = count(model)
    stated = subject.row.params
    require(
        params == stated,
        f"{subject} states params = {stated}, the network has {params}",
        f"write params = {params}, or correct its numbers",
    )
    held = [name for name, p in model.named_parameters() if not p.is_meta]
    require(
        not held,
        f"{subject}: built on meta, {', '.join(held[:3])} has memory",
        "a builder makes parameters without device=, so that building is free before loading",
    )


def check_spec(subject: VariantSubject) -> None:
    """Its spec comes back from TOML and from JSON."""
    __tracebackhide__ = True
    spec = subject.row.spec
    fix = "options are strings, numbers, booleans and lists of them"
    data = spec.to_data()
    with doing(subject, "its spec is written as TOML and JSON", fix):
        written = {
            "TOML": tomllib.loads(tomlkit.dumps(data)),
            "JSON": json.loads(json.dumps(data)),
        }
    for language, again in written.items():
        read = Spec.read(Reader(again, f"{subject}, {language}"), Spec(variant=spec.variant))
        require(read == spec, f"{subject}: its spec changes in {language}: {again}", fix)


def check_runs(subject: VariantSubject) -> None:
    """A small copy gives finite logits and a gradient for every parameter."""
    __tracebackhide__ = True
    spec = subject.small()
    fix = (
        "if the small numbers do not fit it, give others in the `networks` table of the test class"
    )
    try:
        hollow = create(spec, device="meta")
    except InvalidOption as error:
        raise AssertionError(
            f"{subject}: a small copy cannot be built from {spec}: {error}\n  {fix}"
        ) from error
    if count(hollow) > LARGEST:
        import pytest

        pytest.skip(
            f"{subject} was not run: its small copy has {count(hollow)} parameters, more than "
            f"{LARGEST}; let its builder accept depth, or give smaller numbers in `networks`"
        )
    made: Any = fill(create(spec))
    images = draw(2, made.spec.in_chans, *made.spec.image_size)
    with doing(subject, "a small copy of it runs", fix):
        logits = made(images)
    width = made.spec.num_classes
    shape = tuple(logits.shape)
    require(
        shape[0] == 2 and (shape[1:] == (width,) or not width) and bool(logits.isfinite().all()),
        f"{subject}: a small copy gives logits {shape}, expected finite ones of (2, {width})",
        fix,
    )
    with doing(subject, "a small copy of it is trained"):
        (logits * torch.randn(logits.shape)).sum().backward()
    idle = [name for name, p in made.named_parameters() if p.requires_grad and p.grad is None]
    require(
        not idle,
        f"{subject}: no gradient reaches {', '.join(idle[:5])}",
        "every parameter is used, or frozen with requires_grad_(False)",
    )


def count(model: nn.Module) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())
