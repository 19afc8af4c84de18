"""What the configs beside a weights file state about its network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from torch import Tensor

from vitzoo.checkpoint.description import Description
from vitzoo.checkpoint.others import encoder_in
from vitzoo.checkpoint.tower import readers, tower_of
from vitzoo.errors import CheckpointError, printable, short_repr
from vitzoo.foreign import timm_config
from vitzoo.foreign.changes import overridden, timm_spec
from vitzoo.formats import Format
from vitzoo.formats.config import Config, check_config, merged
from vitzoo.formats.transformers import WITH_BIAS
from vitzoo.plugin.info import CORE, install_command
from vitzoo.registry.available import reader_of
from vitzoo.registry.foreign_names import current, known_elsewhere
from vitzoo.registry.registry import Registry
from vitzoo.schema.rows import Variant, built_of_parts
from vitzoo.schema.spec import Spec
from vitzoo.text import escaped, listed

SETTINGS = ("block", "pool", "patch_embed", "pos_embed", "pre_norm")
"""Keys of a spec that no tensor shows, in a config of any library."""
STRUCTURE = (
    *("embed_dim", "depth", "num_heads", "mlp_dim", "patch_size"),
    *("class_token", "num_registers", "final_norm"),
)
ADAPTED = ("image_size", "in_chans")
"""Keys of a spec in which a model may differ from its weights, besides its head."""
OF_BLOCKS = ("hidden_act", "layer_norm_eps", "qkv_bias")  # keys of transformers
WHERE = "config of the weights"
TIMM, UNREAD = "timm", "none"  # who reads configs, beside the formats
OPEN_CLIP = "open_clip"  # stands for the model type of an `open_clip_config.json`


class OtherSizes(NamedTuple):
    """The sizes that the config of weights states, and those of the model, by their names."""

    source: str
    pairs: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True)
class StatedNetwork:
    """What configs state about a network.

    Args:
        changes: keys of a spec that they state.
        whole: returns the keys of a spec that describe the complete network, without a variant.
        variant: the variant that they name.
        notes: for the load report.
        unread: keys of a config of an unknown kind, under the names that transformers gives them.
        others: its keys under other names.
        shown: returns what the tensors of a file, under the keys of the model, show beyond the
            network `spec`; None if they show nothing.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    whole: Callable[[], Mapping[str, Any]] | None = None
    variant: Variant | None = None
    notes: tuple[str, ...] = ()
    unread: Config = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    shown: Callable[[Spec, Mapping[str, Tensor]], dict[str, Any]] | None = None

    @cached_property
    def spec(self) -> Spec:
        """The network.

        Raises:
            CheckpointError: a value is not possible.
        """
        if self.variant:
            own = built_of_parts(self.variant)
            spec = timm_spec(self.variant) if own else self.variant.spec
            return overridden(spec, self.changes, where=WHERE)
        return overridden(Spec(), self.whole() if self.whole else self.changes, where=WHERE)

    def settings(self) -> dict[str, Any]:
        """Return the settings that no tensor shows, as changes of a spec.

        A variant states the whole block, for timm's own values differ from a format's defaults.
        """
        found = {key: self.changes[key] for key in SETTINGS if key in self.changes}
        if self.variant is None or not built_of_parts(self.variant):
            return found
        data = self.spec.to_data()
        return {key: data[key] for key in ("block", "pool", "pre_norm")} | {
            key: found[key] for key in ("patch_embed", "pos_embed") if key in found
        }

    def check(
        self,
        base: Spec,
        source: str,
        changes: Mapping[str, Any],
    ) -> Spec:
        """Return the network of the weights over that of the model, in size and channels.

        Args:
            base: the network that the user named.
            source: of the weights, for errors.
            changes: those of the user.

        Raises:
            CheckpointError: the configs describe another network.
        """
        spec = self.spec if self.variant else overridden(base, self.changes, where=WHERE)
        if self.variant and not built_of_parts(self.variant):
            return base
        if self.unread and not base.embed_dim:  # the builder of a plugin states no sizes
            return base
        wrong = [name for name in STRUCTURE if getattr(spec, name) != getattr(base, name)]
        if wrong:
            found, own = (
                ", ".join(f"{name} = {getattr(stated, name)}" for name in wrong)
                for stated in (spec, base)
            )
            alone = "" if self.unread else ", create the model from the folder alone"
            raise CheckpointError(
                f"{source}: its config states {found}, the model has {own}. Name the right "
                f"variant{alone}, or move the config away if it is not of these weights"
            )
        other = _other(spec, base, ADAPTED, changes)
        if other:
            whole = self.whole() if self.whole and not self.variant else {}
            spec = replace(spec, num_classes=whole.get("num_classes", spec.num_classes))
            pairs = other | _other(spec, base, ("num_classes",), changes)
            raise CheckpointError().of(OtherSizes(source, pairs))
        return replace(base, image_size=spec.image_size, in_chans=spec.in_chans)

    def unapplied(self, spec: Spec) -> str:
        """Return the settings of a config of an unknown kind that a network does not have."""
        network = {**vars(spec), **vars(spec.block)}
        rows, wanted = [], dict[str, Any]()
        for key, value in self.unread.items():
            found = _common(key, value)
            if found and key not in OF_BLOCKS:
                continue  # `check` compares sizes
            (place,) = _common(key, WITH_BIAS.defaults[key])
            if found.get(place) == network[place]:
                continue
            rows.append(f"{key} = {short_repr(value)}, the model has {place} = {network[place]!r}")
            wanted |= found
        fix = f"; pass block={wanted} for the values of the config" if wanted else ""
        if self.others:
            rows.append(f"keys that vitzoo does not know: {printable(listed(self.others), 200)}")
        return f"config.json states {'; '.join(rows)}{fix}" if rows else ""


