"""`predict`: image files to class names and probabilities."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitzoo.apps.predict.batches import batches
from vitzoo.apps.predict.classes import (
    best_classes,
    check_classifier,
    check_count,
    class_names,
    sample_of,
)
from vitzoo.errors import ImageError, InvalidOption
from vitzoo.factory import open_network
from vitzoo.images.find import find_images
from vitzoo.keywords import check_each, check_types
from vitzoo.known import transform
from vitzoo.network.wrappers import network_of
from vitzoo.opening import is_model
from vitzoo.schema.spec import Spec


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image.

    Args:
        image: path of the file.
        classes: tuples (index, label, probability), the most probable class first.
    """

    image: Path
    classes: tuple[tuple[int, str, float], ...]


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
        for batch in batches(inputs, batch_size):
            images = torch.stack([x for _, x in batch]).to(sample.device, sample.dtype)
            with torch.inference_mode():
                best = best_classes(network(images), names, top)
            yield from (Prediction(file, rows) for (file, _), rows in zip(batch, best, strict=True))

    return predictions()


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
