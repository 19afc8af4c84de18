"""Name to ready model: name -> spec -> module -> verified file -> tensors -> report."""

from __future__ import annotations

import inspect
import json
import logging
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from vitzoo import facts
from vitzoo.build import KINDS, build
from vitzoo.catalogue import Preprocessing, Variant, Weights
from vitzoo.checkpoint import Checkpoint, open_file, open_row, open_weights
from vitzoo.errors import (
    CheckpointError,
    InvalidOption,
    UnknownName,
    UnknownOption,
    WeightsUnavailable,
    did_you_mean,
)
from vitzoo.formats import StatesHeads
from vitzoo.hubnames import valid_repo
from vitzoo.images import Transform, check_preprocessing, make_transform, warn_of_default
from vitzoo.labels import SETS, check_label_set, class_names, known_labels
from vitzoo.locate import choose, from_address
from vitzoo.manifest import API, CORE_BUILDER
from vitzoo.model import VisionTransformer
from vitzoo.parts.pool import POOLS
from vitzoo.plugins import LOCAL
from vitzoo.progress import progress
from vitzoo.registry import registry
from vitzoo.report import LoadReport
from vitzoo.saved import METADATA, described, read_network, read_saved
from vitzoo.schema import NAME, Reader, describe
from vitzoo.shard_index import ENDING
from vitzoo.spec import BlockSpec, PartSpec, Spec
from vitzoo.store import write_atomic
from vitzoo.weights import Adaptation, format_name, format_of, load

log = logging.getLogger("vitzoo")

HEADLESS = (
    "{name}: the classifier of {weights} was never published; the model gives features. Pass "
    "num_classes= for a fresh classifier"
)
SPEC_FILES = {".toml": tomllib.loads, ".json": json.loads}
WEIGHTS_ONLY = (".npz", ENDING)
FILES = (".safetensors", ".npz", ".json", ".pt", ".pth", ".bin", ".ckpt")
THEIRS = {  # names of timm's that mean one of ours
    "init_values": "layer_scale",
    "reg_tokens": "num_registers",
    "act_layer": "activation",
    "attn_drop_rate": "attention_dropout",
}
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
    origin = _origin(name)
    chosen = _choose(origin, weights, pretrained)
    base, native, assumed = _native(origin, chosen, asked)
    spec, ready = _resolve(base, {k: v for k, v in asked.items() if v is not None})
    if isinstance(chosen, Weights):
        spec = _without_published_classifier(spec, chosen, asked)
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
        assumed += _chosen_over(native, spec)
        kept_dtype = None if origin.saved else torch.get_default_dtype()
        report = load(model, checkpoint, adaptation, dtype=dtype or kept_dtype, assumed=assumed)
        if report.resampled and not isinstance(chosen, Weights) and not checkpoint.spec:
            method = _assumed_resampling(origin, base, spec)
            report = replace(report, assumed=report.assumed + method)
        report = replace(
            report, format=format_name(checkpoint), assumed=report.assumed + checkpoint.notes
        )
        place = torch.device(device or torch.get_default_device())
        if place.type != "cpu":  # where they are; walking all modules takes a third of the time
            model.to(place)
    known = checkpoint.preprocessing if checkpoint else None
    if known is None and (known := _preprocessing_of(origin.variant, spec)) and checkpoint:
        report = replace(report, assumed=(*report.assumed, _written(origin.variant, known)))
    return _annotate(model, spec, report, checkpoint, known)


def save(model: nn.Module, path: str | os.PathLike[str]) -> Path:
    """Write a model to a safetensors file that `create(path)` restores.

    The file holds the tensors, the spec, the labels and the preprocessing. It replaces an
    existing file at once or not at all.

    Args:
        model: made by `create`; its parts may have been given as objects, which are then needed
            again to restore it.
        path: ending in `.safetensors`.

    Raises:
        InvalidOption: the model has no spec, its labels do not fit, or the path another ending.
    """
    target = Path(path)
    if target.suffix != ".safetensors":
        raise InvalidOption(f"the path must end in .safetensors, got {str(path)!r}")
    spec = getattr(model, "spec", None)
    if spec is None:
        raise InvalidOption(
            f"{type(model).__name__} has no spec; only models made by vitzoo.create can be saved"
        )
    labels = list(getattr(model, "labels", ()))
    if labels and len(labels) != spec.num_classes:
        raise InvalidOption(
            f"model.labels has {len(labels)} names for {spec.num_classes} classes; set it to one "
            "name per class, or to ()"
        )
    preprocessing = check_preprocessing(getattr(model, "preprocessing", None))
    data = spec.to_data()
    if (spec.variant or "").startswith(f"{LOCAL}/"):
        del data["variant"]  # known on this machine only, and the rest of the spec is complete
    metadata = {
        "api": API,
        "spec": data,
        "labels": labels,
        "preprocessing": preprocessing and asdict(preprocessing),
    }
    tensors = {name: t.detach().contiguous().cpu() for name, t in model.state_dict().items()}
    header = {METADATA: json.dumps(metadata)}  # one key: several are written in any order
    if not target.parent.is_dir():
        raise InvalidOption(f"there is no folder {target.parent}; make it first")
    write_atomic(target, safetensors.torch.save(tensors, header))
    return target


