"""Config overrides of weights: settings of a network that its tensors do not show.

Overrides are changes of a spec, as plain data under its keys. The value of `pool`, `head`,
`patch_embed` or `pos_embed` is a part, or options for the part of the spec. Overrides come from the
checkpoint format, from the configs beside the file, and from the registry entry; a later
source replaces an earlier one. A file written by `vitzoo.save` states all settings instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vitzoo.errors import CheckpointError, UnknownName
from vitzoo.foreign.changes import overridden, timm_spec
from vitzoo.foreign.stated import read_configs
from vitzoo.formats.config import merged
from vitzoo.plugin.guard import guarded
from vitzoo.schema.kinds import KIND_OF_FIELD, PARTS_OF_WEIGHTS
from vitzoo.schema.rows import Variant, Weights, built_of_parts
from vitzoo.schema.spec import PartSpec, Spec

if TYPE_CHECKING:
    from vitzoo.checkpoint.checkpoint import Checkpoint
    from vitzoo.checkpoint.description import Description
    from vitzoo.foreign.stated import StatedNetwork
    from vitzoo.formats import Format
    from vitzoo.registry.registry import Registry

OF_TIMM = "timm"  # the checkpoint format, and the last part of those of plugins


@dataclass(frozen=True)
class Overrides:
    """The config overrides of one weights file.

    Args:
        default: defaults of the checkpoint format.
        stated: overrides that the configs beside the file or the registry entry state.
        beside: what the configs state, None if they state nothing.
        layout: the checkpoint format.
    """

    default: Mapping[str, Any] = field(default_factory=dict)
    stated: Mapping[str, Any] = field(default_factory=dict)
    beside: StatedNetwork | None = None
    layout: Format | None = None

    def check(self, source: str, block: Collection[str]) -> None:
        """Raise CheckpointError for options that no tensor shows, and that are not in `block`."""
        asks = self.layout.asks if self.layout else {}
        missing = [key for key in asks if key not in {*block, *self.stated.get("block", {})}]
        if missing:
            options = ", ".join(f"'{key}': ..." for key in missing)
            usual = ", ".join(f"{key} = {asks[key]}" for key in missing)
            raise CheckpointError(
                f"{source} has the checkpoint format {self.layout and self.layout.name}, in which "
                f"no tensor shows {', '.join(missing)}; state how the network was built: "
                f"block={{{options}}} of create (torch's defaults: {usual})"
            )

    def apply(self, spec: Spec, zoo: Registry, variant: Variant | None = None) -> Spec:
        """Return the spec with the overrides.

        A default of the format is skipped if the part does not have this option, or if the own
        builder of the variant does not accept it.
        """
        own = fixed(variant)
        default = {key: value for key, value in self.default.items() if key not in own}
        return overridden(overridden(spec, default, zoo), self.stated)

    def assumed(self, spec: Spec, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the settings that neither file, registry entry nor user (`changes`) states."""
        known = {**self.stated.get("block", {}), **changes.get("block", {})}
        if spec.block.mlp != "mlp":
            known["activation"] = "silu"  # of every gate
        block = {"norm_eps": spec.block.norm_eps, "activation": spec.block.activation}
        block |= self.default.get("block", {})
        names = [name for name in ("norm_eps", "activation") if name not in known]
        rows = [f"{name} = {block[name]}" for name in names]
        read = self.beside and (self.beside.whole or self.beside.variant)  # it names the network
        for part in () if read else ("pool", "patch_embed"):
            default = self.default.get(part, {})
            options = default if isinstance(default, Mapping) else {"": default}
            rows += [f"{part}.{k} = {v}".replace(". ", " ") for k, v in options.items()]
        return tuple(rows)


def of_row(row: Weights) -> dict[str, Any]:
    """Return the overrides that a registry entry states."""
    parts: dict[str, Any] = {
        name: getattr(row, name) for name in PARTS_OF_WEIGHTS if getattr(row, name)
    }
    stated: dict[str, Any] = {"block": dict(row.block)} if row.block else {}
    stated |= {n: p.to_data() if isinstance(p, PartSpec) else dict(p) for n, p in parts.items()}
    others = {"pre_norm": row.pre_norm, "num_classes": row.num_classes}
    return stated | {name: value for name, value in others.items() if value is not None}


def of_entry(row: Weights, zoo: Registry) -> Overrides:
    """Return the overrides of registered weights, without their file."""
    layout: Format = zoo.part("checkpoint format", row.format)
    return Overrides(layout.overrides({}, ()), of_row(row), layout=layout)


def of_file(
    checkpoint: Checkpoint, layout: Format, zoo: Registry, variant: Variant | None = None
) -> Overrides:
    """Return the overrides of a file, by its format, tensors, configs and registry entry.

    Args:
        checkpoint: the open file.
        layout: its checkpoint format.
        zoo: the registry.
        variant: that the user named.
    """
    keys = checkpoint.header.tensors.keys()
    default = _asked(layout, "overrides", zoo, {}, keys)
    registered = checkpoint.row is not None and bool(checkpoint.row.format)
    if variant and not registered and layout.name.rpartition("/")[2] == OF_TIMM:
        default = merged(default, _in_timm(variant, default))
    shown = _asked(layout, "overrides_in", zoo, keys, checkpoint.tensor)
    if checkpoint.row and registered:
        return Overrides(default, merged(shown, of_row(checkpoint.row)), layout=layout)
    stated = stated_by(checkpoint.stated, zoo, layout)
    if stated is None:
        return Overrides(default, shown, layout=layout)
    seen = stated.shown(stated.spec, checkpoint.shapes(layout)) if stated.shown else {}
    return Overrides(default, merged(stated.settings(), seen, shown), stated, layout)


def stated_by(
    about: Description, zoo: Registry, layout: Format | None = None
) -> StatedNetwork | None:
    """Return what the configs of a file state, None if they state nothing about a network.

    Args:
        about: what is stated beside the file.
        zoo: the registry.
        layout: the checkpoint format of the file, if it is known.

    Raises:
        CheckpointError: a key states something that the model cannot do.
    """
    if not about.config:
        return None

    return read_configs(about, zoo, layout)


def _asked(layout: Format, method: str, zoo: Registry, *arguments: Any) -> dict[str, Any]:
    """Return what a method of a format states; PluginError if it states no network."""
    found: dict[str, Any] = getattr(layout, method)(*arguments)
    whose = guarded(layout)
    if whose is None:
        return found
    target, owner = whose
    try:
        spec = overridden(Spec(), found)
        for name in found.keys() & KIND_OF_FIELD.keys():
            zoo.contribution(KIND_OF_FIELD[name], getattr(spec, name).name)
    except (CheckpointError, UnknownName) as error:
        raise owner.error(f"{method}: {error}", getattr(target, method)) from error
    return found


def _in_timm(variant: Variant, default: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of timm's network of a variant that replace defaults of the format."""
    changes: dict[str, Any] = {"block": dict(variant.timm_block)} if variant.timm_block else {}
    if "pool" in default and OF_TIMM in dict(variant.known_as):
        changes["pool"] = timm_spec(variant).pool.to_data()
    return changes


def fixed(variant: Variant | None) -> frozenset[str]:
    """Return the fields of a spec that the variant's own builder cannot change."""
    if variant is None or built_of_parts(variant):
        return frozenset()
    return frozenset((*PARTS_OF_WEIGHTS, "block", "pre_norm")) - frozenset(variant.accepts)
