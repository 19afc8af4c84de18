"""What is known about a network without its tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from vitzoo.checkpoint.description import Description
from vitzoo.display import Names
from vitzoo.errors import InvalidOption, UnknownName, short_repr
from vitzoo.factory import Part, create
from vitzoo.images.transform import check_preprocessing, make_transform, warn_of_default
from vitzoo.keywords import check_keywords, short_errors
from vitzoo.loading.plan import Plan
from vitzoo.loading.statement import Statement
from vitzoo.network.summary import Summary, summarize
from vitzoo.network.wrappers import network_of
from vitzoo.opening import Named, Reference, is_model, locate
from vitzoo.registry.label_sets import check_label_set, class_names, is_label_set, known_labels
from vitzoo.registry.registry import registry
from vitzoo.schema.rows import built_of_parts
from vitzoo.schema.spec import Spec

if TYPE_CHECKING:
    from vitzoo.images.transform import Transform

MOST_IMAGES = 65_536  # in a batch


def known(name_or_model: object) -> Statement:
    """Return what is stated about a network without its tensors.

    For a variant without a name of weights, preprocessing and labels are those of its default
    weights; for a name of weights, the network is the one that `create` gives.

    Raises:
        VitzooError: as `locate`, the network is not stated, or vitzoo did not create the model.
    """
    found, zoo = locate(name_or_model), registry()
    if not isinstance(found, Reference):
        model = network_of(found)
        preprocessing = check_preprocessing(getattr(model, "preprocessing", None))
        about = Description(labels=tuple(getattr(model, "labels", ())), preprocessing=preprocessing)
        return Statement(model.spec, zoo, about=about)
    stated = found.statement(zoo)
    spec, row = stated.spec, stated.row
    preprocessing, labels = stated.preprocessing_of(spec), stated.labels
    if row:
        # A classifier that was never published is of no concern here, and no reason to warn.
        spec, preprocessing = Plan.of(stated, {}, replaced=True).trained, row.preprocessing
    elif stated.variant and not stated.place and (row := stated.variant.default_weights):
        labels = known_labels(row.label_set, row.labels)
    fit = isinstance(found, Named) or len(labels) == spec.num_classes
    about = replace(stated.about, labels=labels if fit else (), preprocessing=preprocessing)
    return replace(stated, spec=spec, row=None, about=about)


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

    spec, stated = (found := known(name_or_model)).spec, found.about.preprocessing
    if stated is None and not {"mean", "std"} <= changes.keys():
        warn_of_default(spec)
    dynamic = is_model(name_or_model) and getattr(network_of(name_or_model), "dynamic", False)
    return make_transform(spec, stated, changes, dynamic=dynamic is True)


@short_errors
def labels(
    name_or_model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
) -> tuple[str, ...]:
    """Return the class names in the order of the logits; empty if they are unknown.

    A network without a classifier, such as `dinov2/vit_b14`, gives features and has no class names.

    Args:
        name_or_model: the network, see docs/create.md#which-network, or a label set, such as
            `imagenet-1k`, or `NAMESPACE/NAME` of a plugin. The default weights of a variant state
            the classes.

    Raises:
        UnknownName: the name does not exist.

    >>> labels("vit_digits")[:3], labels("imagenet-1k")[:2]
    (('0', '1', '2'), ('tench', 'goldfish'))
    """
    if isinstance(name_or_model, str) and is_label_set(name_or_model):
        return class_names(name_or_model)
    try:
        found = known(name_or_model).labels
        return found if isinstance(found, Names) else Names(found)
    except UnknownName:
        if isinstance(name_or_model, str) and name_or_model.lower().startswith("imagenet"):
            check_label_set(name_or_model)
        raise


@check_keywords()
def summary(
    name_or_model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
    *,
    batch_size: int = 1,
    num_classes: int | None = None,
    in_chans: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_embed: Part | None = None,
    pos_embed: Part | None = None,
    block: Mapping[str, Any] | None = None,
    pool: Part | None = None,
    head: Part | None = None,
) -> Summary:
    """Return layers, parameters, operations and memory of a network.

    No weights are loaded, and no memory is allocated for parameters. The model of a name is built
    anew, that of a model object by its spec.

    Args:
        name_or_model: the network, see docs/create.md#which-network.
        batch_size: number of images in the batch.
        num_classes, in_chans, image_size, patch_embed, pos_embed, block, pool, head: changes of the
            network, as in `create`.

    Returns:
        A summary with `layers`, `terms` (parameters by their role), `params`, `flops` and
        `activations`, which a notebook shows as tables.

    Raises:
        UnknownName, UnknownOption: a name, an argument or an option does not exist.
        InvalidOption: a value is not possible.

    >>> summary("vit_b16")
    Summary(86.6M parameters, 17.6 GMACs, activations 7.26 MB)
    """
    if type(batch_size) is not int or not 1 <= batch_size <= MOST_IMAGES:
        got = short_repr(batch_size)
        raise InvalidOption(f"batch_size must be from 1 to {MOST_IMAGES}, got {got}")
    network: Any = create(
        known(name_or_model).spec,
        device="meta",
        num_classes=num_classes,
        in_chans=in_chans,
        image_size=image_size,
        patch_embed=patch_embed,
        pos_embed=pos_embed,
        block=block,
        pool=pool,
        head=head,
    )
    with _calling(network):
        return summarize(network, batch_size)


def _calling(network: Any) -> AbstractContextManager[None]:
    """Convert an error of the network that a plugin's builder has made into a PluginError."""
    zoo, spec = registry(), network.spec
    variant = zoo.variant(spec.variant) if spec.variant else None
    if variant is None or built_of_parts(variant):
        return nullcontext()
    return zoo.host.builder_of(variant).calling(type(network).forward, "the network")