def transform(
    name_or_model: str | os.PathLike[str] | nn.Module,
    *,
    image_size: int | tuple[int, int] | None = None,
    crop_pct: float | None = None,
    crop_mode: str | None = None,
    interpolation: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    **unknown: Any,
) -> Transform:
    """Return the function from an image (Pillow, or its path) to the input (c, h, w).

    Arguments left at None keep what the weights say; `image_size` keeps what the model takes.

    Args:
        name_or_model: a registered name, whose default weights say how, the path of a file
            written by `save`, or a model.
        image_size: px, one number or (height, width), of the input.
        crop_pct: share of the resized image's shorter side that the crop keeps, in (0, 1].
        crop_mode: `center` (keep the aspect ratio, crop the middle) or `squash`.
        interpolation: `nearest`, `bilinear`, `bicubic` or `lanczos`.
        mean, std: one number per channel, of pixel values in [0, 1].

    Raises:
        UnknownName, UnknownOption: with the nearest names.
        InvalidOption: a value that cannot be right, or a model that vitzoo did not make.

    >>> transform("vit_digits", image_size=32, crop_mode="squash").image_size
    (32, 32)
    """
    asked = {
        "image_size": image_size,
        "crop_pct": crop_pct,
        "crop_mode": crop_mode,
        "interpolation": interpolation,
        "mean": mean,
        "std": std,
    }
    for name in unknown:
        hint = did_you_mean(name, asked) or f"; it has: {', '.join(asked)}"
        raise UnknownOption(f"transform() has no argument {name!r}{hint}")
    changes = {key: value for key, value in asked.items() if value is not None}
    spec, preprocessing = _input_of(name_or_model)
    if preprocessing is None and not {"mean", "std"} <= changes.keys():
        warn_of_default(spec)
    return make_transform(spec, preprocessing, changes)


def labels(name_or_model: str | os.PathLike[str] | nn.Module) -> tuple[str, ...]:
    """Return the class names in the order of the logits; empty where none are known.

    Args:
        name_or_model: a registered name, whose default weights say which, the path of a file
            written by `save`, a model, or a label set such as `imagenet-1k`.

    Raises:
        UnknownName: with the nearest names.

    >>> labels("vit_digits")[:3], labels("imagenet-1k")[:2]
    (('0', '1', '2'), ('tench', 'goldfish'))
    """
    if isinstance(name_or_model, nn.Module):
        return tuple(getattr(name_or_model, "labels", ()))
    if (path := _saved_path(name_or_model)) is not None:
        origin = _from_saved(path)
        names = origin.saved.labels if origin.saved else ()
        return names if len(names) == origin.spec.num_classes else ()
    name = _name(name_or_model)
    if name in SETS:
        return class_names(name)
    if name.lower().startswith("imagenet"):
        check_label_set(name)
    weights = registry().variant(name).default_weights
    return known_labels(weights.label_set, weights.labels) if weights else ()


def _input_of(source: object) -> tuple[Spec, Preprocessing | None]:
    """Return the spec, and the preprocessing where it is known, of a name, a file or a model."""
    if isinstance(source, nn.Module):
        spec: Any = getattr(source, "spec", None)
        if not isinstance(spec, Spec):
            raise InvalidOption(
                f"{type(source).__name__} has no spec, so its input is not known; pass a model "
                "made by vitzoo.create"
            )
        return spec, check_preprocessing(getattr(source, "preprocessing", None))
    if (path := _saved_path(source)) is not None:
        origin = _from_saved(path)
        known = origin.saved.preprocessing if origin.saved else None
        return origin.spec, known or _preprocessing_of(origin.variant, origin.spec)
    variant = registry().variant(_name(source))
    return variant.spec, _preprocessing_of(variant, variant.spec)


