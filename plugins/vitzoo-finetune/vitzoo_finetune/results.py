"""The files of a run besides the weights: numbers of each epoch, figures, and how to repeat it."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit
from matplotlib.figure import Figure
from PIL import ImageOps

import vitzoo
from vitzoo_finetune.images import Pair, opened
from vitzoo_finetune.settings import Settings
from vitzoo_finetune.targets import Answers, Target

WORST = 12  # mistakes in the figure
HEAD = "vitzoo finetune MODEL DATA --out OUT --run run.toml repeats this run."


def replace_text(path: Path, text: str) -> None:
    """Replace a file as a whole."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="")
    Path(partial).replace(path)


def write_metrics(path: Path, epochs: Sequence[Mapping[str, Any]]) -> None:
    """Write a line for each epoch."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(epochs[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(epochs)
    replace_text(path, file.getvalue())


def write_run(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write settings, data, versions and results."""
    document = tomlkit.document()
    document.add(tomlkit.comment(HEAD))
    for name, table in tables.items():
        document.add(name, tomlkit.item(dict(table)))
    replace_text(path, tomlkit.dumps(document))


def write_card(
    path: Path,
    settings: Settings,
    tables: Mapping[str, Mapping[str, Any]],
    *,
    confusion: bool,
    public: bool,
) -> None:
    """Write the section of the model card that `vitzoo push` takes over.

    Args:
        path: of the file.
        settings: of the run.
        tables: of `run.toml`.
        confusion: whether there is such a figure.
        public: whether the settings name no file of this machine, so that `run.toml` is linked.
    """
    data, result = tables["data"], dict(tables["result"])
    counts = ", ".join(f"{data[part]} {part}" for part in ("train", "validation", "test"))
    source = tables["source"]["sha256"]
    facts = {
        "method": settings.method,
        **({"recipe": f"`{settings.recipe}`"} if settings.recipe else {}),
        "learning rate": f"{settings.lr:g} for {settings.batch_size} images",
        "best epoch": f"{result.pop('best_epoch')} of {settings.epochs}",
        **{name.replace("_", " "): f"{value:.4g}" for name, value in result.items()},
        "images": counts,
        "sha256 of the data": f"`{data['sha256']}`",
        **({"sha256 of the weights before": f"`{source}`"} if source else {}),
    }
    lines = ["## Training", "", "Fine-tuned with `vitzoo finetune`.", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    lines += ["", "![Loss and metric by epoch](curves.png)"]
    if confusion:
        lines += ["", "![Images by true and predicted class](confusion.png)"]
    settings_too = "; [run.toml](run.toml): all settings" if public else ""
    lines += ["", f"[metrics.csv](metrics.csv): the numbers of each epoch{settings_too}."]
    replace_text(path, "\n".join(lines) + "\n")


def draw_curves(path: Path, target: Target, epochs: Sequence[Mapping[str, Any]], best: int) -> None:
    """Write loss and metric by epoch as a figure."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    losses, scores = figure.subplots(1, 2)
    values = [target.factor * one[f"val_{target.metric}"] for one in epochs]
    numbers = [one["epoch"] for one in epochs]
    losses.plot(numbers, [one["train_loss"] for one in epochs], label="training")
    losses.plot(numbers, [one["val_loss"] for one in epochs], label="validation")
    losses.set(xlabel="epoch", ylabel="loss")
    losses.legend()
    scores.plot(numbers, values, color="C1")
    scores.axvline(best, color="grey", linestyle=":", label=f"best epoch: {best}")
    scores.set(xlabel="epoch", ylabel=f"validation: {target.title}")
    scores.legend()
    _save(figure, path)


def draw_confusion(path: Path, title: str, confusion: Any, classes: Sequence[str]) -> None:
    """Write a figure with true classes in lines and predicted classes in columns."""
    _save(vitzoo.confusion_figure(title, confusion, classes), path)


def draw_mistakes(path: Path, target: Target, pairs: Sequence[Pair], lines: Answers) -> bool:
    """Write the images with wrong answers and the highest losses; False if there are none."""
    order = np.argsort(-lines[:, 1], kind="stable")
    found = ((int(lines[i, 0]), lines[i, 1], lines[i, 2:]) for i in order)
    wrong = ((i, loss, target.wrong(answer, pairs[i][1])) for i, loss, answer in found)
    worst = list(itertools.islice((one for one in wrong if one[2]), WORST))
    if not worst:
        return False
    figure = Figure(figsize=(8, 2.4 * -(-len(worst) // 4)), layout="constrained")
    every = figure.subplots(-(-len(worst) // 4), 4, squeeze=False).ravel()
    for axes in every:
        axes.axis("off")
    for axes, (index, loss, text) in zip(every, worst, strict=False):
        image = ImageOps.exif_transpose(opened(pairs[index][0]))
        image.thumbnail((256, 256))
        deep = image.mode.startswith(("I", "F"))  # more than 8 bits, from black to white
        axes.imshow(image if deep else image.convert("RGB"), cmap="gray")
        axes.set_title(f"{text}, loss {loss:.1f}", fontsize=8, parse_math=False)
    _save(figure, path)
    return True


def _save(figure: Figure, path: Path) -> None:
    partial = path.with_name(f"{path.name}.partial")
    figure.savefig(partial, format="png", dpi=120, metadata={"Software": None})
    Path(partial).replace(path)
