"""The sources of weights: registered weights, a file or address, a saved model, a classifier."""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitzoo.checkpoint.checkpoint import Checkpoint, open_registered
from vitzoo.checkpoint.detect import format_of, identified, no_prefix, of_own_builder
from vitzoo.checkpoint.saved import Trunk, fix
from vitzoo.errors import (
    CheckpointError,
    HashMismatch,
    UnknownName,
    WeightsUnavailable,
    short_repr,
)
from vitzoo.files.names import on_hub
from vitzoo.foreign.changes import changed
from vitzoo.foreign.opened import at_hub, open_address, open_unregistered
from vitzoo.foreign.overrides import Overrides, fixed, of_entry, of_file, stated_by
from vitzoo.formats.timm import HEADS
from vitzoo.formats.transformers import with_class
from vitzoo.loading.request import Request, differences
from vitzoo.log import log
from vitzoo.plugin.guard import note_of
from vitzoo.plugin.info import CORE
from vitzoo.registry.choice import choose
from vitzoo.schema.addresses import parts_of_name
from vitzoo.schema.kinds import KIND_OF_FIELD, PARTS_OF_WEIGHTS
from vitzoo.schema.rows import Variant, Weights, built_of_parts
from vitzoo.schema.spec import PartSpec, Spec

if TYPE_CHECKING:
    from vitzoo.foreign.sidecars import Sidecars
    from vitzoo.foreign.stated import Stated
    from vitzoo.registry.registry import Registry
    from vitzoo.store.hub_file import HubFile

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


class WeightsSource(ABC):
    """A weights file that `create` loads."""

    remote = False  # whether `trained` downloads the file
    keeps_dtype = False  # whether tensors keep their stored types without `dtype=`

    @abstractmethod
    def trained(self, changes: Mapping[str, Any]) -> Spec:
        """Return the network of the weights; `changes` are those of the user's spec and call."""

    def assumed(self, changes: Mapping[str, Any], wanted: Spec) -> tuple[str, ...]:
        """Return the settings that neither file, registry nor user states; log contradictions.

        `wanted` is the network of the model.
        """
        return ()

    def resampling(self, trained: Spec, wanted: Spec, changes: Mapping[str, Any]) -> str:
        """Return the interpolation of positions for the report.

        It is named if only the checkpoint format states it, or if the authors' code has another.
        """
        chosen = "pos_embed" in changes or trained.image_size == wanted.image_size
        return "" if chosen else self._resampling(trained)

    def _resampling(self, trained: Spec) -> str:
        return ""

    @abstractmethod
    def opened(self) -> Checkpoint:
        """Return the open file; fetch and verify it first if necessary."""

    @abstractmethod
    def behind(self, prefix: str) -> WeightsSource:
        """Return the source of the network whose keys in the file have a prefix.

        Raises:
            InvalidOption: the file has one network, whose keys have no prefix.
        """


@dataclass(frozen=True)
class RegisteredWeights(WeightsSource):
    """Weights of an entry in the registry."""

    request: Request
    variant: Variant
    row: Weights
    zoo: Registry
    prefix: str | None = None

    def behind(self, prefix: str) -> WeightsSource:
        return replace(self, prefix=prefix)

    def trained(self, changes: Mapping[str, Any]) -> Spec:
        found = of_entry(self.row, self.zoo)
        stated = {*changes.get("block", {}), *self.request.stated_block}
        found.check(f"{self.variant.name}:{self.row.name}", stated)
        return found.apply(self.request.base, self.zoo, self.variant)

    def _resampling(self, trained: Spec) -> str:
        return _not_as_authors(trained, self.variant, self.zoo)

    def opened(self) -> Checkpoint:
        checkpoint = open_registered(self.variant, self.row, self.zoo)
        return checkpoint if self.prefix is None else identified(checkpoint, self.zoo, self.prefix)


@dataclass(frozen=True)
class SavedModel(WeightsSource):
    """A file of `save` as the first argument of `create`: it has both network and weights."""

    spec: Spec
    checkpoint: Checkpoint
    keeps_dtype = True

    def behind(self, prefix: str) -> WeightsSource:
        raise no_prefix(prefix, self.checkpoint.source)

    def trained(self, changes: Mapping[str, Any]) -> Spec:
        return self.spec

    def opened(self) -> Checkpoint:
        return self.checkpoint


