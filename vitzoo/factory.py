"""Name to ready model: name -> spec -> module -> verified file -> tensors -> report."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import nn

from vitzoo.build import build
from vitzoo.checkpoint.checkpoint import Checkpoint
from vitzoo.checkpoint.saved import check_plugins
from vitzoo.errors import InvalidOption
from vitzoo.keywords import check_keywords
from vitzoo.loading.adapt import Adaptation
from vitzoo.loading.load import load
from vitzoo.loading.request import Request, changed
from vitzoo.loading.source import choose_source, chosen_over, without_published_classifier
from vitzoo.model import VisionTransformer
from vitzoo.registry.label_sets import known_labels
from vitzoo.registry.registry import Registry, registry
from vitzoo.report import LoadReport
from vitzoo.resolve import resolve
from vitzoo.schema.manifest import CORE_BUILDER
from vitzoo.schema.reader import describe
from vitzoo.schema.rows import Preprocessing
from vitzoo.schema.spec import BlockSpec, Spec

log = logging.getLogger("vitzoo")

OF_TIMM = {  # timm's names of options
    "init_values": "layer_scale",
    "reg_tokens": "num_registers",
    "act_layer": "activation",
    "attn_drop_rate": "attention_dropout",
}
HEAD = {"num_classes", "head"}
PARTS = ("patch_embed", "pos_embed", "pool", "head", "drop_path")
Part = str | Mapping[str, Any] | nn.Module


def _hint(name: str) -> str:
    """Return where an argument that `create` does not have belongs, empty where it is unknown."""
    name = OF_TIMM.get(name, name)
    if name in {field.name for field in fields(BlockSpec)}:
        return f"it is an option of the blocks: block={{{name!r}: ...}}"
    if name in {field.name for field in fields(Spec)} - {"variant", "options"}:
        return f"it stands in a spec: create({{'variant': ..., {name!r}: ...}})"
    return ""


@check_keywords(_hint)
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
) -> VisionTransformer:
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
        The model in training mode, with `spec` and `load_report`. A variant with a builder of its
        own (`timm/*`) gives another module than a `VisionTransformer`, with these two attributes.

    Raises:
        UnknownName, UnknownOption: with the nearest names.
        InvalidOption: values that do not go together.
        WeightsUnavailable, CheckpointError, IntegrityError: weights that cannot be had, do not
            fit, or are not the ones the registry names.

    >>> model = create("vit_digits", pretrained=True)
    >>> model(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    _check_place(dtype, device)
    arguments = {
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
    zoo = registry()
    request = resolve(name, zoo)
    call, ready = _call_changes(arguments)
    wanted = changed(request.spec, call)
    source = choose_source(request, weights, pretrained, zoo)
    if source is None or source.remote:  # a wrong argument is refused before any download
        with torch.device("meta" if source else device or torch.get_default_device()):
            model = _network(wanted, ready, request, zoo)
    if source is None:
        report = LoadReport("random initialisation", reinitialised=tuple(model.state_dict()))
        model.to(device=device, dtype=dtype)
        return _finish(model, wanted, report, request.preprocessing_of(wanted))

    changes = _merged(request.changes, call)
    trained = source.trained(changes)
    wanted = changed(trained, request.changes, call)
    wanted = without_published_classifier(wanted, source, changes)
    with torch.device("meta"):
        model = _network(wanted, ready, request, zoo)
    checkpoint = source.opened()  # an entry's file is fetched here, when all arguments are checked
    preprocessing, note = _preprocessing(checkpoint, request, wanted)
    adaptation = Adaptation.between(
        trained,
        wanted,
        fresh_head=request.other_head or not call.keys().isdisjoint(HEAD),
        resampling="" if "pos_embed" in changes else source.resampling(trained),
    )
    dtype = dtype or (None if source.keeps_dtype else torch.get_default_dtype())
    assumed = (*source.assumed(changes), *chosen_over(trained, wanted), *note)
    report = load(model, checkpoint, adaptation, zoo, dtype=dtype, assumed=assumed)
    _move(model, device)
    return _finish(model, wanted, report, preprocessing, checkpoint)


def _call_changes(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments that were given as changes to a spec, and the ready parts in them."""
    given = {key: value for key, value in arguments.items() if value is not None}
    ready = {key: given[key] for key in PARTS if key in given and _is_ready(given[key])}
    opaque = {key: {"name": type(part).__qualname__, "opaque": True} for key, part in ready.items()}
    return given | opaque, ready


def _merged(changes: Mapping[str, Any], call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of the spec and of the call, the block's options one by one."""
    block = {**changes.get("block", {}), **call.get("block", {})}
    return {**changes, **call} | ({"block": block} if block else {})


def _is_ready(part: object) -> bool:
    return isinstance(part, nn.Module) or callable(part)


def _network(spec: Spec, ready: Mapping[str, Any], request: Request, zoo: Registry) -> nn.Module:
    """Build the network, by the variant's own builder where it has one."""
    variant = request.variant
    check_plugins(request.saved, spec, zoo)
    if variant is None or variant.builder == CORE_BUILDER:
        return build(spec, ready, part=zoo.part)
    for field in fields(Spec):
        changed = getattr(spec, field.name) != getattr(variant.spec, field.name)
        if changed and field.name not in variant.accepts:
            raise InvalidOption(
                f"{variant.name} comes from a builder of its own, which cannot change "
                f"{field.name}; it accepts: {', '.join(variant.accepts) or 'nothing'}"
            )
    model: nn.Module = zoo.host.import_target(variant.namespace, variant)(spec)
    return model


def _preprocessing(
    checkpoint: Checkpoint, request: Request, spec: Spec
) -> tuple[Preprocessing | None, tuple[str, ...]]:
    """Return the preprocessing of weights, the variant's where they state none, which is noted."""
    if checkpoint.preprocessing is not None:
        return checkpoint.preprocessing, ()
    found = request.preprocessing_of(spec)
    if found is None:
        return None, ()
    statistics = f"mean {list(found.mean)}, std {list(found.std)}"
    values = f"{statistics}, {found.interpolation}, crop_pct {found.crop_pct}, {found.crop_mode}"
    return found, (f"preprocessing = that of {spec.variant}: {values}",)


def _move(model: nn.Module, device: torch.device | str | None) -> None:
    place = torch.device(device or torch.get_default_device())
    if place.type != "cpu":  # where the tensors are; walking all modules takes a third of the time
        model.to(place)


def _finish(
    model: nn.Module,
    spec: Spec,
    report: LoadReport,
    preprocessing: Preprocessing | None,
    checkpoint: Checkpoint | None = None,
) -> VisionTransformer:
    """Attach spec, report, labels and preprocessing to a model, and log what it is."""
    noted: Any = model  # of another class where a variant has a builder of its own
    if isinstance(model, VisionTransformer) and model.spec is not None:
        spec = model.spec  # a ready head has its own number of classes
    labels: tuple[str, ...] = ()
    if checkpoint and not report.reinitialised:
        label_set = checkpoint.row.label_set if checkpoint.row else ""
        labels = known_labels(label_set, checkpoint.labels)
    noted.spec = spec
    noted.load_report = report
    noted.labels = labels if len(labels) == spec.num_classes else ()
    noted.preprocessing = preprocessing
    log.info("created %s from %s", spec.variant or "a custom spec", report)
    return noted


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
