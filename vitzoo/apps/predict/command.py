"""The command `vitzoo predict`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from vitzoo.cli.completion import complete_names
from vitzoo.cli.options import PATH, check_there, device_option, json_option, weights_or_file_option
from vitzoo.cli.output import on_terminal, print_rows, say
from vitzoo.errors import InvalidOption
from vitzoo.opening import check

if TYPE_CHECKING:
    from vitzoo.apps.predict.prediction import Prediction
    from vitzoo.errors import ImageError


@click.command("predict")
@click.argument("model", shell_complete=complete_names)
@click.argument("images", nargs=-1, required=True, type=PATH)
@weights_or_file_option
@click.option(
    "--top",
    default=5,
    show_default=True,
    help="Print this number of the best classes for each image.",
)
@device_option
@json_option
def predict_command(
    model: str,
    images: tuple[Path, ...],
    weights: str | None,
    top: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Classify images with MODEL.

    The most probable classes of each image are printed. IMAGES are files or folders; subfolders are
    not searched. For a file that cannot be read, an error is printed; the other images are still
    classified, and the exit code is 1.

    MODEL is a variant, VARIANT:WEIGHTS, a path or hf://OWNER/REPO: see
    docs/create.md#which-network.

    \b
    Examples:
      vitzoo predict vit_digits digit.png
      vitzoo predict vit_digits scans/ --top 3 --json
      vitzoo predict my_model.safetensors photo.jpg
    """
    if top < 1:
        raise InvalidOption(f"--top must be at least 1, got {top}")
    check(model, weights)
    unreadable: list[ImageError] = []

    def note(error: ImageError) -> None:
        unreadable.append(error)
        say(f"vitzoo: {error}")

    if not any(map(os.path.lexists, images)):
        check_there(images)  # raises
    from vitzoo.images.find import find_images

    files = find_images(images, note)  # a missing file is reported before a download
    if not files:
        raise Exit(1)
    from vitzoo.apps.predict.predict import predict
    from vitzoo.factory import create

    network = create(model, pretrained=True, weights=weights, device=device)
    say(network.load_report.summary())  # type: ignore[union-attr]
    _print(predict(network, files, top=top, on_error=note), as_json=as_json)
    if unreadable:
        raise Exit(1)


def _print(predictions: Iterator[Prediction], *, as_json: bool) -> None:
    """Print predictions one by one; without any prediction, print nothing at all."""
    first = list(itertools.islice(predictions, 1))
    if not first:
        return
    data = map(_data, itertools.chain(first, predictions))
    if on_terminal() and not as_json:
        rows = list(map(_one_line, data))
        columns = ("image", "label", "probability", *(("next",) if rows[0]["next"] else ()))
        print_rows(rows, columns, pretty={"probability": "{:.1%}".format})
        return
    ranked = (
        {"image": row["image"], "rank": rank, "label": one["label"]}
        | {"probability": f"{one['probability']:.4f}"}
        for row in data
        for rank, one in enumerate(row["classes"], 1)
    )
    columns = ("image", "rank", "label", "probability")
    print_rows(data if as_json else ranked, columns, as_json=as_json)


def _data(prediction: Prediction) -> dict[str, Any]:
    classes = [
        {"index": index, "label": label, "probability": probability}
        for index, label, probability in prediction.classes
    ]
    return {"image": str(prediction.image), "classes": classes}


def _one_line(row: dict[str, Any]) -> dict[str, Any]:
    best, *others = row["classes"]
    after = ", ".join(f"{one['label']} {one['probability']:.1%}" for one in others)
    return {"image": row["image"], "next": after} | best
