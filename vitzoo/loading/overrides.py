"""Facts of weights: what a network must compute for them and no tensor shows.

They are changes to a spec, as plain data under its keys: `block` holds block options; `pool`,
`head`, `patch_embed` and `pos_embed` hold a part, or options for the part that the spec names;
`pre_norm` is true or false. They come from the layout of the file, from its sibling `config.json`
and from its row in the registry, the later ones over the earlier. A file written by `vitzoo.save`
states them all.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from vitzoo.errors import CheckpointError
from vitzoo.parts.pool import POOLS
from vitzoo.registry.registry import registry
from vitzoo.schema.kinds import KIND_OF_FIELD
from vitzoo.schema.manifest import CORE_BUILDER
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import PartSpec, Spec

PARTS = ("pool", "head", "patch_embed", "pos_embed")


def of_row(row: Weights) -> dict[str, Any]:
    """Return the facts that a registry row states."""
    facts: dict[str, Any] = {}
    if row.block:
        facts["block"] = dict(row.block)
    for field in PARTS:
        part: Any = getattr(row, field)
        if part:
            facts[field] = part.to_data() if isinstance(part, PartSpec) else dict(part)
    if row.pre_norm is not None:
        facts["pre_norm"] = row.pre_norm
    return facts


def applied(
    spec: Spec, facts: Mapping[str, Any], *, kept: Collection[str] = (), lenient: bool = False
) -> Spec:
    """Return the spec with the facts in it.

    Args:
        spec: the network so far.
        facts: changes as plain data.
        kept: fields, and `block.option`s, that stay as they are.
        lenient: options that the spec's part does not have are left out: they belong to another
            part, such as the resampling of a table where there is none.

    Raises:
        CheckpointError: facts that no spec can have.
    """
    if not facts:
        return spec
    changes: dict[str, Any] = {}
    for field, fact in facts.items():
        if field in kept:
            continue
        if field == "block":
            changes[field] = {k: v for k, v in fact.items() if f"block.{k}" not in kept}
        elif isinstance(fact, Mapping) and "name" not in fact:
            changes[field] = _with_options(getattr(spec, field), field, fact, lenient)
        else:
            changes[field] = fact
    reader = Reader(changes, "facts of the weights", CheckpointError)
    result = Spec.read(reader, spec)
    reader.done()
    return result


def taken_over(spec: Spec, other: Spec, *, kept: Collection[str] = ()) -> Spec:
    """Return the spec with all facts of another network.

    Args:
        spec: the network so far.
        other: the network that the weights belong to, as their file states it.
        kept: fields, and `block.option`s, that stay as they are.
    """
    block = {f.name: getattr(other.block, f.name) for f in dataclasses.fields(other.block)}
    block = {key: value for key, value in block.items() if f"block.{key}" not in kept}
    fields: dict[str, Any] = {
        field: getattr(other, field) for field in (*PARTS, "pre_norm") if field not in kept
    }
    return replace(spec, block=replace(spec.block, **block), **fields)


def only_assumed(
    native: Spec, usual: Mapping[str, Any], stated: Mapping[str, Any], kept: Collection[str]
) -> tuple[str, ...]:
    """Name the facts of a file that only its layout or the variant says.

    Args:
        native: the network without the facts of the file.
        usual: facts of its layout.
        stated: facts that its `config.json` states.
        kept: what the caller says instead.
    """
    known = stated.get("block", {})
    block = {"norm_eps": native.block.norm_eps, "activation": native.block.activation}
    block |= usual.get("block", {})
    rows = [
        f"{name} = {value}"
        for name, value in block.items()
        if name not in known and f"block.{name}" not in kept
    ]
    for field in ("pool", "patch_embed"):
        fact = usual.get(field, {})
        options = fact if isinstance(fact, Mapping) else {"": fact}
        rows += [f"{field}.{k} = {v}".replace(". ", " ") for k, v in options.items()]
    return tuple(rows)


def differing(native: Spec, spec: Spec) -> dict[str, tuple[Any, Any]]:
    """Return the facts in which two specs differ, by field or `block.option`, as plain data."""
    own, other = native.to_data(), spec.to_data()
    fields = [field for field in (*PARTS, "pre_norm") if field in own]
    pairs = {field: (own[field], other[field]) for field in fields}
    block = own["block"] | other["block"]
    pairs |= {f"block.{key}": (own["block"].get(key), other["block"].get(key)) for key in block}
    return {key: (old, new) for key, (old, new) in pairs.items() if old != new}


def fixed(variant: Variant) -> frozenset[str]:
    """Return the fields that a variant's own builder does not let anyone change."""
    if variant.builder == CORE_BUILDER:
        return frozenset()
    return frozenset((*PARTS, "block", "pre_norm")) - frozenset(variant.accepts)


def _with_options(
    part: PartSpec, field: str, options: Mapping[str, Any], lenient: bool
) -> dict[str, Any] | PartSpec:
    if part.opaque:
        return part
    if lenient:
        options = {key: value for key, value in options.items() if _has(part, field, key)}
    return {"name": part.name, **dict(part.options), **options}


def _has(part: PartSpec, field: str, option: str) -> bool:
    """Tell whether the constructor of a part takes an option."""
    if field == "pool":
        constructor: Any = POOLS.get(part.name)
    else:
        constructor = registry().part(KIND_OF_FIELD[field], part.name)
    return constructor is not None and option in inspect.signature(constructor).parameters
