"""`predict`: image files to class names and probabilities."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.errors import ImageError, InvalidOption, short_repr
from vitzoo.factory import open_network
from vitzoo.images.find import find_images
from vitzoo.keywords import check_each, check_types
from vitzoo.known import transform
from vitzoo.network.wrappers import network_of
from vitzoo.opening import is_model
from vitzoo.registry.registry import variants
from vitzoo.schema.spec import Spec

MOST = 2**31 - 1  # classes or images that an argument may ask for


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image.

    Args:
        image: path of the file.
        classes: tuples (index, label, probability), the most probable class first.
    """

    image: Path
    classes: tuple[tuple[int, str, float], ...]


def check_classifier(model: nn.Module) -> None:
    """Raise InvalidOption unless a model is a network of vitzoo with a classifier."""
    network = network_of(model)
    classes: int = network.num_classes
    if not classes:
        raise InvalidOption(
            f"the model has no classifier, only features{_with_classifier(network)}"
        )
    if getattr(getattr(network, "head", None), "embedding", False):
        raise InvalidOption(
            f"the model returns an embedding of {classes} numbers, not classes; compare embeddings "
            "with each other, or pass num_classes= for a new classifier and train it"
            f"{_with_classifier(network)}"
        )


def predict(
    model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
    images: Iterable[str | os.PathLike[str]],
    *,
    top: int = 5,
    batch_size: int = 16,
    on_error: Callable[[ImageError], object] | None = None,
) -> Iterator[Prediction]:
    """Classify image files batch by batch; the model is set to evaluation mode.

    Args:
        model: the network, see docs/create.md#which-network. A variant gets its default weights.
        images: paths of files and folders.
        top: number of classes to return for each image.
        batch_size: number of images in a batch.
        on_error: is called with the error of each image that cannot be read, instead of raising
            it; the other images are classified.

    Raises:
        InvalidOption: the model has no classifier (it returns features or an embedding), or a value
            is not possible.
        ImageError: a file is missing or no readable image.
    """
    check_types(
        "predict", images=(images, "an iterable"), on_error=(on_error, "a function or None")
    )
    network: Any = model if is_model(model) else open_network(model)
    check_classifier(network)
    check_count("top", top)
    check_count("batch_size", batch_size)
    if isinstance(images, str | os.PathLike):
        raise InvalidOption(f"images must be a list of paths, got {str(images)!r}; put it into []")
    paths = check_each("predict", "images", images, "text or a path")
    names = class_names(network_of(network))
    sample = sample_of(network)

    def predictions() -> Iterator[Prediction]:
        network.eval()
        files = find_images([Path(path) for path in paths], on_error)
        inputs = _inputs(files, transform(network), on_error)
        while chunk := list(itertools.islice(inputs, batch_size)):
            batch = torch.stack([x for _, x in chunk]).to(sample.device, sample.dtype)
            with torch.inference_mode():
                best = best_classes(network(batch), names, top)
            yield from (Prediction(file, rows) for (file, _), rows in zip(chunk, best, strict=True))

    return predictions()


def check_count(name: str, value: object, most: int = MOST) -> None:
    """Raise InvalidOption unless a number of classes or images is possible."""
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidOption(f"{name} must be from 1 to {most}, got {short_repr(value)}")


def class_names(model: Any) -> tuple[str, ...]:
    """Return the names of a model's classes; without labels they are numbered."""
    classes: int = model.num_classes
    labels: tuple[str, ...] = tuple(model.labels)
    if labels and len(labels) != classes:
        raise InvalidOption(
            f"model.labels has {len(labels)} names for {classes} classes; set it to one name per "
            "class, or to ()"
        )
    return labels or tuple(f"class {i}" for i in range(classes))


def sample_of(model: nn.Module) -> Tensor:
    """Return the first parameter of a model; raise InvalidOption if it is on `meta`."""
    sample = next(model.parameters())
    if sample.is_meta:
        raise InvalidOption(
            "the model is on the device 'meta', which stores no numbers; create it on another "
            "device, such as 'cpu'"
        )
    return sample


def best_classes(
    logits: Tensor, names: Sequence[str], top: int
) -> list[tuple[tuple[int, str, float], ...]]:
    """Map (b, k) logits to (index, name, probability) of the best classes of each image."""
    best = logits.float().softmax(dim=-1).topk(min(top, len(names)))
    return [
        tuple((i, names[i], v) for i, v in zip(indices, values, strict=True))
        for values, indices in zip(*map(Tensor.tolist, best), strict=True)
    ]


def _inputs(
    files: list[Path],
    prepare: Callable[[Path], Tensor],
    on_error: Callable[[ImageError], object] | None,
) -> Iterator[tuple[Path, Tensor]]:
    for file in files:
        try:
            yield file, prepare(file)
        except ImageError as error:
            if on_error is None:
                raise
            on_error(error)


def _with_classifier(model: nn.Module) -> str:
    """Return the end of a message: weights of the same architecture that have a classifier."""
    spec: Any = getattr(model, "spec", None)
    every = {variant.name: variant for variant in variants()}
    own = every.get(spec.variant or "") if spec else None
    if own is None:
        return "; pass num_classes= and train the new classifier"
    found = [
        f"create({variant.name!r}, weights={row.name!r})"
        for variant in every.values()
        for row in variant.weights
        if row.num_classes
        and (row.label_set or row.labels)
        and _trunk(variant.spec) == _trunk(own.spec)
    ]
    return f"; these weights have a classifier: {', '.join(found)}" if found else ""


def _trunk(spec: Spec) -> tuple[object, ...]:
    return spec.embed_dim, spec.depth, spec.patch_size, spec.image_size
