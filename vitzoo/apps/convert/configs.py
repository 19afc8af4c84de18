"""The configs with which timm, transformers and open_clip build a network: the reverse of reading.

Every config is read again as `create` reads it, and must then describe the same network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from inspect import signature
from itertools import chain, product
from math import floor, isclose
from typing import Any

from vitzoo.checkpoint.description import Description
from vitzoo.errors import CheckpointError, VitzooError
from vitzoo.foreign import timm_config
from vitzoo.foreign.changes import overridden, timm_spec
from vitzoo.foreign.overrides import stated_by
from vitzoo.foreign.preprocessing import of_open_clip
from vitzoo.foreign.processors import FACTOR, RESAMPLE, Unread, read_processor
from vitzoo.formats import Format
from vitzoo.formats.config import Config, ConfigTable, written
from vitzoo.formats.unsupported import DEFAULTS, usual_scale
from vitzoo.registry.foreign_names import known_elsewhere
from vitzoo.registry.registry import Registry, describe
from vitzoo.schema.kinds import KIND_OF_FIELD
from vitzoo.schema.preprocessing import OF_TIMM, Preprocessing
from vitzoo.schema.rows import built_of_parts
from vitzoo.schema.spec import PartSpec, Spec

PLAIN = "vit_base_patch16_224"  # timm's network for a spec without a name in timm
CLASSES = {  # classes of transformers by model type; "": an AutoModel without a pooler
    "vit": ("ViTForImageClassification", "ViTModel", ""),
    "deit": (
        "DeiTForImageClassificationWithTeacher",
        "DeiTForImageClassification",
        "DeiTModel",
        "",
    ),
    "beit": ("BeitForImageClassification", ""),
    "dinov2": ("Dinov2ForImageClassification", "Dinov2Model"),
    "dinov2_with_registers": (
        "Dinov2WithRegistersForImageClassification",
        "Dinov2WithRegistersModel",
    ),
    "dinov3_vit": ("DINOv3ViTModel",),
    "clip_vision_model": ("CLIPVisionModelWithProjection", "CLIPVisionModel"),
    "siglip_vision_model": ("SiglipVisionModel",),
}
POOLS = ({}, *({"global_pool": name} for name in ("token", "avg", "map")))
NORMS = tuple(  # only timm's `VisionTransformer` has this argument
    {**pool, "fc_norm": value} for pool in ({"global_pool": "avg"}, {}) for value in (True, False)
)


def comparable(spec: Spec, zoo: Registry) -> Spec:
    """Return a spec without what does not change the outputs of its trained network.

    These are names, training options, values at their defaults, and how positions are interpolated.
    """
    block = replace(
        spec.block,
        attention_dropout=0.0,
        layer_scale=None if spec.block.layer_scale is None else 1.0,
        qk_scale=None if usual_scale(spec) else spec.block.qk_scale,
    )
    none = (spec.num_classes == 0 and spec.head.name == "linear") or spec.head.name == "none"
    return replace(
        spec,
        patch_embed=_short(spec, "patch_embed", zoo),
        pos_embed=_short(spec, "pos_embed", zoo),
        pool=_short(spec, "pool", zoo),
        variant=None,
        block=block,
        head=PartSpec("none") if none else spec.head,
        num_classes=0 if spec.head.name == "none" else spec.num_classes,
        drop_path=PartSpec("none"),
        dropout=0.0,
    )


def differing(spec: Spec, other: Spec, zoo: Registry) -> list[str]:
    """Return the fields of a spec with another value than in `other`: `block.norm_eps = 1e-12`."""
    one, two = (_flat(comparable(s, zoo)) for s in (spec, other))
    keys = sorted(one.keys() | two.keys())
    return [f"{key} = {one.get(key, 'not set')}" for key in keys if one.get(key) != two.get(key)]


def timm_of(
    layout: Format,
    spec: Spec,
    zoo: Registry,
    *,
    labels: Sequence[str] = (),
    preprocessing: Preprocessing | None = None,
) -> dict[str, Any]:
    """Return timm's `config.json` of a network.

    Raises:
        CheckpointError: timm has no such network; the message names what it lacks.
    """
    lacking: list[str] = []
    pools = POOLS + NORMS if layout.name == "timm" else POOLS
    for name, tag in _architectures(spec):
        base = _base(name, zoo)
        if base is None:
            continue
        config = _timm(name, tag, spec, labels, preprocessing)
        arguments = _values(timm_config.ARGUMENTS, spec, base, zoo)
        ratio = {"mlp_ratio": spec.mlp_dim / spec.embed_dim} if spec.embed_dim else {}
        for pool, more in product(pools, ({}, ratio)):
            given = {**arguments, **more, **pool}
            attempt = config | ({"model_args": given} if given else {})
            found = _read_back(attempt, zoo)
            if found is not None and spec.head.name == "linear":  # as every head of timm is
                found = replace(found, head=spec.head)
            if found is not None and not (lack := differing(spec, found, zoo)):
                return attempt
            lacking = lacking or (lack if found is not None else [])
    raise CheckpointError(", ".join(lacking) or "no network with this name")


def transformers_of(
    layout: Format, spec: Spec, zoo: Registry, *, labels: Sequence[str] = ()
) -> dict[str, Any]:
    """Return transformers' `config.json` of a network in a checkpoint format of transformers.

    Raises:
        CheckpointError: transformers has no such network; the message names what it lacks.
    """
    lacking: list[str] | None = None
    for kind, table in layout.configs.items() if spec.embed_dim else ():
        known = _values(table, spec, None, zoo)
        free = {k: _free(v, spec) for k, v in table.defaults.items() if k not in known}
        free |= {k: (True, False) for k in table.applied if k not in known and k not in free}
        for name in CLASSES.get(kind, ()):
            config = {"model_type": kind, "architectures": [name] if name else [], **known}
            if spec.num_classes:
                config |= _labels(labels, spec.num_classes)
            for values in product(*free.values()):
                attempt = config | dict(zip(free, values, strict=True))
                try:
                    found = overridden(Spec(), layout.spec_in(attempt))
                except VitzooError:
                    continue
                lack = differing(spec, found, zoo)
                if not lack:
                    return attempt
                lacking = lack if lacking is None or len(lack) < len(lacking) else lacking
    raise CheckpointError(", ".join(lacking or ["no class for this network"]))


def open_clip_of(
    layout: Format,
    spec: Spec,
    zoo: Registry,
    shapes: Mapping[str, tuple[int, ...]],
    preprocessing: Preprocessing | None = None,
) -> dict[str, Any]:
    """Return open_clip's config of a whole CLIP; the tensors of the file show the text tower.

    The heads of the text tower have 64 channels, as in every published CLIP.

    Args:
        layout: the checkpoint format of open_clip.
        spec: the network of the image tower.
        zoo: the registry.
        shapes: of the tensors in the file.
        preprocessing: of the images.

    Raises:
        CheckpointError: the file has no text tower, or open_clip has no such image tower.
    """
    if not {"token_embedding.weight", "positional_embedding", "text_projection"} <= shapes.keys():
        raise CheckpointError("a text tower, which a file for open_clip must have")
    vocabulary, width = shapes["token_embedding.weight"]
    blocks = {key.split(".")[2] for key in shapes if key.startswith("transformer.resblocks.")}
    text = {
        "context_length": shapes["positional_embedding"][0],
        "vocab_size": vocabulary,
        "width": width,
        "heads": max(1, width // 64),
        "layers": len(blocks),
    }
    (table,) = layout.configs.values()
    tower = _values(table, spec, None, zoo)
    tower |= {
        "head_width": spec.embed_dim // spec.num_heads,
        "mlp_ratio": spec.mlp_dim / spec.embed_dim,
    }
    if not isclose(spec.block.norm_eps, 1e-5):
        tower["norm_kwargs"] = {"eps": spec.block.norm_eps}
    if spec.block.activation == "gelu_tanh":
        tower["act_kwargs"] = {"approximate": "tanh"}
    quick = {"quick_gelu": True} if spec.block.activation == "quick_gelu" else {}
    model = {"embed_dim": spec.num_classes, "vision_cfg": tower, "text_cfg": text, **quick}
    config: dict[str, Any] = {"model_cfg": model}
    try:
        found = overridden(Spec(), layout.spec_in(config))
    except VitzooError as error:
        raise CheckpointError(str(error)) from error
    if lack := differing(spec, found, zoo):
        raise CheckpointError(", ".join(lack))
    return config | _preprocess(preprocessing, spec.image_size)


def processor_of(preprocessing: Preprocessing, image_size: tuple[int, int]) -> dict[str, Any]:
    """Return the `preprocessor_config.json` of transformers for a preprocessing.

    Raises:
        CheckpointError: an image processor of transformers cannot do the same.
    """
    (h, w), row = image_size, preprocessing.fitted(image_size)
    if lack := {"scale", "bands", "channel_order"} & row.to_data().keys():
        raise CheckpointError(f"an image processor with {', '.join(sorted(lack))}")
    if row.crop_mode not in ("center", "squash"):
        raise CheckpointError(f"an image processor with crop_mode {row.crop_mode}")
    crop, resize = row.crop_pct, row.resize
    center = row.crop_mode == "center"
    height, width = floor(h / crop), floor(w / crop)
    if resize is not None:
        height, width = (resize, resize) if isinstance(resize, int) else resize
    cropped = center or (height, width) != (h, w)
    table: dict[str, Any] = {
        "image_processor_type": "CLIPImageProcessor" if cropped else "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": height} if center else {"height": height, "width": width},
        "resample": RESAMPLE.index(row.interpolation),
        "do_rescale": True,
        "rescale_factor": row.rescale_factor or FACTOR,
        "do_normalize": True,
        "image_mean": list(row.mean),
        "image_std": list(row.std),
    }
    if cropped:
        table |= {"do_center_crop": True, "crop_size": {"height": h, "width": w}}
    try:
        found = read_processor(table, {"num_channels": len(row.mean)})
    except Unread as error:
        raise CheckpointError(str(error)) from error
    if resize is None and ((center and h != w) or floor(h / found.crop_pct) != height):
        raise CheckpointError(f"a crop of {h}x{w} px with crop_pct {crop}")
    return table


def _timm(
    name: str,
    tag: str,
    spec: Spec,
    labels: Sequence[str],
    preprocessing: Preprocessing | None,
) -> dict[str, Any]:
    """Return timm's config of an architecture without the arguments of its network."""
    inner: dict[str, Any] = {"tag": tag} if tag else {}
    inner |= {"num_classes": spec.num_classes, "input_size": [spec.in_chans, *spec.image_size]}
    inner |= {"fixed_input_size": True}
    table = preprocessing.fitted(spec.image_size).to_data() if preprocessing else {}
    same = table.get("crop_mode") in ("center", "squash")
    if same and table.keys() <= {*OF_TIMM, "crop_offset"}:  # up to half a pixel
        inner |= {key: value for key, value in table.items() if key in OF_TIMM}
    config: dict[str, Any] = {"architecture": name, "num_classes": spec.num_classes}
    if labels:
        config["label_names"] = list(labels)
    return config | {"num_features": spec.embed_dim, "pretrained_cfg": inner}