def _saved_path(source: object) -> Path | None:
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    return path if path is not None and path.suffix == ".safetensors" else None


def _preprocessing_of(variant: Variant | None, spec: Spec) -> Preprocessing | None:
    """Return how the images of a variant's default weights are prepared, if it fits a spec."""
    weights = variant.default_weights if variant else None
    fits = weights is not None and len(weights.preprocessing.mean) == spec.in_chans
    return weights.preprocessing if weights and fits else None


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidOption(f"expected a registered name or a model, got {describe(name)}")
    return name


@dataclass(frozen=True)
class Origin:
    """What the first argument of `create` means.

    Args:
        spec: the network it describes.
        variant: the registered variant behind it, whose builder and weights apply.
        saved: the file written by `save`, if it is one.
        stated: the keys of a mapping or file of the user's, with those of its block.
    """

    spec: Spec
    variant: Variant | None = None
    saved: Checkpoint | None = None
    stated: frozenset[str] = frozenset()

    @property
    def native(self) -> Spec:
        """The network that the weights belong to."""
        return self.variant.spec if self.variant and not self.saved else self.spec

    @property
    def has_other_head(self) -> bool:
        """Whether the spec asks for another head than the weights have."""
        native = self.native
        return (self.spec.num_classes, self.spec.head) != (native.num_classes, native.head)

    @property
    def chosen(self) -> frozenset[str]:
        """What the user's own spec says of the facts of weights: fields, and `block.option`s.

        What it only repeats from its variant is not chosen.
        """
        if self.variant is None:
            return self.stated
        return frozenset(facts.differing(self.native, self.spec))


def _origin(name: object) -> Origin:
    if isinstance(name, Spec):
        return replace(_origin(name.to_data()), stated=frozenset())  # it always says everything
    if isinstance(name, Mapping):
        return _from_mapping(Reader(name, "spec", InvalidOption))
    if not isinstance(name, str | os.PathLike):
        raise InvalidOption(
            f"name must be a registered name, a spec or a path, got {describe(name)}"
        )
    path = Path(name)
    if path.suffix == ".safetensors":
        return _from_saved(path)
    if path.name.endswith(WEIGHTS_ONLY):
        raise CheckpointError(_nameless(path))
    if path.suffix in SPEC_FILES:
        return _from_mapping(Reader(_parse(path), str(path), InvalidOption))
    if isinstance(name, os.PathLike):
        _check_nothing_there(path)
        raise InvalidOption(f"a path must end in .toml, .json or .safetensors, got {str(path)!r}")
    try:
        variant = registry().variant(name)
    except UnknownName:
        _check_nothing_there(path)
        raise
    return Origin(variant.spec, variant)


def _check_nothing_there(path: Path) -> None:
    """Say what a path is that was given as a name, and how its weights are loaded.

    Raises:
        CheckpointError: something is there.
    """
    if path.is_dir():
        raise CheckpointError(
            f"{path} is a folder, which does not say which network its weights belong to; name "
            f"the variant: create('vit_b16', weights='{path}/')"
        )
    if path.is_file():
        open_file(path)  # says what it is, if it is no weights
        raise CheckpointError(_nameless(path))


def _from_mapping(reader: Reader) -> Origin:
    spec, variant = read_network(reader)
    block = [f"block.{key}" for key in reader.table.get("block", {})]
    return Origin(spec, variant, stated=frozenset([*reader.table, *block]) - {"block"})


def _from_saved(path: Path) -> Origin:
    checkpoint = open_file(path)
    saved = read_saved(checkpoint, str(path))
    if saved is None:
        raise CheckpointError(_nameless(path))
    return replace(_from_mapping(saved.reader()), saved=saved.add_to(checkpoint))


def _nameless(path: Path) -> str:
    return (
        f"{path} was not written by vitzoo.save, so it does not say which network it is; "
        f"name the variant: create('vit_b16', weights={str(path)!r})"
    )


