"""The plan of a call: from the network of the weights to the network of the model.

A plan is a pure function of what is stated and of the call. It reads no file itself. Of an open
file it looks at names, shapes and types, and at the settings that `Statement.overrides` has read.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from vitzoo.checkpoint.others import check_vit
from vitzoo.errors import CheckpointError, UnknownName
from vitzoo.foreign.changes import overridden
from vitzoo.foreign.overrides import fixed, stated_by
from vitzoo.formats import Format
from vitzoo.formats.timm import HEADS
from vitzoo.formats.transformers import with_class
from vitzoo.loading.differences import HEAD_FIELDS, changed, differences, joined
from vitzoo.loading.statement import Statement
from vitzoo.log import log
from vitzoo.plugin.guard import note_of
from vitzoo.plugin.info import CORE
from vitzoo.registry.registry import Registry
from vitzoo.schema.kinds import KIND_OF_FIELD, PARTS_OF_WEIGHTS
from vitzoo.schema.rows import Variant, Weights
from vitzoo.schema.spec import PartSpec, Spec

FORMAT = "checkpoint format"
PRE_LOGITS = ("tanh", "mlp")  # heads with a layer before the classifier
PRE_LOGITS_WEIGHT = "head.pre_logits.weight"
ON_POOLER = {PRE_LOGITS_WEIGHT, "head.fc.weight"}  # a classifier and a pooler below it
POOLER = (
    "head = tanh: the file has a classifier and a pooler (pooler.dense), and no tensor shows "
    "whether the classifier reads it; pass head='linear' for a classifier of the class token"
)


class SavedSize(NamedTuple):
    """The image size, (h, w) px, of a saved file and of the requested model."""

    source: str
    saved: tuple[int, int]
    wanted: tuple[int, int]


@dataclass(frozen=True)
class Plan:
    """How the weights of a call become those of its model.

    Args:
        trained: the network of the weights.
        wanted: the network of the model.
        asked: the fields of the head that the user states.
        assumed: for the load report, settings that the weights do not state or that differ.
        resampling: for the report, the interpolation of positions if they are interpolated.
    """

    trained: Spec
    wanted: Spec
    asked: frozenset[str] = frozenset()
    assumed: tuple[str, ...] = ()
    resampling: str = ""

    @property
    def other_pre_logits(self) -> bool:
        """Whether new pre-logits replace those of the file, even of equal shape."""
        heads = {self.trained.head.name, self.wanted.head.name}
        return self.trained.head != self.wanted.head and "mlp" in heads

    @classmethod
    def of(
        cls,
        statement: Statement,
        call: Mapping[str, Any],
        *,
        asked: frozenset[str] = frozenset(),
        replaced: bool = False,
    ) -> Plan:
        """Return the plan of a call.

        Args:
            statement: what is stated about the network and its weights.
            call: the changes of the call, under the keys of a spec.
            asked: fields of the head that something else than the call or a spec states.
            replaced: whether another step replaces the head.

        Raises:
            CheckpointError: the weights are of another network.
            InvalidOption: a change is not possible.
        """
        changes, notes = joined(statement.changes, call), tuple[str, ...]()
        saved = None if statement.saved or statement.row else statement.checkpoint.spec
        if statement.saved:
            trained = statement.spec
        elif statement.row:
            trained = _of_entry(statement, changes)
        elif saved:
            trained = _as_saved(saved, statement, changes)
        else:
            trained, notes = _of_file(statement, changes)
        wanted, resampling = changed(trained, statement.changes, call), ""
        if statement.row and not replaced:
            wanted = _without_published_classifier(wanted, statement.row, changes)
        moved = trained.image_size != wanted.image_size and "pos_embed" not in changes
        if not (statement.saved or saved):  # these state every setting
            resampling = _resampling(statement, trained) if moved else ""
            notes = () if statement.row else _not_stated(statement, changes, wanted, notes)
        own = HEAD_FIELDS.intersection(statement.changes if statement.variant else ())
        asked = asked | own | (HEAD_FIELDS & call.keys())
        notes = (*notes, *_chosen_over(trained, wanted))
        return cls(trained, wanted, asked, notes, resampling)


def check_remote(statement: Statement, changes: Mapping[str, Any]) -> None:
    """Raise CheckpointError if the configs on the Hub are of another network, before a download."""
    if statement.beside is None:
        return
    about, _ = statement.beside()
    check_vit(statement.remote, about.config)
    if stated := stated_by(about, statement.zoo):
        stated.check(statement.base, statement.remote, changes)


def _of_entry(statement: Statement, changes: Mapping[str, Any]) -> Spec:
    """Return the network of registered weights."""
    variant, row, found = statement.variant, statement.row, statement.overrides
    stated = {*changes.get("block", {}), *statement.stated_block}
    found.check(f"{variant and variant.name}:{row and row.name}", stated)
    return found.apply(statement.base, statement.zoo, variant)


def _of_file(statement: Statement, changes: Mapping[str, Any]) -> tuple[Spec, tuple[str, ...]]:
    """Return the network of a file without entry, and notes on its head."""
    checkpoint, zoo, base = statement.checkpoint, statement.zoo, statement.base
    layout, block = statement.layout, changes.get("block", {})
    if statement.place:
        base = _shown(statement, layout)
    overrides = statement.overrides
    overrides.check(checkpoint.source, {*block, *statement.stated_block})
    if own := {key: block[key] for key in layout.asks if key in block}:
        base = overridden(base, {"block": own})  # they are the weights' own
    heads = layout.num_heads(checkpoint.stated.config, checkpoint.skeleton())
    if heads is not None:
        _check_heads(checkpoint.source, heads, base, note_of(layout))
    if overrides.beside:
        base = overrides.beside.check(base, checkpoint.source, changes)
    head, notes = _head(statement, layout), tuple[str, ...]()
    if head != statement.base.head.name:
        base = replace(base, head=PartSpec(head))
        if "head" not in changes:
            own_head = statement.base.head.name
            without = f"the file has no pre-logits (pooler): head = linear, not {own_head}"
            notes = (POOLER if head == "tanh" else without,)
    return overrides.apply(base, zoo, statement.variant), notes


def _shown(statement: Statement, layout: Format) -> Spec:
    """Return the network of a folder; its tensors show a head that its config does not name."""
    found = statement.checkpoint
    config = found.stated.config
    shapes = {layout.keymap.plain(k): t.shape for k, t in found.header.tensors.items()}
    completed = with_class(config, shapes)
    if completed is config:
        return statement.base
    stated = stated_by(replace(found.stated, config=completed), statement.zoo, layout)
    return stated.spec if stated else statement.base


def _head(statement: Statement, layout: Format) -> str:
    """Return the head of a file's network, as its tensors show it: that of the base, or another."""
    name, checkpoint = statement.base.head.name, statement.checkpoint
    if not (name in PRE_LOGITS or (name == "linear" and layout.pooled)):
        return name
    heads = {tensor for tensor in checkpoint.shapes(layout) if tensor.startswith(HEADS)}
    if name in PRE_LOGITS:
        return name if heads else "linear"
    keys = checkpoint.header.tensors
    pooler = any(PRE_LOGITS_WEIGHT in (key, *layout.targets(key)) for key in keys)
    return "tanh" if pooler and heads >= ON_POOLER else name