def _architectures(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield timm's names of a network with their tags, and then the name of a plain ViT."""
    name, seen = spec.variant or "", set()
    while name and name not in seen:
        seen.add(name)
        try:
            variant = describe(name)
        except VitzooError:
            break
        for library, known in variant.known_as:
            if library == "timm" and "/" not in known:
                architecture, _, tag = known.partition(".")
                yield architecture, tag
        name = variant.base
    yield PLAIN, ""


def _base(name: str, zoo: Registry) -> Spec | None:
    """Return the network that timm builds by a name."""
    matches = known_elsewhere(name, zoo)
    variant = next((v for _, v, _ in matches if any(k == "timm" for k, _ in v.known_as)), None)
    if variant is None:
        return None
    return timm_spec(variant) if built_of_parts(variant) else variant.spec


def _read_back(config: Config, zoo: Registry) -> Spec | None:
    with suppress(VitzooError):
        stated = stated_by(Description(config=config), zoo)
        return stated.spec if stated and stated.variant else None
    return None


def _values(table: ConfigTable, spec: Spec, base: Spec | None, zoo: Registry) -> dict[str, Any]:
    """Return the keys of a config with the values of a network; those of `base` are left out.

    A key is left out, too, if it would change the network, as a part with more options.
    """
    wanted, usual = comparable(spec, zoo), base and comparable(base, zoo)
    shown, found = _shown(spec), dict[str, Any]()
    for key, read in table.applied.items():
        value = written(read, shown)
        with suppress(VitzooError):
            changes = {} if value is None else table.read({key: value})
            same = changes and comparable(overridden(spec, changes), zoo) == wanted
            if same and (base is None or comparable(overridden(base, changes), zoo) != usual):
                found[key] = value
    return found


def _shown(spec: Spec) -> Spec:
    """Return a spec with what configs state for values that do not change a trained network."""
    scale = spec.block.layer_scale and spec.block.norm_eps
    prefix = {} if spec.class_token or spec.num_registers else {"prefix": not spec.block.qkv_bias}
    return overridden(spec, {"block": {"layer_scale": scale} if scale else {}, "pos_embed": prefix})


def _free(default: Any, spec: Spec) -> tuple[Any, ...]:
    """Return the values to try for a key that is read together with others."""
    if isinstance(default, bool):
        return (default, not default)
    if not isinstance(default, int | float):
        return (default, "silu") if isinstance(default, str) else (default,)  # of a gated MLP
    ratio = spec.mlp_dim / spec.embed_dim
    ratio = int(ratio) if ratio == int(ratio) else ratio
    return tuple(dict.fromkeys((default, ratio, spec.num_classes)))


def _labels(labels: Sequence[str], count: int) -> dict[str, Any]:
    names = list(labels) if len(labels) == count else [f"LABEL_{i}" for i in range(count)]
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def _preprocess(preprocessing: Preprocessing | None, image_size: tuple[int, int]) -> dict[str, Any]:
    """Return open_clip's preprocessing, empty if it cannot do the same."""
    if preprocessing is None:
        return {}
    preprocessing = preprocessing.fitted(image_size).with_values(crop_offset="nearest")
    table = {
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "interpolation": preprocessing.interpolation,
        "resize_mode": "squash" if preprocessing.crop_mode == "squash" else "shortest",
    }
    same = of_open_clip({"preprocess_cfg": table}) == preprocessing
    return {"preprocess_cfg": table} if same else {}


def _short(spec: Spec, name: str, zoo: Registry) -> PartSpec:
    """Return a part without options at their defaults."""
    part: PartSpec = getattr(spec, name)
    usual = _defaults(part, KIND_OF_FIELD[name], zoo)
    if name == "pos_embed" and not (spec.class_token or spec.num_registers):
        usual["prefix"] = dict(part.options).get("prefix")
    if part.name == "attention":
        usual |= {"num_heads": spec.num_heads, "mlp_dim": spec.mlp_dim}
        usual |= {"norm_eps": spec.block.norm_eps, "activation": spec.block.activation}
    kept = {k: v for k, v in part.options if k != "resample" and (k not in usual or usual[k] != v)}
    return replace(part, options=tuple(sorted(kept.items())))


def _defaults(part: PartSpec, kind: str, zoo: Registry) -> dict[str, Any]:
    """Return the options of a part that have a default."""
    if part.opaque:
        return {}
    named = {
        k.partition(".")[2]: v
        for k, v in DEFAULTS.items()
        if KIND_OF_FIELD[k.partition(".")[0]] == kind
    }
    parameters = signature(zoo.part(kind, part.name)).parameters
    return named | {k: p.default for k, p in parameters.items() if p.default is not p.empty}


def _flat(spec: Spec) -> dict[str, Any]:
    own = ((f.name, getattr(spec, f.name)) for f in fields(spec) if f.name != "block")
    nested = ((f"block.{key}", value) for key, value in vars(spec.block).items())
    parts = ((k, v.to_data() if isinstance(v, PartSpec) else v) for k, v in chain(own, nested))
    return dict(parts)
