"""Images to labelled answers."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.errors import ImageError, InvalidOption
from vitzoo.images.decode import find_images
from vitzoo.images.lookup import transform
from vitzoo.registry.registry import registry


@dataclass(frozen=True)
class Prediction:
    """What a model says of one image.

    Args:
        image: path of the file.
        classes: (index, label, probability), the most probable first.
    """

    image: Path
    classes: tuple[tuple[int, str, float], ...]


def predict(
    model: nn.Module,
    images: Iterable[str | os.PathLike[str]],
    *,
    top: int = 5,
    batch_size: int = 16,
    on_error: Callable[[ImageError], object] | None = None,
) -> Iterator[Prediction]:
    """Classify image files, or folders of them, batch by batch.

    Args:
        model: from `create`; it is put into evaluation mode.
        images: files and folders.
        top: how many classes to give.
        batch_size: images at a time.
        on_error: called for every image that is not there or cannot be read, which is then left
            out; without it the error is raised.

    Raises:
        InvalidOption: the model has no classifier: it gives features or an embedding.
        ImageError: a file is no readable image.
    """
    zoo_model: Any = model  # num_classes and labels are set by create, on foreign modules too
    classes: int = zoo_model.num_classes
    if not classes:
        raise InvalidOption(f"the model has no classifier, only features{_with_classifier(model)}")
    if getattr(getattr(model, "head", None), "embedding", False):
        raise InvalidOption(
            f"the model gives an embedding of {classes} numbers, not classes; compare what "
            "model(images) gives with other embeddings, or pass num_classes= for a fresh "
            "classifier and train it"
            f"{_with_classifier(model)}"
        )
    for name, value in (("top", top), ("batch_size", batch_size)):
        if value < 1:
            raise InvalidOption(f"{name} must be at least 1, got {value}")
    if isinstance(images, str | os.PathLike):
        raise InvalidOption(f"images must be a list of paths, got {str(images)!r}; put it into []")
    if zoo_model.labels and len(zoo_model.labels) != classes:
        raise InvalidOption(
            f"model.labels has {len(zoo_model.labels)} names for {classes} classes; set it to one "
            "name per class, or to ()"
        )
    names = zoo_model.labels or tuple(f"class {i}" for i in range(classes))
    place = next(model.parameters())
    model.eval()
    files = find_images([Path(image) for image in images], on_error)
    inputs = _inputs(files, transform(model), on_error)
    while chunk := list(itertools.islice(inputs, batch_size)):
        batch = torch.stack([x for _, x in chunk]).to(place.device, place.dtype)
        with torch.inference_mode():
            best = model(batch).float().softmax(dim=-1).topk(min(top, classes))
        for (file, _), values, indices in zip(chunk, *map(Tensor.tolist, best), strict=True):
            rows = tuple((i, names[i], v) for i, v in zip(indices, values, strict=True))
            yield Prediction(file, rows)


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
    """Name the weights of the same architecture that have a classifier."""
    spec: Any = getattr(model, "spec", None)
    zoo = registry()
    own = zoo.variants.get(spec.variant or "") if spec else None
    if own is None:
        return "; pass num_classes= and train one"
    trunk = (own.spec.embed_dim, own.spec.depth, own.spec.patch_size, own.spec.image_size)
    found = [
        f"create({variant.name!r}, weights={row.name!r})"
        for variant in zoo.variants.values()
        for row in variant.weights
        if row.num_classes
        and (row.label_set or row.labels)
        and trunk == (
            variant.spec.embed_dim, variant.spec.depth,
            variant.spec.patch_size, variant.spec.image_size,
        )
    ]  # fmt: skip
    return f"; these weights have one: {', '.join(found)}" if found else ""