@dataclass(frozen=True)
class SavedClassifier(WeightsSource):
    """A file of `probe` as the first argument of `create`: a classifier, and which trunk it needs.

    `given` is the path or address of the trunk's weights file. None: registered weights, or a file
    in the folder of the classifier.
    """

    spec: Spec
    checkpoint: Checkpoint
    trunk: Trunk
    given: str | os.PathLike[str] | None
    zoo: Registry
    prefix: str | None = None

    def behind(self, prefix: str) -> WeightsSource:
        return replace(self, prefix=prefix)  # of the trunk

    def trained(self, changes: Mapping[str, Any]) -> Spec:
        return self.spec

    def opened(self) -> Checkpoint:
        from vitzoo.loading.trunk import with_head

        return with_head(self._opened_trunk(), self.checkpoint, self.trunk, self.zoo)

    def _opened_trunk(self) -> Checkpoint:
        where, trunk = self.checkpoint.source, self.trunk
        needs = f"{where} needs the weights of {trunk} with sha256 {trunk.sha256}"
        file = f"the path of {trunk.file}" if trunk.file else "a file with this sha256"
        other = f"pass {file}: --weights FILE (weights=)"
        if self.given is not None:
            if not on_hub(self.given) and not os.path.lexists(self.given):
                raise CheckpointError(
                    f"{needs}; weights={short_repr(os.fspath(self.given))} is no file; {other}"
                )
            return self._identified(open_unregistered(self.given, self.zoo, self.prefix))
        if not trunk.weights:
            path = Path(where).with_name(trunk.file or "?")
            if not path.is_file():
                raise CheckpointError(f"{needs}, which are not in the same folder; {other}")
            return self._identified(open_unregistered(path, self.zoo))
        if on_hub(trunk.weights):  # what a file states alone is not fetched
            raise CheckpointError(
                f"{needs}; pass the address: --weights {trunk.weights} (weights=)"
            )
        name, weights = parts_of_name(trunk.weights)
        try:
            variant = self.zoo.variant(name)
            row = choose(variant, weights, self.zoo)
        except (UnknownName, WeightsUnavailable) as error:
            reason = str(error).partition("\n")[0]
            raise CheckpointError(f"{needs}: {reason}; {other}") from error
        if row.sha256 not in ("", trunk.sha256):
            raise HashMismatch(f"{needs}; the registry has sha256 {row.sha256}; {other}")
        return self._identified(open_registered(variant, row, self.zoo))

    def _identified(self, checkpoint: Checkpoint) -> Checkpoint:
        return identified(checkpoint, self.zoo, self.prefix)


