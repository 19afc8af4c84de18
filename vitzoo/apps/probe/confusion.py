"""The picture of a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vitzoo.keywords import check_keywords, check_types

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUMBERED = 30  # classes up to which each cell shows its number
NAMED = 60  # classes up to which each row and column has a name
SHORT = 24  # characters of a name


@check_keywords()
def confusion_figure(
    title: str, confusion: npt.NDArray[np.int64], classes: Sequence[str]
) -> Figure:
    """Return a figure with true classes as rows and predicted classes as columns.

    The colour of a cell is its share of the row. With many classes, only some have a name and no
    cell shows its number.

    Args:
        title: of the figure.
        confusion: (k, k) numbers of images.
        classes: k names.

    Raises:
        InvalidOption: an argument has another type.
    """
    check_types("confusion_figure", title=(title, "text"))
    from matplotlib.figure import Figure

    count = len(classes)
    side = min(max(4.5, 2 + 0.4 * count), 16)  # inches
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    step = -(-count // NAMED)
    names = [
        name if len(name) <= SHORT else f"{name[: SHORT - 1]}\N{HORIZONTAL ELLIPSIS}"
        for name in classes
    ]
    places = range(0, count, step)
    turn = 0 if max(map(len, names)) <= 3 else 90
    axes.set_xticks(places, names[::step], rotation=turn, parse_math=False)
    axes.set_yticks(places, names[::step], parse_math=False)
    if count <= NUMBERED:
        for row, column in np.argwhere(confusion):
            colour = "white" if shares[row, column] > 0.5 else "black"
            text = str(confusion[row, column])
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set_title(title, fontsize=11, parse_math=False)
    figure.colorbar(image, label="share of the true class", shrink=0.8)
    return figure
