"""Name to ready model: name -> spec -> module -> verified file -> tensors -> report."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitzoo.build import build
from vitzoo.checkpoint.checkpoint import Checkpoint, open_file, open_row, open_weights
from vitzoo.checkpoint.detect import format_name
from vitzoo.checkpoint.saved import described
from vitzoo.errors import (
    CheckpointError,
    InvalidOption,
    UnknownOption,
    WeightsUnavailable,
    did_you_mean,
)
from vitzoo.files.names import valid_repo
from vitzoo.images.lookup import preprocessing_of
from vitzoo.loading.adapt import Adaptation
from vitzoo.loading.load import load
from vitzoo.loading.request import Origin
from vitzoo.loading.trained_spec import (
    assumed_resampling,
    bring_in_facts,
    chosen_over,
    without_published_classifier,
)
from vitzoo.model import VisionTransformer
from vitzoo.registry.label_sets import known_labels
from vitzoo.registry.registry import registry
from vitzoo.report import LoadReport
from vitzoo.resolve import origin_of
from vitzoo.saving import _written
from vitzoo.schema.manifest import CORE_BUILDER
from vitzoo.schema.reader import NAME, Reader, describe
from vitzoo.schema.rows import Preprocessing, Variant, Weights, choose, from_address
from vitzoo.schema.spec import BlockSpec, Spec
from vitzoo.store.progress import progress

log = logging.getLogger("vitzoo")

FILES = (".safetensors", ".npz", ".json", ".pt", ".pth", ".bin", ".ckpt")
THEIRS = {  # names of timm's that mean one of ours
    "init_values": "layer_scale",
    "reg_tokens": "num_registers",
    "act_layer": "activation",
    "attn_drop_rate": "attention_dropout",
}
OWN_KEYS = "timm"  # the format that leaves keys as they are
PARTS = ("patch_embed", "pos_embed", "pool", "head", "drop_path")
Part = str | Mapping[str, Any] | nn.Module


def create(
    name: str | os.PathLike[str] | Mapping[str, Any] | Spec,
    *,
    pretrained: bool = False,
    weights: str | os.PathLike[str] | None = None,
    num_classes: int | None = None,
    in_chans: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_embed: Part | None = None,
    pos_embed: Part | None = None,
    block: Mapping[str, Any] | None = None,
    pool: Part | None = None,
    head: Part | None = None,
    drop_path: Part | float | None = None,
    dropout: float | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **unknown: Any,
) -> nn.Module:
    """Create a Vision Transformer.

    Arguments left at None keep what the name says.

    Args:
        name: a registered name, a spec (a mapping, or the path of a TOML or JSON file), or the
            path of a file written by `vitzoo.save`.
        pretrained: load the variant's default weights.
        weights: load these: a weights name of the variant, or the path of a safetensors file, of
            an npz file, of the index of several safetensors files, or of a folder with one of them.
        num_classes: outputs of the head; 0 leaves the classifier out.
        in_chans: channels of the images.
        image_size: px, one number or (height, width).
        patch_embed, pos_embed, pool, head: a part: a registered name, a mapping with `name` and
            options, or a ready module.
        block: options of the encoder blocks, such as `{"norm_eps": 1e-5}`.
        drop_path: a rate, rising linearly over the blocks, or a policy as a part.
        dropout: rate after positions, attention projection and MLP layers.
        dtype, device: of the parameters; device "meta" allocates nothing.

    Returns:
        The model in training mode, with `spec` and `load_report`.

    Raises:
        UnknownName, UnknownOption: with the nearest names.
        InvalidOption: values that do not go together.
        WeightsUnavailable, CheckpointError, IntegrityError: weights that cannot be had, do not
            fit, or are not the ones the registry names.

    >>> model = create("vit_digits", pretrained=True)
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    if unknown:
        raise UnknownOption(_unknown_argument(next(iter(unknown))))
    if not isinstance(pretrained, bool):
        raise InvalidOption(f"pretrained must be True or False, got {describe(pretrained)}")
    _check_place(dtype, device)
    asked = {
        "num_classes": num_classes,
        "in_chans": in_chans,
        "image_size": image_size,
        "patch_embed": patch_embed,
        "pos_embed": pos_embed,
        "block": block,
        "pool": pool,
        "head": head,
        "drop_path": drop_path,
        "dropout": dropout,
    }
    origin = origin_of(name)
    chosen = _choose(origin, weights, pretrained)
    base, native, assumed = bring_in_facts(origin, chosen, asked)
    spec, ready = _resolve(base, {k: v for k, v in asked.items() if v is not None})
    if isinstance(chosen, Weights):
        spec = without_published_classifier(spec, chosen, asked)
    with torch.device("meta" if chosen else device or torch.get_default_device()):
        model = _build(spec, ready, origin.variant)
    checkpoint = _open(origin, chosen)  # only now, when all arguments have proved right
    if checkpoint is None:
        report = LoadReport("random initialisation", reinitialised=tuple(model.state_dict()))
        model.to(device=device, dtype=dtype)
    else:
        adaptation = Adaptation(
            native_size=native.image_size,
            fresh_head=(num_classes, head) != (None, None) or origin.has_other_head,
            fresh_pre_logits=spec.head != native.head
            and "mlp" in (spec.head.name, native.head.name),
            in_chans=spec.in_chans != origin.native.in_chans,
        )
        assumed += chosen_over(native, spec)
        kept_dtype = None if origin.saved else torch.get_default_dtype()
        report = load(model, checkpoint, adaptation, dtype=dtype or kept_dtype, assumed=assumed)
        if report.resampled and not isinstance(chosen, Weights) and not checkpoint.spec:
            method = assumed_resampling(origin, base, spec)
            report = replace(report, assumed=report.assumed + method)
        report = replace(
            report,
            format=format_name(checkpoint),
            license=checkpoint.row.licence_note if checkpoint.row else "",
            assumed=report.assumed + checkpoint.notes,
        )
        place = torch.device(device or torch.get_default_device())
        if place.type != "cpu":  # where they are; walking all modules takes a third of the time
            model.to(place)
    known = checkpoint.preprocessing if checkpoint else None
    if known is None and (known := preprocessing_of(origin.variant, spec)) and checkpoint:
        report = replace(report, assumed=(*report.assumed, _written(origin.variant, known)))
    return _annotate(model, spec, report, checkpoint, known)


