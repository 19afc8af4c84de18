"""The files of a run besides the weights: numbers of each epoch, figures, and how to repeat it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tomlkit
from matplotlib.figure import Figure

from vitzoo_finetune.images import Pair, opened

COLUMNS = ("epoch", "lr", "train_loss", "val_loss", "val_accuracy", "seconds")
NUMBERED, NAMED = 30, 60  # classes up to which cells have numbers, and lines have names
SHORT = 24  # characters of a name in a figure
WORST = 12  # mistakes in the figure
HEAD = "vitzoo finetune MODEL DATA --out OUT --run run.toml repeats this run."


def write_text(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="")
    Path(partial).replace(path)


def write_metrics(path: Path, epochs: Sequence[Mapping[str, Any]]) -> None:
    """Write a line for each epoch."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(epochs)
    write_text(path, file.getvalue())


def write_run(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write settings, data, versions and results."""
    document = tomlkit.document()
    document.add(tomlkit.comment(HEAD))
    for name, table in tables.items():
        document.add(name, tomlkit.item(dict(table)))
    write_text(path, tomlkit.dumps(document))


def draw_curves(path: Path, epochs: Sequence[Mapping[str, Any]], best: int) -> None:
    """Write loss and accuracy by epoch as a figure."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    losses, accuracies = figure.subplots(1, 2)
    numbers = [one["epoch"] for one in epochs]
    losses.plot(numbers, [one["train_loss"] for one in epochs], label="training")
    losses.plot(numbers, [one["val_loss"] for one in epochs], label="validation")
    losses.set(xlabel="epoch", ylabel="loss")
    losses.legend()
    accuracies.plot(numbers, [100 * one["val_accuracy"] for one in epochs], color="C1")
    accuracies.axvline(best, color="grey", linestyle=":", label=f"best epoch: {best}")
    accuracies.set(xlabel="epoch", ylabel="validation accuracy (%)")
    accuracies.legend()
    _save(figure, path)


def draw_confusion(
    path: Path, title: str, confusion: npt.NDArray[np.int64], classes: Sequence[str]
) -> None:
    """Write a figure with true classes in lines and predicted classes in columns."""
    count = len(classes)
    side = min(max(4.5, 2 + 0.4 * count), 16)  # inches
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    step = -(-count // NAMED)
    names = [name if len(name) <= SHORT else f"{name[: SHORT - 1]}…" for name in classes]
    places = range(0, count, step)
    axes.set_xticks(places, names[::step], rotation=90, parse_math=False)
    axes.set_yticks(places, names[::step], parse_math=False)
    if count <= NUMBERED:
        for row, column in np.argwhere(confusion):
            colour = "white" if shares[row, column] > 0.5 else "black"
            text = str(confusion[row, column])
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set_title(title, fontsize=11)
    figure.colorbar(image, label="share of the true class", shrink=0.8)
    _save(figure, path)


def draw_mistakes(
    path: Path, pairs: Sequence[Pair], measured: npt.NDArray[np.float64], classes: Sequence[str]
) -> bool:
    """Write the wrongly classified images with the highest losses; False if there are none."""
    wrong = measured[measured[:, 1] != measured[:, 2]]
    worst = wrong[np.argsort(-wrong[:, 3], kind="stable")][:WORST]
    if not len(worst):
        return False
    figure = Figure(figsize=(8, 2.4 * -(-len(worst) // 4)), layout="constrained")
    every = figure.subplots(-(-len(worst) // 4), 4, squeeze=False).ravel()
    for axes in every:
        axes.axis("off")
    for axes, (index, true, predicted, loss) in zip(every, worst, strict=False):
        image = opened(pairs[int(index)][0])
        image.thumbnail((256, 256))
        axes.imshow(image.convert("RGB"))
        names = [classes[int(i)][:SHORT] for i in (true, predicted)]
        title = f"{names[0]}\nas {names[1]}, loss {loss:.1f}"
        axes.set_title(title, fontsize=8, parse_math=False)
    _save(figure, path)
    return True


def _save(figure: Figure, path: Path) -> None:
    partial = path.with_name(f"{path.name}.partial")
    figure.savefig(partial, format="png", dpi=120, metadata={"Software": None})
    Path(partial).replace(path)
