"""`predict`: images to class names and probabilities."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor, nn

from vitzoo.apps.predict.batches import batches
from vitzoo.apps.predict.classes import (
    check_count,
)
from vitzoo.apps.predict.decoding import Input, as_list, named
from vitzoo.apps.predict.given import opened
from vitzoo.apps.predict.outputs import LABELS
from vitzoo.apps.predict.prediction import Prediction, Predictions, classified
from vitzoo.apps.predict.predictor import Predictor
from vitzoo.errors import ImageError
from vitzoo.images.find import LeftOut, shown_left_out
from vitzoo.keywords import check_keywords, check_progress, check_types
from vitzoo.log import log
from vitzoo.network.device import running_on
from vitzoo.progress import OnProgress, reporting
from vitzoo.schema.spec import Spec

Model = str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module
OnError = Callable[[ImageError], object] | None
BATCH = 16  # images
MOST_NAMED = 5  # images in a message


@overload
def predict(
    model: Model,
    images: Input | Iterable[Input],
    *,
    top: int = 5,
    batch_size: int | None = None,
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
    batch_size: int | None = None,
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
    batch_size: int | None = None,
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
        batch_size: number of images in a batch. None: 16. On CUDA it is the largest number, and
            None is what a Predictor finds there.
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
    check_count("batch_size", 1 if batch_size is None else batch_size)
    predictor = Predictor(network, outputs=LABELS, top=top)
    given = as_list("predict", images, predictor.transform.resize) if listed is None else listed
    left_out = LeftOut()

    def predictions() -> Iterator[Prediction]:
        """Yield all predictions, also those with errors."""
        network.eval()  # the caller may have trained it since
        every = list(named(given, left_out))
        with reporting("images", on_progress, progress) as report:
            for done, one in enumerate(_classified(predictor, every, batch_size), 1):
                if one.error and on_error:
                    on_error(ImageError(_text(one)))
                yield one
                report(done, len(every), one.image.name)
        if left_out:
            log.info("%s", shown_left_out(left_out))

    if stream:
        return predictions() if on_error else _raising(predictions())
    every = Predictions(predictions())
    every.left_out = dict(left_out)
    failed = [] if on_error else [one for one in every if one.error]
    if failed:
        raise _unreadable(failed, every)
    return every


def _classified(
    predictor: Predictor, images: Sequence[tuple[Path, Any]], batch_size: int | None
) -> Iterator[Prediction]:
    """Yield the predictions of images with their names."""
    if predictor.asynchronous:
        most = min(batch_size or predictor.chunk, predictor.chunk)
        yield from classified(predictor.with_chunk(most), images)
        return
    inputs = ((name, predictor.decode(one, str(name))) for name, one in images)
    for batch in batches(inputs, batch_size or BATCH):
        tensors = [one.tensor for _, one in batch if one.tensor is not None]
        best = iter(_classes_of(predictor, tensors) if tensors else ())
        for name, one in batch:
            classes = () if one.error else next(best)
            yield Prediction(name, classes, one.error, predictor.output_activation)


def _classes_of(
    predictor: Predictor, tensors: list[Tensor]
) -> list[tuple[tuple[int, str, float], ...]]:
    """Return the classes of a batch; the network computes with all threads of torch."""
    network, computation = predictor.model, predictor.computation
    with running_on(computation.device), torch.inference_mode():
        logits = network(torch.stack(tensors).to(computation.device, computation.dtype))
        return computation.classes(logits)


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