def _resolve(base: Spec, asked: dict[str, Any]) -> tuple[Spec, dict[str, Any]]:
    """Return `base` with the arguments of the call, and the parts given as ready objects."""
    ready = {key: asked[key] for key in PARTS if key in asked and _is_ready(asked[key])}
    named = {key: {"name": type(part).__qualname__, "opaque": True} for key, part in ready.items()}
    reader = Reader(asked | named, "create()", InvalidOption)
    return Spec.read(reader, base), ready


def _is_ready(part: object) -> bool:
    return isinstance(part, nn.Module) or callable(part)


def _choose(
    origin: Origin, weights: str | os.PathLike[str] | None, pretrained: bool
) -> Weights | Checkpoint | None:
    """Return the registered weights to load, an open file that no row describes, or None."""
    if origin.saved:
        if weights is not None:
            raise InvalidOption(f"{origin.saved.source} holds its own weights; leave weights= out")
        return origin.saved
    if weights is None and not pretrained:
        return None
    if isinstance(weights, str) and weights.startswith("hf://"):
        with progress(weights) as note:
            opened = open_row(from_address(weights), weights, note=note)
        return described(replace(opened, preprocessing=None))  # an address states none
    if weights == "":
        raise InvalidOption(
            "weights is '' (an unset shell variable?), expected a weights name, a path or "
            "hf://owner/repo@revision/file; leave weights= out, or pass pretrained=True for the "
            "default weights"
        )
    if weights is not None and not isinstance(weights, str | os.PathLike):
        raise InvalidOption(f"weights must be a name or a path, got {describe(weights)}")
    if weights is not None and _is_path(weights, origin.variant):
        opened = described(open_file(Path(weights)))
        if opened.format is None and origin.variant and origin.variant.builder != CORE_BUILDER:
            return replace(opened, format=OWN_KEYS)  # no format knows those of other networks
        return opened
    if origin.variant is None:
        raise WeightsUnavailable(
            "a spec that names no variant has no registered weights; pass a file: "
            "weights='model.safetensors'"
        )
    return choose(origin.variant, weights)  # type: ignore[arg-type]  # a name or None here


