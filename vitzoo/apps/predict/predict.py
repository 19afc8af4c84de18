"""`predict`: images to class names and probabilities."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitzoo.apps.predict.batches import batches
from vitzoo.apps.predict.classes import (
    answers_of,
    best_classes,
    check_classifier,
    check_count,
    class_names,
    sample_of,
)
from vitzoo.apps.predict.decoding import Input, as_list, decoded, named
from vitzoo.apps.predict.given import opened, placed
from vitzoo.apps.predict.prediction import Prediction
from vitzoo.errors import ImageError
from vitzoo.images.find import LeftOut, shown_left_out
from vitzoo.images.transform import Transform
from vitzoo.keywords import check_types
from vitzoo.known import transform
from vitzoo.log import log
from vitzoo.network.device import running_on
from vitzoo.network.wrappers import network_of
from vitzoo.opening import is_model
from vitzoo.schema.spec import Spec


def predict(
    model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
    images: Input | Iterable[Input],
    *,
    top: int = 5,
    batch_size: int = 16,
    device: torch.device | str | None = None,
    on_error: Callable[[ImageError], object] | None = None,
) -> Iterator[Prediction]:
    """Classify images batch by batch; the model is set to evaluation mode.

    `model.output_activation` states the probabilities: the softmax of the logits; a sigmoid for
    each class, whose sum is not 1; or for a regression the logits themselves.

    Args:
        model: the network, see docs/create.md#which-network. A variant gets its default weights.
        images: one image, or several: paths of files and folders (without hidden files), bytes of
            image files, arrays (h, w) or (h, w, bands) of uint8, uint16 or floats, Pillow images.
        top: number of classes to return for each image.
        batch_size: number of images in a batch.
        device: of the computation, as for `Predictor`; a model object is copied to another device.
        on_error: is called with the error of each image that cannot be read, instead of raising
            it; the other images are classified.

    Raises:
        InvalidOption: the model has no classifier (it returns features or an embedding), it has one
            class and no output activation for it, or a value is not possible.
        ImageError: a file is missing or no readable image.
    """
    listed = None if isinstance(images, np.ndarray) else as_list("predict", images)
    check_types("predict", on_error=(on_error, "a function or None"))
    network: Any = model
    if not is_model(model):
        network = opened(model, device=device)
    elif device is not None:
        network = placed(model, device=device)
    check_classifier(network)
    check_count("top", top)
    check_count("batch_size", batch_size)
    names, activation = class_names(network_of(network)), answers_of(network)
    sample = sample_of(network)
    prepare = transform(network)
    given = as_list("predict", images, prepare) if listed is None else listed

    def predictions() -> Iterator[Prediction]:
        network.eval()
        left_out = LeftOut()
        inputs = _inputs(named(given, on_error, left_out), prepare, on_error)
        for batch in batches(inputs, batch_size):
            images = torch.stack([x for _, x in batch]).to(sample.device, sample.dtype)
            with running_on(sample.device), torch.inference_mode():
                best = best_classes(network(images), names, top, activation)
            for (name, _), rows in zip(batch, best, strict=True):
                yield Prediction(name, rows, output_activation=activation)
        if left_out:
            log.info("%s", shown_left_out(left_out))

    return predictions()


def _inputs(
    images: Iterable[tuple[Path, Input]],
    prepare: Transform,
    on_error: Callable[[ImageError], object] | None,
) -> Iterator[tuple[Path, Tensor]]:
    for name, image in images:
        one = decoded(image, str(name), prepare)
        if one.tensor is not None:
            yield name, one.tensor
            continue
        there = str(name) in one.error
        error = ImageError(one.error if there else f"{name}: {one.error}")
        if on_error is None:
            raise error
        on_error(error)