def _other(
    spec: Spec, base: Spec, names: Iterable[str], changes: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """Return the values in two specs that differ and that the user does not state."""
    pairs = {name: (getattr(spec, name), getattr(base, name)) for name in names}
    return {n: pair for n, pair in pairs.items() if pair[0] != pair[1] and n not in changes}


def read_configs(about: Description, zoo: Registry, layout: Format | None) -> StatedNetwork | None:
    """Return what the configs of a file state, see `stated_by`; each reader reads them once."""
    inside = tower_of(about, zoo)
    config = inside.config if inside else about.config
    own = not {"model_cfg", "vision_cfg"}.isdisjoint(config)
    of_open_clip = layout is not None and OPEN_CLIP in layout.configs and own
    by_timm = timm_config.is_timm(config)
    if not by_timm and (tower := timm_config.of_open_clip(config)):
        return _once(about, TIMM, lambda: _of_timm(tower, zoo))
    if by_timm and not of_open_clip:
        if layout is not None and not layout.configs:
            layout.stated(config)  # raises if the architecture is no network of the format
        return _once(about, TIMM, lambda: _of_timm(config, zoo))
    kind = OPEN_CLIP if of_open_clip else _kind(config)
    reader = _reader(kind, zoo, layout)
    if reader is None:
        return _once(about, UNREAD, lambda: _of_unknown(config, kind, zoo))
    found = reader  # for mypy, in the function below
    return _once(about, reader.name, lambda: _of_format(config, found, tower=inside is not None))


def _once(
    about: Description, reader: str, read: Callable[[], StatedNetwork | None]
) -> StatedNetwork | None:
    key = f"network by {reader}"
    if key not in about.read:
        about.read[key] = read()
    found: StatedNetwork | None = about.read[key]
    return found


def _of_format(config: Config, reader: Format, *, tower: bool) -> StatedNetwork:
    """Return what a checkpoint format reads in the configs of its library."""
    table = reader.config_table(config)
    left = table.unknown(reader.own_config(config)) if table else []
    headless = {"num_classes": 0} if tower else {}

    def whole() -> Mapping[str, Any]:
        return merged(reader.spec_in(config), headless)

    return StatedNetwork(reader.stated(config), whole, notes=_unknown(left))


def _of_unknown(config: Config, kind: str | None, zoo: Registry) -> StatedNetwork | None:
    """Return the sizes that a config of an unknown kind states, and all keys as `unread`."""
    own = config.get("vision_config")
    own = own if isinstance(own, Mapping) else config
    unread = {key: own[key] for key in WITH_BIAS.applied if key in own}
    sizes = [_common(key, value) for key, value in unread.items() if key not in OF_BLOCKS]
    if kind is None and not unread:
        return None
    why = "it states no model_type"
    if kind == OPEN_CLIP:
        why = f"open_clip_config.json is read by the plugin clip; {install_command('clip')}"
    elif kind is not None:
        inside = "" if own is config else own.get("model_type", "")
        of_tower = f", nor {escaped(str(inside))} of its vision_config" if inside else ""
        ways = [way for one in (kind, str(inside)) if (way := reader_of(one, zoo))]
        unknown = f"model_type {escaped(kind)} is not known{of_tower}"
        why = "; ".join((encoder_in(config, zoo) or unknown, *ways[:1]))
    notes = (f"config.json is not used: {why}",)
    return StatedNetwork(merged(*sizes), notes=notes, unread=unread, others=WITH_BIAS.unknown(own))


def _common(key: str, value: Any) -> Mapping[str, Any]:
    """Return what a key of transformers states, empty if the value is not a usual one."""
    try:
        found = WITH_BIAS.read({key: value})
    except CheckpointError:
        return {}
    return found.get("block", found)


def _of_timm(config: Config, zoo: Registry) -> StatedNetwork:
    name, tag = timm_config.architecture_of(config)
    notes = (*_unknown(timm_config.unknown_keys(config)), *timm_config.notes_on(config))
    quick = _quick(config)
    if quick:
        notes = (*notes, "block.activation = quick_gelu, as open_clip_config.json states")
    former = current(name)  # of a config that an older timm wrote
    names = [f"{name}.{tag}"] * bool(tag) + [former, former.partition(".")[0]]
    found = next(filter(None, (_variant(known, zoo) for known in names)), None)
    if found is None:
        shown = escaped(config["architecture"])[:100]
        changes = merged(quick, timm_config.changes_of(config, Spec()))
        note = f"architecture {shown} of config.json is not known; the settings are the model's"
        return StatedNetwork(changes, notes=(note, *notes))
    base, own = timm_spec(found), built_of_parts(found)
    changes = merged(quick, timm_config.changes_of(config, base))
    called = f"that of timm's {name}, which {found.name} wraps (here it is called"
    expected = f"{called} {base.pool.name!r})"
    check_config(own or "pool" not in changes, "global_pool", expected, config.get("global_pool"))
    beyond = partial(timm_config.shown, config) if own else None
    return StatedNetwork(changes, None, found, notes, shown=beyond)


def _quick(config: Config) -> dict[str, Any]:
    """Return the activation of an `open_clip_config.json` beside timm's config.

    open_clip builds a tower of timm with timm's own activation.
    """
    model = config.get("model_cfg")
    quick = isinstance(model, Mapping) and model.get("quick_gelu") is True
    own = quick and timm_config.of_open_clip(config) is None
    return {"block": {"activation": "quick_gelu"}} if own else {}


def _variant(name: str, zoo: Registry) -> Variant | None:
    """Return the variant of timm's name; an architecture may have only names with a tag.

    No plugin is read for the name of a variant of the core.
    """
    zoo.host.load(CORE)
    core = (zoo.host.variants.get(row.name) for row in zoo.host.core.variants)
    if own := next((v for v in core if v and ("timm", name) in v.known_as), None):
        return own
    matches = [variant for _, variant, _ in known_elsewhere(name, zoo)]
    exact = next((v for v in matches if ("timm", name) in v.known_as), None)
    if exact or "." in name:
        return exact
    tagged = ((v, *pair) for v in matches for pair in v.known_as)
    return next((v for v, lib, n in tagged if lib == "timm" and n.startswith(f"{name}.")), None)


def _kind(config: Config) -> str | None:
    if isinstance(config.get("model_type"), str):
        return str(config["model_type"])
    return OPEN_CLIP if isinstance(config.get("model_cfg"), Mapping) else None


def _reader(kind: str | None, zoo: Registry, layout: Format | None) -> Format | None:
    """Return the format that reads configs of a kind; of no kind, that of the file."""
    if layout is not None and layout.configs and (kind is None or kind in layout.configs):
        return layout
    names = readers(kind, zoo)
    return next((zoo.part("checkpoint format", name) for name in names), None)


def _unknown(keys: list[str]) -> tuple[str, ...]:
    return (f"unknown keys of config.json have no effect: {listed(keys)}",) if keys else ()
