"""Config overrides of weights: settings that a network needs and no tensor shows.

They are changes to a spec, as plain data under its keys: `block` holds block options; `pool`,
`head`, `patch_embed` and `pos_embed` hold a part, or options for the part that the spec names;
`pre_norm` is true or false. They come from the checkpoint format, from the `config.json` beside a
file and from the entry in the registry, the later ones over the earlier. A file written by
`vitzoo.save` states them all.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.detect import format_of
from vitzoo.errors import CheckpointError
from vitzoo.loading.request import PARTS
from vitzoo.registry.registry import Registry
from vitzoo.schema.kinds import KIND_OF_FIELD
from vitzoo.schema.manifest import CORE_BUILDER
from vitzoo.schema.reader import Reader
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import PartSpec, Spec


@dataclass(frozen=True)
class Overrides:
    """The config overrides of one weights file.

    Args:
        default: of its checkpoint format.
        stated: by its `config.json` or its entry in the registry.
    """

    default: Mapping[str, Any] = field(default_factory=dict)
    stated: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, spec: Spec, zoo: Registry, variant: Variant | None = None) -> Spec:
        """Return the spec with the overrides in it.

        Args:
            spec: the network without them.
            zoo: looks up which options a part has. Defaults of the format for options that the
                part does not have are left out, such as a resampling where there is no table.
            variant: the network's; defaults in what its own builder fixes are left out.

        Raises:
            CheckpointError: overrides that no spec can have.
        """
        own = fixed(variant)
        default = {key: value for key, value in self.default.items() if key not in own}
        return _apply(_apply(spec, default, zoo), self.stated)

    def assumed(self, spec: Spec, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """Name the settings that only the format's defaults or the variant give.

        Args:
            spec: the network without the overrides.
            changes: what the user states instead.
        """
        known = {**self.stated.get("block", {}), **changes.get("block", {})}
        block = {"norm_eps": spec.block.norm_eps, "activation": spec.block.activation}
        block |= self.default.get("block", {})
        rows = [f"{name} = {value}" for name, value in block.items() if name not in known]
        for part in ("pool", "patch_embed"):
            default = self.default.get(part, {})
            options = default if isinstance(default, Mapping) else {"": default}
            rows += [f"{part}.{k} = {v}".replace(". ", " ") for k, v in options.items()]
        return tuple(rows)


def of_row(row: Weights) -> dict[str, Any]:
    """Return the overrides that an entry of the registry states."""
    overrides: dict[str, Any] = {}
    if row.block:
        overrides["block"] = dict(row.block)
    for name in PARTS:
        part: Any = getattr(row, name)
        if part:
            overrides[name] = part.to_data() if isinstance(part, PartSpec) else dict(part)
    if row.pre_norm is not None:
        overrides["pre_norm"] = row.pre_norm
    if row.num_classes is not None:
        overrides["num_classes"] = row.num_classes
    return overrides


def of_entry(row: Weights, zoo: Registry) -> Overrides:
    """Return the overrides of registered weights; their file is not needed."""
    layout = zoo.part("checkpoint format", row.format)
    return Overrides(layout.overrides({}, ()), of_row(row))


def of_file(checkpoint: Checkpoint, zoo: Registry) -> Overrides:
    """Return the overrides of a file, by its format, its keys and its `config.json`.

    Raises:
        CheckpointError: the config states something that no network here can do.
    """
    layout, keys = format_of(checkpoint, zoo), checkpoint.header.tensors.keys()
    stated = layout.overrides(checkpoint.config, keys) if checkpoint.config else {}
    return Overrides(
        layout.overrides({}, keys), stated | (of_row(checkpoint.row) if checkpoint.row else {})
    )


def fixed(variant: Variant | None) -> frozenset[str]:
    """Return the fields that a variant's own builder does not let anyone change."""
    if variant is None or variant.builder == CORE_BUILDER:
        return frozenset()
    return frozenset((*PARTS, "block", "pre_norm")) - frozenset(variant.accepts)


def _apply(spec: Spec, overrides: Mapping[str, Any], zoo: Registry | None = None) -> Spec:
    """Return the spec with overrides; with a registry, without options that its parts lack."""
    if not overrides:
        return spec
    changes: dict[str, Any] = {}
    for name, value in overrides.items():
        if name != "block" and isinstance(value, Mapping) and "name" not in value:
            changes[name] = _with_options(getattr(spec, name), name, value, zoo)
        else:
            changes[name] = value
    reader = Reader(changes, "config overrides of the weights", CheckpointError)
    result = Spec.read(reader, spec)
    reader.done()
    return result


def _with_options(
    part: PartSpec, name: str, options: Mapping[str, Any], zoo: Registry | None
) -> dict[str, Any] | PartSpec:
    if part.opaque:
        return part
    if zoo is not None:
        options = {key: value for key, value in options.items() if _has(part, name, key, zoo)}
    return {"name": part.name, **dict(part.options), **options}


def _has(part: PartSpec, name: str, option: str, zoo: Registry) -> bool:
    """Tell whether the constructor of a part takes an option."""
    constructor = zoo.part(KIND_OF_FIELD[name], part.name)
    return option in inspect.signature(constructor).parameters
