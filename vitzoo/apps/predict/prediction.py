"""What `predict` returns: the most probable classes of images, as lines and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vitzoo.display import ResultList, brief
from vitzoo.schema.terms import IDENTITY, SOFTMAX


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one image.

    Args:
        image: path of the file; `image N` for the image at index N that is no file.
        classes: tuples (index, label, probability), the most probable class first; of a regression
            (index, label, number), the largest number first.
        error: why the image cannot be used; empty if it can.
        output_activation: that of the model: `softmax`, `sigmoid` or `identity`.
    """

    image: Path
    classes: tuple[tuple[int, str, float], ...]
    error: str = ""
    output_activation: str = SOFTMAX

    __repr__ = brief


def measure(prediction: Prediction) -> str:
    """Return what the number of a class is called."""
    return "number" if prediction.output_activation == IDENTITY else "probability"


def shown(prediction: Prediction) -> dict[str, str]:
    """Return the image, its best class and the others, as people read them."""
    names = ("image", "label", measure(prediction), "next")
    image, classes = str(prediction.image), prediction.classes
    if not classes:
        return dict(zip(names, (image, "", "", prediction.error), strict=True))
    (_, label, best), *others = classes
    after = ", ".join(f"{name} {_number(share, prediction)}" for _, name, share in others)
    return dict(zip(names, (image, label, _number(best, prediction), after), strict=True))


def _number(value: float, prediction: Prediction) -> str:
    """Return a probability in percent, or the number of a regression."""
    return f"{value:.4g}" if prediction.output_activation == IDENTITY else f"{value:.1%}"


class Predictions(ResultList[Prediction]):
    """A list of predictions, which shows as a table with one line for each image.

    Attributes:
        left_out: number of the other files in folders by ending, such as `.heic`, without hidden
            files.
    """

    left_out: Mapping[str, int] = MappingProxyType({})

    def _cells(self) -> list[dict[str, object]]:
        return [{**shown(one), "image": one.image} for one in self]


def classified(predictor: Any, images: Sequence[tuple[Path, Any]]) -> Iterator[Prediction]:
    """Yield the predictions of images with their names, in order.

    Args:
        predictor: with the output `labels`.
        images: names and images, of which `named` yields both.
    """
    rows = predictor.rows(image for _, image in images)
    for (name, _), row in zip(images, rows, strict=True):
        classes = tuple(row.outputs.get("labels", ()))
        yield Prediction(name, classes, row.error, predictor.output_activation)
