"""`transform` and `labels`: preprocessing and class names of a variant, a file or a model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from vitzoo.errors import InvalidOption
from vitzoo.files.names import SAFETENSORS
from vitzoo.images.transform import Transform, check_preprocessing, make_transform, warn_of_default
from vitzoo.keywords import check_keywords
from vitzoo.loading.request import Request, from_folder, from_hub, from_saved
from vitzoo.registry.label_sets import SETS, check_label_set, class_names, known_labels
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.reader import describe
from vitzoo.schema.rows import Preprocessing
from vitzoo.schema.spec import Spec


@check_keywords()
def transform(
    name_or_model: str | os.PathLike[str] | nn.Module,
    *,
    image_size: int | tuple[int, int] | None = None,
    crop_pct: float | None = None,
    crop_mode: str | None = None,
    interpolation: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
) -> Transform:
    """Return a function that maps an image (a path or a Pillow image) to a (c, h, w) input.

    An argument that is None keeps the value of the weights; `image_size` that of the model.

    Args:
        name_or_model: a registered name (its default weights state the preprocessing), the path
            of a file written by `save`, a folder ("folder/") or an address "hf://owner/repo" with
            a config, or a model.
        image_size: (height, width) of the input in px, or one number for both.
        crop_pct: share of the resized image's shorter side that the crop keeps, in (0, 1].
        crop_mode: `center` (keep the aspect ratio, crop the middle) or `squash`.
        interpolation: `nearest`, `bilinear`, `bicubic` or `lanczos`.
        mean, std: one number per channel, for pixel values in [0, 1].

    Raises:
        UnknownName, UnknownOption: a name or an argument does not exist.
        InvalidOption: a value is not possible, or vitzoo did not create the model.

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
    changes = {key: value for key, value in asked.items() if value is not None}
    spec, preprocessing = _input_of(name_or_model, registry())
    if preprocessing is None and not {"mean", "std"} <= changes.keys():
        warn_of_default(spec)
    return make_transform(spec, preprocessing, changes)


def labels(name_or_model: str | os.PathLike[str] | nn.Module) -> tuple[str, ...]:
    """Return the class names in the order of the logits; empty if they are unknown.

    Args:
        name_or_model: a registered name (its default weights state the classes), the path of a
            file written by `save`, a folder ("folder/") or an address "hf://owner/repo" with a
            config, a model, or a label set such as `imagenet-1k`.

    Raises:
        UnknownName: the name does not exist.

    >>> labels("vit_digits")[:3], labels("imagenet-1k")[:2]
    (('0', '1', '2'), ('tench', 'goldfish'))
    """
    if isinstance(name_or_model, nn.Module):
        return tuple(getattr(name_or_model, "labels", ()))
    if (request := _stored(name_or_model, registry())) is not None:
        return request.labels if len(request.labels) == request.spec.num_classes else ()
    name = _name(name_or_model)
    if name in SETS:
        return class_names(name)
    if name.lower().startswith("imagenet"):
        check_label_set(name)
    weights = registry().variant(name).default_weights
    return known_labels(weights.label_set, weights.labels) if weights else ()


def _input_of(source: object, zoo: Registry) -> tuple[Spec, Preprocessing | None]:
    """Return the spec, and the preprocessing if known, of a name, a file or a model."""
    if isinstance(source, nn.Module):
        return spec_of(source), check_preprocessing(getattr(source, "preprocessing", None))
    if (request := _stored(source, zoo)) is not None:
        return request.spec, request.preprocessing_of(request.spec)
    variant = zoo.variant(_name(source))
    return variant.spec, variant.preprocessing_of(variant.spec)


def spec_of(model: object) -> Spec:
    """Return the spec of a network; raise InvalidOption unless `create` made it."""
    spec: Any = getattr(model, "spec", None)
    if isinstance(spec, Spec):
        return spec
    raise InvalidOption(
        f"{type(model).__name__} has no spec; pass a model made by vitzoo.create, and of a wrapped "
        "model its module"
    )


def _stored(source: object, zoo: Registry) -> Request | None:
    """Return the request of a saved file, a folder or an address; None for a name."""
    if isinstance(source, str) and source.startswith("hf://"):
        return from_hub(source, zoo)
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    if path is not None and path.suffix == SAFETENSORS:
        return from_saved(path, zoo)
    named = isinstance(source, str) and not source.endswith("/")
    return None if path is None or named or not path.is_dir() else from_folder(path, zoo)


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidOption(f"expected a registered name or a model, got {describe(name)}")
    return name