def _open(origin: Origin, chosen: Weights | Checkpoint | None) -> Checkpoint | None:
    """Open registered weights, fetching them if need be."""
    if not isinstance(chosen, Weights) or origin.variant is None:
        return chosen if isinstance(chosen, Checkpoint) else None
    with progress(f"{origin.variant.name}:{chosen.name}") as note:
        return open_weights(origin.variant, chosen, note)


def _is_path(weights: str | os.PathLike[str], variant: Variant | None) -> bool:
    """Tell a path from a name of weights, which comes first.

    Raises:
        CheckpointError: it is a repository of the Hub.
    """
    if not isinstance(weights, str):
        return True
    there = os.path.lexists(weights)
    if NAME.fullmatch(weights):
        own = variant is not None and any(row.name == weights for row in variant.weights)
        return there and not own
    if not there and valid_repo(weights) and not weights.endswith(FILES):
        raise CheckpointError(
            f"{weights}: there is no such file; one on the Hub is written with its revision and "
            f"name: weights='hf://{weights}@main/model.safetensors'"
        )
    return True


def _build(spec: Spec, ready: dict[str, Any], variant: Variant | None) -> nn.Module:
    if variant is None or variant.builder == CORE_BUILDER:
        return build(spec, ready, part=registry().part)
    for field in fields(Spec):
        changed = getattr(spec, field.name) != getattr(variant.spec, field.name)
        if changed and field.name not in variant.accepts:
            raise InvalidOption(
                f"{variant.name} comes from a builder of its own, which cannot change "
                f"{field.name}; it accepts: {', '.join(variant.accepts) or 'nothing'}"
            )
    model: nn.Module = registry().host.import_target(variant.namespace, variant)(spec)
    return model


def _annotate(
    model: nn.Module,
    spec: Spec,
    report: LoadReport,
    checkpoint: Checkpoint | None,
    preprocessing: Preprocessing | None,
) -> nn.Module:
    """Attach what is known about the model and log what it is."""
    noted: Any = model
    if isinstance(model, VisionTransformer) and model.spec is not None:
        spec = model.spec  # a ready head has its own number of classes
    head_kept = checkpoint and not report.reinitialised
    noted.spec = spec
    noted.load_report = report
    noted.labels = ()
    if checkpoint and head_kept:
        label_set = checkpoint.row.label_set if checkpoint.row else ""
        noted.labels = known_labels(label_set, checkpoint.labels)
    noted.preprocessing = preprocessing
    if len(noted.labels) != spec.num_classes:
        noted.labels = ()
    log.info("created %s from %s", spec.variant or "a custom spec", report)
    return model


def _check_place(dtype: object, device: Any) -> None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InvalidOption(
            f"dtype must be a floating type such as torch.bfloat16, got {describe(dtype)}"
        )
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidOption(f"device {device!r} cannot be used here: {reason}") from error


def _way_to(name: str) -> str:
    """Say where what somebody gave as an argument belongs, empty where it is nowhere."""
    name = THEIRS.get(name, name)
    if name in {field.name for field in fields(BlockSpec)}:
        return f"it is an option of the blocks: block={{{name!r}: ...}}"
    if name in {field.name for field in fields(Spec)} - {"variant", "options"}:
        return f"it stands in a spec: create({{'variant': ..., {name!r}: ...}})"
    return ""


def _unknown_argument(name: str) -> str:
    known = [p for p in inspect.signature(create).parameters if p not in ("name", "unknown")]
    if way := _way_to(name):
        return f"create() has no argument {name!r}; {way}"
    near = did_you_mean(name, known)
    return f"create() has no argument {name!r}{near or '; it has: ' + ', '.join(known)}"
