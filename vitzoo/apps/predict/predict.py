"""`predict`: images to class names and probabilities."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

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
from vitzoo.apps.predict.given import opened
from vitzoo.apps.predict.prediction import Prediction, Predictions
from vitzoo.errors import ImageError
from vitzoo.images.find import LeftOut, shown_left_out
from vitzoo.keywords import check_keywords, check_progress, check_types
from vitzoo.known import transform
from vitzoo.log import log
from vitzoo.network.device import running_on
from vitzoo.network.wrappers import network_of
from vitzoo.progress import OnProgress, reporting
from vitzoo.schema.spec import Spec

Model = str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module
OnError = Callable[[ImageError], object] | None
MOST_NAMED = 5  # images in a message


@overload
def predict(
    model: Model,
    images: Input | Iterable[Input],
    *,
    top: int = 5,
    batch_size: int = 16,
    device: torch.device | str | None = None,
    on_error: OnError = None,
    on_progress: OnProgress | None = None,
    progress: bool = True,
    stream: Literal[False] = False,
) -> Predictions: ...


@overload
def predict(
    model: Model,
    images: Input | Iterable[Input],
    *,
    top: int = 5,
    batch_size: int = 16,
    device: torch.device | str | None = None,
    on_error: OnError = None,
    on_progress: OnProgress | None = None,
    progress: bool = True,
    stream: Literal[True],
) -> Iterator[Prediction]: ...


@check_keywords()
def predict(
    model: Model,
    images: Input | Iterable[Input],
    *,
    top: int = 5,
    batch_size: int = 16,
    device: torch.device | str | None = None,
    on_error: OnError = None,
    on_progress: OnProgress | None = None,
    progress: bool = True,
    stream: bool = False,
) -> Predictions | Iterator[Prediction]:
    """Classify images batch by batch; the model is set to evaluation mode.

    `model.output_activation` states the probabilities: the softmax of the logits; a sigmoid for
    each class, whose sum is not 1; or for a regression the logits themselves.

    Args:
        model: the network, see docs/create.md#which-network. A variant gets its default weights.
        images: one image, or several: paths of files and folders (with subfolders, without hidden
            files), bytes of image files, arrays (h, w) or (h, w, bands) of uint8, uint16 or floats,
            Pillow images.
        top: number of classes to return for each image.
        batch_size: number of images in a batch.
        device: of the computation, as for `Predictor`; a model object is copied to another device.
        on_error: is called with the error of each image that cannot be read, instead of raising
            it.
        on_progress: is called with the number of images so far, of all, and the name of the last
            one. An error that it raises is raised as it is.
        progress: whether to show a bar on a terminal or in a notebook.
        stream: return an iterator, which computes a batch when its first prediction is needed.

    Returns:
        A list that shows as a table, or an iterator. An image that cannot be read has its error
        and no classes.

    Raises:
        InvalidOption: the model has no classifier (it returns features or an embedding), it has one
            class and no output activation for it, or a value is not possible.
        ImageError: a file is missing or no readable image. It is raised after the other images are
            classified. Its `predictions` are those of all images; those that failed with `stream`.
    """
    listed = None if isinstance(images, np.ndarray) else as_list("predict", images)
    check_types("predict", on_error=(on_error, "a function or None"), stream=(stream, "a boolean"))
    check_progress("predict", on_progress, progress)
    network = opened(model, device=device)
    check_classifier(network)
    check_count("top", top)
    check_count("batch_size", batch_size)
    names, activation = class_names(network_of(network)), answers_of(network)
    sample = sample_of(network)
    prepare = transform(network)
    given = as_list("predict", images, prepare) if listed is None else listed
    left_out = LeftOut()

    def predictions() -> Iterator[Prediction]:
        """Yield all predictions, also those with errors."""
        network.eval()
        every = list(named(given, left_out))
        inputs = ((name, decoded(one, str(name), prepare)) for name, one in every)
        done = 0
        with reporting("images", on_progress, progress) as report:
            for batch in batches(inputs, batch_size):
                best = iter(classes_of([one.tensor for _, one in batch if one.tensor is not None]))
                for name, one in batch:
                    classes = () if one.error else next(best)
                    found = Prediction(name, classes, one.error, activation)
                    if found.error and on_error:
                        on_error(ImageError(_text(found)))
                    yield found
                    done += 1
                    report(done, len(every), name.name)
        if left_out:
            log.info("%s", shown_left_out(left_out))

    def classes_of(tensors: list[Tensor]) -> list[tuple[tuple[int, str, float], ...]]:
        if not tensors:
            return []
        batch = torch.stack(tensors).to(sample.device, sample.dtype)
        with running_on(sample.device), torch.inference_mode():
            return best_classes(network(batch), names, top, activation)

    if stream:
        return predictions() if on_error else _raising(predictions())
    every = Predictions(predictions())
    every.left_out = dict(left_out)
    failed = [] if on_error else [one for one in every if one.error]
    if failed:
        raise _unreadable(failed, every)
    return every


def _raising(predictions: Iterator[Prediction]) -> Iterator[Prediction]:
    """Yield predictions, then raise the errors of images."""
    failed = Predictions()
    for one in predictions:
        if one.error:
            failed.append(one)
        yield one
    if failed:
        raise _unreadable(failed, failed)


def _unreadable(failed: Sequence[Prediction], kept: Sequence[Prediction]) -> ImageError:
    """Return the error of images that cannot be read; it keeps predictions."""
    texts = [_text(one) for one in failed]
    if len(texts) > 1:
        more = [f"and {len(texts) - MOST_NAMED} more"] if len(texts) > MOST_NAMED else []
        texts = [f"{len(texts)} images cannot be read:", *texts[:MOST_NAMED], *more]
    if len(kept) > len(failed):
        texts.append(f"`predictions` of this error has the results of all {len(kept)} images")
    error = ImageError(*texts)
    error.predictions = kept
    return error


def _text(prediction: Prediction) -> str:
    """Return the error of an image with its name."""
    name, error = str(prediction.image), prediction.error
    return error if name in error else f"{name}: {error}"
