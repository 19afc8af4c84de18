"""The network that weights belong to: what they were trained with, brought into a spec."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.detect import format_of
from vitzoo.errors import CheckpointError, UnknownName
from vitzoo.loading import overrides
from vitzoo.loading.request import Origin
from vitzoo.parts.pool import POOLS
from vitzoo.registry.registry import registry
from vitzoo.schema.kinds import KIND_OF_FIELD
from vitzoo.schema.rows import Weights
from vitzoo.schema.spec import PartSpec, Spec

log = logging.getLogger("vitzoo")

HEADLESS = (
    "{name}: the classifier of {weights} was never published; the model gives features. Pass "
    "num_classes= for a fresh classifier"
)


def bring_in_facts(
    origin: Origin, chosen: Weights | Checkpoint | None, asked: Mapping[str, Any]
) -> tuple[Spec, Spec, tuple[str, ...]]:
    """Bring in the facts of the weights.

    Returns:
        the spec of the call before its arguments, with the facts that its author left open; the
        network that the weights belong to; and which facts are only assumed.
    """
    if chosen is None or origin.saved:
        return origin.spec, origin.native, ()
    spec, native = origin.spec, origin.native
    assumed: tuple[str, ...] = ()
    fixed = frozenset() if origin.variant is None else overrides.fixed(origin.variant)
    if isinstance(chosen, Checkpoint) and chosen.spec:
        return *_as_saved(origin, chosen, chosen.spec, asked), ()
    if isinstance(chosen, Weights):
        layout = registry().part("checkpoint format", chosen.format)
        usual, stated = layout.overrides({}, ()), overrides.of_row(chosen)
        if chosen.num_classes is not None:
            native = replace(native, num_classes=chosen.num_classes)
            if not origin.has_other_head:
                spec = replace(spec, num_classes=chosen.num_classes)
    else:
        usual, stated = _facts_of_file(chosen, spec)
        if "block" not in fixed:  # else the builder knows, and nobody can say otherwise
            assumed = overrides.only_assumed(
                native, usual, stated, kept=origin.chosen | _named(asked)
            )
    spec, native = (
        overrides.applied(
            overrides.applied(base, usual, kept=kept | fixed, lenient=True), stated, kept=kept
        )
        for base, kept in ((spec, origin.chosen), (native, frozenset()))
    )
    return spec, native, assumed


def _as_saved(
    origin: Origin, checkpoint: Checkpoint, saved: Spec, asked: Mapping[str, Any]
) -> tuple[Spec, Spec]:
    """Bring in what a file written by `vitzoo.save` says of its network.

    Raises:
        CheckpointError: no tensor shows in what it differs from the model, or a part is not known.
    """
    spec, native, source = origin.spec, origin.native, checkpoint.source
    _check_heads(source, saved.num_heads, spec)
    if saved.options != native.options:
        raise CheckpointError(
            f"{source} was saved with the options {dict(saved.options)}, the model has "
            f"{dict(native.options)}; load it without a name: create({source!r})"
        )
    if saved.image_size != spec.image_size and not _says(origin, asked, "image_size"):
        (h, w), (height, width) = saved.image_size, spec.image_size
        raise CheckpointError(
            f"{source} is of a model for images of {h}x{w} px, this one takes {height}x{width}; "
            f"pass image_size=({h}, {w}), or image_size=({height}, {width}) to resample positions"
        )
    for field in overrides.PARTS:
        if not _says(origin, asked, field):
            _check_part(source, field, getattr(saved, field))
    native = replace(native, image_size=saved.image_size, num_classes=saved.num_classes)
    open_classes = not origin.has_other_head and "num_classes" not in origin.stated
    if origin.variant and open_classes:
        spec = replace(spec, num_classes=saved.num_classes)
    return overrides.taken_over(spec, saved, kept=origin.chosen), overrides.taken_over(
        native, saved
    )


def _says(origin: Origin, asked: Mapping[str, Any], field: str) -> bool:
    """Tell whether the caller says a field, as an argument or in a spec."""
    return asked[field] is not None or field in origin.stated


def _check_part(source: str, field: str, part: PartSpec) -> None:
    """Refuse a part that the metadata of a file names and nobody here knows."""
    known = part.name in POOLS
    if field != "pool" and not part.opaque:
        try:
            registry().part(KIND_OF_FIELD[field], part.name)
            known = True
        except UnknownName:
            known = False
    if not known and not part.opaque:
        raise CheckpointError(
            f"{source} was saved with {field} {part.name!r}, which is not registered here; install "
            f"the plugin it comes from, or pass {field}="
        )


def _check_heads(source: str, heads: int, spec: Spec) -> None:
    if heads != spec.num_heads:
        raise CheckpointError(
            f"{source} has {heads} attention heads, the model {spec.num_heads}; "
            "no other tensor would show it. Name the right variant, or give a spec with "
            f"num_heads = {heads}"
        )


def _facts_of_file(checkpoint: Checkpoint, spec: Spec) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts that are usual for the layout of a file, and those its config states."""
    layout = format_of(checkpoint)
    heads = layout.num_heads(checkpoint.config, checkpoint.skeleton())
    if heads is not None:
        _check_heads(checkpoint.source, heads, spec)
    keys = checkpoint.header.tensors.keys()
    stated = layout.overrides(checkpoint.config, keys) if checkpoint.config else {}
    return layout.overrides({}, keys), stated


def assumed_resampling(origin: Origin, base: Spec, spec: Spec) -> tuple[str, ...]:
    """Name the way the positions of a file move to another grid, if only its layout says it."""
    method = dict(spec.pos_embed.options).get("resample")
    own = dict(origin.spec.pos_embed.options).get("resample")
    layouts = spec.pos_embed == base.pos_embed and method != own
    return (f"pos_embed.resample = {method}",) if layouts else ()


def _named(asked: Mapping[str, Any]) -> frozenset[str]:
    """Return the block options among the arguments of the call."""
    block = asked["block"]
    return frozenset(f"block.{key}" for key in block) if isinstance(block, Mapping) else frozenset()


def without_published_classifier(spec: Spec, row: Weights, asked: Mapping[str, Any]) -> Spec:
    """Decide the head for weights whose classifier was never published.

    Without `num_classes` the features come out (after a tanh layer, the tanh pre-logits). With it,
    one fresh linear layer stands on the trunk, as in every published fine-tuning, unless a head
    is asked for.
    """
    if row.num_classes != 0:
        return spec
    if spec.num_classes == 0:
        log.warning("%s", HEADLESS.format(name=spec.variant, weights=row.name))
    elif asked["head"] is None:
        return replace(spec, head=PartSpec("linear"))
    return spec


def chosen_over(native: Spec, spec: Spec) -> tuple[str, ...]:
    """Name what was asked for and no tensor shows: the weights were trained otherwise."""
    differing = overrides.differing(native, spec)
    differing.pop("head", None)  # what became of its tensors is in the report
    if native.patch_embed.options == spec.patch_embed.options:
        differing.pop("patch_embed", None)  # another name with the same tensors: the same numbers
    return tuple(f"{k} = {new}, not the weights' {old}" for k, (old, new) in differing.items())