def _as_saved(saved: Spec, statement: Statement, changes: Mapping[str, Any]) -> Spec:
    """Return the network that a file of `save` states, if it fits the requested one."""
    base, checkpoint = statement.base, statement.checkpoint
    source = checkpoint.source
    _check_heads(source, saved.num_heads, base)
    if saved.options != base.options:
        raise CheckpointError(
            f"{source} was saved with the options {dict(saved.options)}, the model has "
            f"{dict(base.options)}; load it without a name: create({source!r})"
        )
    if saved.image_size != base.image_size and "image_size" not in changes:
        raise CheckpointError().of(SavedSize(source, saved.image_size, base.image_size))
    parts: dict[str, PartSpec] = {name: getattr(saved, name) for name in PARTS_OF_WEIGHTS}
    for name, part in parts.items():
        if name in changes or part.opaque:
            continue
        try:
            statement.zoo.part(KIND_OF_FIELD[name], part.name)
        except UnknownName as error:
            fix = checkpoint.stated.fix(part.name.rpartition("/")[0])
            raise CheckpointError(
                f"{source} was saved with {name} {part.name!r}, which is not registered here; "
                f"pass {name}=, or get its plugin: {fix}"
            ) from error
    fields = ("image_size", "num_classes", "block", "pre_norm", *PARTS_OF_WEIGHTS)
    return replace(base, **{name: getattr(saved, name) for name in fields})


