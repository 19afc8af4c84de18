"""`vitzoo predict`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitzoo.cli.output import json_option, on_terminal, print_json, print_rows
from vitzoo.errors import InvalidOption, printable
from vitzoo.files.names import SAFETENSORS

if TYPE_CHECKING:
    from vitzoo.errors import ImageError
    from vitzoo.inference.predict import Prediction
    from vitzoo.report import LoadReport


@click.command("predict")
@click.argument("model")
@click.argument("images", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--weights", help="Weights name or safetensors file, instead of the default.")
@click.option("--top", default=5, show_default=True, help="Classes to give per image.")
@click.option("--device", help="Such as cpu or cuda.")
@json_option
@click.pass_context
def predict_command(
    context: click.Context,
    model: str,
    images: tuple[Path, ...],
    weights: str | None,
    top: int,
    device: str | None,
    as_json: bool,
) -> None:
    """Classify image files, or all images in a folder, with MODEL.

    MODEL is a registered name with weights, or a file written by vitzoo.save. A file that is not
    there or no readable image is named on stderr; the others are classified, and the exit code is
    1. Of a folder, the images right in it are taken.

    \b
    Examples:
      vitzoo predict vit_digits digit.png
      vitzoo predict vit_digits scans/ --top 3 --json
      vitzoo predict my_model.safetensors photo.jpg
    """
    from vitzoo.factory import create
    from vitzoo.images.decode import find_images
    from vitzoo.inference.predict import predict

    if top < 1:
        raise InvalidOption(f"--top must be at least 1, got {top}")
    unreadable: list[ImageError] = []

    def note(error: ImageError) -> None:
        unreadable.append(error)
        click.echo(f"vitzoo: {error}", err=True)

    files = find_images(images, note)  # before any weights are fetched
    if not files:
        context.exit(1)
    saved = Path(model).suffix == SAFETENSORS
    network = create(model, pretrained=not saved, weights=weights, device=device)
    report: LoadReport = network.load_report  # type: ignore[assignment]  # an attribute that create sets
    click.echo(report.summary(), err=True)
    _print(predict(network, files, top=top, on_error=note), as_json=as_json)
    if unreadable:
        context.exit(1)


def _print(predictions: Iterator[Prediction], *, as_json: bool) -> None:
    """Print predictions as they come; nothing, not even a line of column names, if none comes."""
    first = next(predictions, None)
    if first is None:
        return
    predictions = itertools.chain([first], predictions)
    if as_json:
        print_json([_data(prediction) for prediction in predictions])
    elif on_terminal():
        rows = (_one_line(prediction) for prediction in predictions)
        print_rows(rows, ("image", "label", "probability", "next"), pretty={"probability": str})
    else:
        ranked = (row for prediction in predictions for row in _ranked(prediction))
        print_rows(ranked, ("image", "rank", "label", "probability"))


def _data(prediction: Prediction) -> dict[str, Any]:
    classes = [
        {"index": index, "label": printable(label), "probability": probability}
        for index, label, probability in prediction.classes
    ]
    return {"image": printable(prediction.image), "classes": classes}


def _one_line(prediction: Prediction) -> dict[str, str]:
    (_, label, probability), *others = prediction.classes
    return {
        "image": printable(prediction.image),
        "label": printable(label),
        "probability": f"{probability:.1%}",
        "next": ", ".join(f"{printable(name)} {share:.1%}" for _, name, share in others[:2]),
    }


def _ranked(prediction: Prediction) -> list[dict[str, Any]]:
    return [
        {
            "image": printable(prediction.image),
            "rank": rank,
            "label": printable(label),
            "probability": f"{probability:.4f}",
        }
        for rank, (_, label, probability) in enumerate(prediction.classes, start=1)
    ]