@dataclass(frozen=True)
class WeightsFile(WeightsSource):
    """A file without registry entry: a path, or an address `hf://owner/repo@revision/file`."""

    request: Request
    address: str | os.PathLike[str]
    zoo: Registry
    remote: bool = False
    prefix: str | None = None

    def behind(self, prefix: str) -> WeightsSource:
        return replace(self, prefix=prefix)

    def opened(self) -> Checkpoint:
        return self._checkpoint

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        if self.remote:
            checkpoint = open_address(self._hub, self.zoo, self.prefix)
        else:
            checkpoint = self.request.opened or open_unregistered(self.address, self.zoo)
        variant = self.request.variant
        if checkpoint.format is None and variant and not built_of_parts(variant):
            return of_own_builder(checkpoint, self.prefix)  # formats know only vitzoo's networks
        return identified(checkpoint, self.zoo, self.prefix)

    @cached_property
    def _hub(self) -> tuple[Sidecars, HubFile]:
        return self.request.on_hub or at_hub(str(self.address))

    @cached_property
    def _overrides(self) -> Overrides:
        return of_file(self._checkpoint, self.zoo, self.request.variant)

    @cached_property
    def _heads(self) -> frozenset[str]:
        """The names of the tensors of a head in the file."""
        tensors = self._checkpoint.shapes(format_of(self._checkpoint, self.zoo))
        return frozenset(name for name in tensors if name.startswith(HEADS))

    @cached_property
    def _without_pre_logits(self) -> bool:
        """Whether the network has pre-logits, and the file has no tensor of a head."""
        return self.request.base.head.name in PRE_LOGITS and not self._heads

    @cached_property
    def _on_pooler(self) -> bool:
        """Whether the network has a linear head, and the file a classifier beside a pooler."""
        layout, linear = format_of(self._checkpoint, self.zoo), self.request.base.head.name
        if linear != "linear" or not layout.pooled:
            return False
        names = self._checkpoint.header.tensors
        pooler = any(PRE_LOGITS_WEIGHT in (name, *layout.targets(name)) for name in names)
        return pooler and self._heads >= ON_POOLER

    def trained(self, changes: Mapping[str, Any]) -> Spec:
        base = self.request.base
        if self.remote:  # before the weights come
            from vitzoo.checkpoint.others import check_vit

            config = self._hub[0].config
            check_vit(str(self.address), config)
            if stated := stated_by(config, self.zoo):
                self._check(stated, base, str(self.address), changes)
        checkpoint = self._checkpoint
        if checkpoint.spec:
            return self._as_saved(checkpoint.spec, changes)
        layout, block = format_of(checkpoint, self.zoo), changes.get("block", {})
        if self.request.address:
            base = self._shown(base)
        self._overrides.check(checkpoint.source, {*block, *self.request.stated_block})
        if asked := {key: block[key] for key in layout.asks if key in block}:
            base = changed(base, {"block": asked})  # they are the weights' own
        heads = layout.num_heads(checkpoint.config, checkpoint.skeleton())
        if heads is not None:
            _check_heads(checkpoint.source, heads, base, note_of(layout))
        if stated := self._overrides.beside:
            base = self._check(stated, base, checkpoint.source, changes)
        if self._without_pre_logits or self._on_pooler:
            base = replace(base, head=PartSpec("tanh" if self._on_pooler else "linear"))
        return self._overrides.apply(base, self.zoo, self.request.variant)

    def _shown(self, base: Spec) -> Spec:
        """Return the network of a folder; its tensors show a head that its config does not name."""
        found, layout = self._checkpoint, format_of(self._checkpoint, self.zoo)
        shapes = {layout.keymap.plain(k): t.shape for k, t in found.header.tensors.items()}
        config = with_class(found.config, shapes)
        stated = stated_by(config, self.zoo, layout) if config is not found.config else None
        return stated.spec if stated else base

    def _check(self, stated: Stated, base: Spec, source: str, changes: Mapping[str, Any]) -> Spec:
        return stated.check(base, source, changes)

    def assumed(self, changes: Mapping[str, Any], wanted: Spec) -> tuple[str, ...]:
        # A variant's own builder fixes these settings; nothing is assumed.
        if self._checkpoint.spec:
            return ()
        beside = self._overrides.beside
        notes = beside.notes if beside else ()
        if self._without_pre_logits and "head" not in changes:
            head = self.request.base.head.name
            notes = (f"the file has no pre-logits (pooler): head = linear, not {head}", *notes)
        if self._on_pooler and "head" not in changes:
            notes = (POOLER, *notes)
        if "block" in fixed(self.request.variant):
            return notes
        if beside and (text := beside.unapplied(wanted)):
            log.warning("%s: %s; %s", self._checkpoint.source, beside.notes[0], text)
            notes = (*notes, text)
        return (*self._overrides.assumed(self.request.base, changes), *notes)

    def _resampling(self, trained: Spec) -> str:
        if self._checkpoint.spec:
            return ""
        method, own = (
            dict(spec.pos_embed.options).get("resample") for spec in (trained, self.request.base)
        )
        found = _not_as_authors(trained, self.request.variant, self.zoo)
        return found or ("" if method == own else f"pos_embed.resample = {method}")

    def _as_saved(self, saved: Spec, changes: Mapping[str, Any]) -> Spec:
        """Return the network that a file of `save` states, if it fits the request."""
        base, source = self.request.base, self._checkpoint.source
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
                self.zoo.part(KIND_OF_FIELD[name], part.name)
            except UnknownName as error:
                raise CheckpointError(
                    f"{source} was saved with {name} {part.name!r}, which is not registered here; "
                    f"pass {name}=, or get its plugin: {fix(self._checkpoint, part.name)}"
                ) from error
        fields = ("image_size", "num_classes", "block", "pre_norm", *PARTS_OF_WEIGHTS)
        return replace(base, **{name: getattr(saved, name) for name in fields})


def without_published_classifier(
    spec: Spec, source: WeightsSource, changes: Mapping[str, Any]
) -> Spec:
    """Return the spec with the head for weights whose classifier was never published.

    Without `num_classes` the model returns features, or tanh pre-logits. With it the model gets one
    new linear layer, as published fine-tunings have, unless the user chooses a head.
    """
    if not isinstance(source, RegisteredWeights) or source.row.num_classes != 0:
        return spec
    if spec.num_classes == 0:
        log.warning(
            "%s: the classifier of %s was never published, so the model returns features. Pass "
            "num_classes= for a new classifier",
            spec.variant,
            source.row.name,
        )
    elif "head" not in changes:
        return replace(spec, head=PartSpec("linear"))
    return spec


def chosen_over(trained: Spec, wanted: Spec) -> tuple[str, ...]:
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