def _without_published_classifier(spec: Spec, row: Weights, changes: Mapping[str, Any]) -> Spec:
    """Return the spec with the head for weights whose classifier was never published.

    Without `num_classes` the model returns features, or tanh pre-logits. With it the model gets one
    new linear layer, as published fine-tunings have, unless the user chooses a head.
    """
    if row.num_classes != 0:
        return spec
    if spec.num_classes == 0:
        log.warning(
            "%s: the classifier of %s was never published, so the model returns features. Pass "
            "num_classes= for a new classifier",
            spec.variant,
            row.name,
        )
    elif "head" not in changes:
        return replace(spec, head=PartSpec("linear"))
    return spec


def _not_stated(
    statement: Statement, changes: Mapping[str, Any], wanted: Spec, notes: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the settings that neither file nor user states, after a file's other `notes`.

    Contradictions between the model and configs of an unknown kind are logged, too.
    """
    overrides = statement.overrides
    notes = (*notes, *(overrides.beside.notes if overrides.beside else ()))
    if "block" in fixed(statement.variant):  # its own builder fixes these settings
        return notes
    if overrides.beside and (text := overrides.beside.unapplied(wanted)):
        log.warning("%s: %s; %s", statement.checkpoint.source, overrides.beside.notes[0], text)
        notes = (*notes, text)
    return (*overrides.assumed(statement.base, changes), *notes)


def _resampling(statement: Statement, trained: Spec) -> str:
    """Return the interpolation of positions for the report.

    It is named if only the checkpoint format states it, or if the authors' code has another.
    """
    found = _not_as_authors(trained, statement.variant, statement.zoo)
    if found or statement.row:
        return found
    method, own = (
        dict(spec.pos_embed.options).get("resample") for spec in (trained, statement.base)
    )
    return "" if method == own else f"pos_embed.resample = {method}"


def _chosen_over(trained: Spec, wanted: Spec) -> tuple[str, ...]:
    """Return the user's settings that differ from the weights' and that no tensor shows."""
    if trained == wanted:
        return ()
    old, new = trained.to_data(), wanted.to_data()
    found = differences(trained, wanted)
    block = found.pop("block", {})
    found.pop("head", None)  # the report lists its tensors
    if trained.patch_embed.options == wanted.patch_embed.options:
        found.pop("patch_embed", None)  # the same tensors under another name: the same numbers
    pairs = {
        name: (old[name], new[name]) for name in (*PARTS_OF_WEIGHTS, "pre_norm") if name in found
    }
    pairs |= {f"block.{k}": (old["block"].get(k), new["block"].get(k)) for k in block}
    return tuple(f"{name} = {new}, not the weights' {old}" for name, (old, new) in pairs.items())


def _not_as_authors(trained: Spec, variant: Variant | None, zoo: Registry) -> str:
    """Return how positions are interpolated if the code of the variant's authors does otherwise."""
    part, maker = trained.pos_embed, variant.maker if variant else CORE
    names = [] if maker == CORE else sorted(zoo.parts_of(FORMAT, maker))
    layouts = [zoo.part(FORMAT, name) for name in names]
    usual = next((layout.resampling(trained) for layout in layouts if layout.authors), "")
    if not usual or part.opaque:
        return ""
    option = inspect.signature(zoo.part("position embedding", part.name)).parameters.get("resample")
    method = dict(part.options).get("resample", option.default if option else usual)
    if method == usual:
        return ""
    advice = {"name": part.name, **dict(part.options), "resample": usual}
    return (
        f"pos_embed.resample = {method}, not {usual} as in the authors' code, which "
        f"pos_embed={advice} gives"
    )


def _check_heads(source: str, heads: int, spec: Spec, note: str = "") -> None:
    if heads != spec.num_heads:
        raise CheckpointError(
            f"{source} has {heads} attention heads, the model {spec.num_heads}, which the shapes "
            "of tensors do not show. Name the right variant, or give a spec with "
            f"num_heads = {heads}{note}"
        )
