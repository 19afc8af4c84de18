"""What is known about a network without its tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from vitzoo.errors import UnknownName
from vitzoo.foreign.overrides import of_entry
from vitzoo.keywords import check_keywords
from vitzoo.network.wrappers import network_of
from vitzoo.opening import Registered, is_model, locate, resolve
from vitzoo.registry.label_sets import SETS, check_label_set, class_names, known_labels
from vitzoo.registry.registry import registry
from vitzoo.schema.preprocessing import Stated
from vitzoo.schema.spec import Spec

if TYPE_CHECKING:
    from vitzoo.images.transform import Transform


@dataclass(frozen=True)
class Known:
    """What is known about a network.

    Args:
        spec: the network.
        preprocessing: of its images, None if it is not known.
        labels: class names in the order of the logits, empty if they are not known.
        dynamic: whether the model takes images of several sizes.
    """

    spec: Spec
    preprocessing: Stated | None = None
    labels: tuple[str, ...] = ()
    dynamic: bool = False


def known(name_or_model: object) -> Known:
    """Return what is known about a network without its tensors.

    For a variant without a name of weights, preprocessing and labels are those of its default
    weights.

    Raises:
        VitzooError: as `resolve`, or vitzoo did not create the model.
    """
    found, zoo = locate(name_or_model), registry()
    if is_model(found):
        from vitzoo.images.transform import check_preprocessing

        model = network_of(found)
        preprocessing = check_preprocessing(getattr(model, "preprocessing", None))
        labels, dynamic = tuple(getattr(model, "labels", ())), getattr(model, "dynamic", False)
        return Known(model.spec, preprocessing, labels, dynamic is True)
    request = resolve(name_or_model, zoo)
    spec, labels, row, variant = request.spec, request.labels, request.row, request.variant
    preprocessing = request.preprocessing_of(spec)
    if row:
        spec, preprocessing = of_entry(row, zoo).apply(spec, zoo, variant), row.preprocessing
    elif variant and not (request.saved or request.address):
        row = variant.default_weights
    if row:
        labels = known_labels(row.label_set, row.labels)
    fit = isinstance(found, Registered) or len(labels) == spec.num_classes
    return Known(spec, preprocessing, labels if fit else ())


@check_keywords()
def transform(
    name_or_model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
    *,
    image_size: int | tuple[int, int] | None = None,
    crop_pct: float | None = None,
    crop_mode: str | None = None,
    interpolation: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    native_size: bool | int | None = None,
    scale: float | None = None,
    bands: Sequence[int] | None = None,
) -> Transform:
    """Return a function that maps an image to a (c, h, w) input.

    The image is a path, a Pillow image, or an array (h, w) or (h, w, bands) of uint8, uint16 or
    floats.

    An argument that is None keeps the value of the weights; `image_size` that of the model.

    Args:
        name_or_model: the network, see docs/create.md#which-network. The default weights of a
            variant state the preprocessing.
        image_size: (height, width) of the input in px, or one number for both.
        crop_pct: share of the resized image's shorter side that the crop keeps, in (0, 1].
        crop_mode: `center` (keep the aspect ratio, crop the middle) or `squash`.
        interpolation: `nearest`, `bilinear`, `bicubic`, `lanczos`, `box` or `hamming`.
        mean, std: one number per channel, for pixel values in [0, 1].
        native_size: resize each image to its own size instead, which keeps the aspect ratio and
            crops nothing, for `forward_packed` or a model with `dynamic`. A number is the largest
            number of patches; True: as many as the model has at its image size.
        scale: the value in the image that becomes 1, such as 4095 for 12 bits, or 10000 for
            reflectance; by default 255 for 8 bits and 65535 for 16 bits.
        bands: index of the band of the image for each channel of the model, from 0. No band is
            alpha then. By default the colours, with transparency over white.

    Raises:
        UnknownName, UnknownOption: a name or an argument does not exist.
        InvalidOption: a value is not possible, vitzoo did not create the model, or a file beside
            the weights states a preprocessing that vitzoo cannot follow.

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
        "native_size": None if native_size is False else native_size,
        "scale": scale,
        "bands": bands,
    }
    changes = {key: value for key, value in asked.items() if value is not None}
    from vitzoo.images.transform import make_transform, warn_of_default  # with Pillow

    found = known(name_or_model)
    if found.preprocessing is None and not {"mean", "std"} <= changes.keys():
        warn_of_default(found.spec)
    return make_transform(found.spec, found.preprocessing, changes, dynamic=found.dynamic)


def labels(
    name_or_model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
) -> tuple[str, ...]:
    """Return the class names in the order of the logits; empty if they are unknown.

    Args:
        name_or_model: the network, see docs/create.md#which-network, or a label set such as
            `imagenet-1k`. The default weights of a variant state the classes.

    Raises:
        UnknownName: the name does not exist.

    >>> labels("vit_digits")[:3], labels("imagenet-1k")[:2]
    (('0', '1', '2'), ('tench', 'goldfish'))
    """
    if isinstance(name_or_model, str) and name_or_model in SETS:
        return class_names(name_or_model)
    try:
        return known(name_or_model).labels
    except UnknownName:
        if isinstance(name_or_model, str) and name_or_model.lower().startswith("imagenet"):
            check_label_set(name_or_model)
        raise