def _parse(path: Path) -> Any:
    try:
        return SPEC_FILES[path.suffix](path.read_bytes().decode())
    except OSError as error:
        raise InvalidOption(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"{path} is not valid {path.suffix[1:].upper()}: {error}") from error


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
    if weights is not None and not isinstance(weights, str | os.PathLike):
        raise InvalidOption(f"weights must be a name or a path, got {describe(weights)}")
    if weights is not None and _is_path(weights, origin.variant):
        return described(open_file(Path(weights)))
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


def _native(
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
    if isinstance(chosen, Checkpoint) and chosen.spec:
        return *_as_saved(origin, chosen, chosen.spec, asked), ()
    if isinstance(chosen, Weights):
        layout = registry().part("checkpoint format", chosen.format)
        usual, stated = layout.facts({}, ()), facts.of_row(chosen)
        if chosen.num_classes is not None:
            native = replace(native, num_classes=chosen.num_classes)
            if not origin.has_other_head:
                spec = replace(spec, num_classes=chosen.num_classes)
    else:
        usual, stated = _facts_of_file(chosen, spec)
        assumed = facts.assumed(native, usual, stated, kept=origin.chosen | _named(asked))
    fixed = frozenset() if origin.variant is None else facts.fixed(origin.variant)
    spec, native = (
        facts.applied(
            facts.applied(base, usual, kept=kept | fixed, lenient=True), stated, kept=kept
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
    for field in facts.PARTS:
        if not _says(origin, asked, field):
            _check_part(source, field, getattr(saved, field))
    native = replace(native, image_size=saved.image_size, num_classes=saved.num_classes)
    open_classes = not origin.has_other_head and "num_classes" not in origin.stated
    if origin.variant and open_classes:
        spec = replace(spec, num_classes=saved.num_classes)
    return facts.taken_over(spec, saved, kept=origin.chosen), facts.taken_over(native, saved)


def _says(origin: Origin, asked: Mapping[str, Any], field: str) -> bool:
    """Tell whether the caller says a field, as an argument or in a spec."""
    return asked[field] is not None or field in origin.stated


def _check_part(source: str, field: str, part: PartSpec) -> None:
    """Refuse a part that the metadata of a file names and nobody here knows."""
    known = part.name in POOLS
    if field != "pool" and not part.opaque:
        try:
            registry().part(KINDS[field], part.name)
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
    if isinstance(layout, StatesHeads):
        heads = layout.num_heads(checkpoint.config, checkpoint.skeleton())
        if heads is not None:
            _check_heads(checkpoint.source, heads, spec)
    keys = checkpoint.header.tensors.keys()
    stated = layout.facts(checkpoint.config, keys) if checkpoint.config else {}
    return layout.facts({}, keys), stated


def _assumed_resampling(origin: Origin, base: Spec, spec: Spec) -> tuple[str, ...]:
    """Name the way the positions of a file move to another grid, if only its layout says it."""
    method = dict(spec.pos_embed.options).get("resample")
    own = dict(origin.spec.pos_embed.options).get("resample")
    layouts = spec.pos_embed == base.pos_embed and method != own
    return (f"pos_embed.resample = {method}",) if layouts else ()


def _named(asked: Mapping[str, Any]) -> frozenset[str]:
    """Return the block options among the arguments of the call."""
    block = asked["block"]
    return frozenset(f"block.{key}" for key in block) if isinstance(block, Mapping) else frozenset()


def _without_published_classifier(spec: Spec, row: Weights, asked: Mapping[str, Any]) -> Spec:
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


def _chosen_over(native: Spec, spec: Spec) -> tuple[str, ...]:
    """Name what was asked for and no tensor shows: the weights were trained otherwise."""
    differing = facts.differing(native, spec)
    differing.pop("head", None)  # what became of its tensors is in the report
    if native.patch_embed.options == spec.patch_embed.options:
        differing.pop("patch_embed", None)  # another name with the same tensors: the same numbers
    return tuple(f"{k} = {new}, not the weights' {old}" for k, (old, new) in differing.items())


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
        return build(spec, ready)
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
    head_kept = checkpoint and not any(n.startswith("head.") for n in report.reinitialised)
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


def _written(variant: Variant | None, row: Preprocessing) -> str:
    """Write the preprocessing that is taken from a variant, for a report."""
    statistics = f"mean {list(row.mean)}, std {list(row.std)}"
    return (
        f"preprocessing = that of {variant.name if variant else 'the variant'}: {statistics}, "
        f"{row.interpolation}, crop_pct {row.crop_pct}, {row.crop_mode}"
    )


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
