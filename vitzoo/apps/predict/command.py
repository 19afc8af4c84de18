"""The command `vitzoo predict`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from click.exceptions import Exit

from vitzoo.cli.completion import complete_names
from vitzoo.cli.images import image_files
from vitzoo.cli.networks import check
from vitzoo.cli.options import PATH, device_option, json_option, weights_or_file_option
from vitzoo.cli.output import GAP, Fit, cut, on_terminal, print_rows, say
from vitzoo.display import screen_width
from vitzoo.errors import ExitCode, InvalidOption

if TYPE_CHECKING:
    from vitzoo.apps.predict.prediction import Prediction
    from vitzoo.errors import ImageError

LEAST_NEXT = 16  # columns of the further classes, which are left out otherwise


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

    The most probable classes of each image are printed: on a terminal in one line, in which long
    names are cut, and with --top in a line for each class. IMAGES are files or folders
    (with subfolders, without hidden files). For a file that cannot be read, an error is printed;
    the other images are still classified, and the exit code is 1.

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
    files = image_files(images)  # a missing file is reported before a download
    unreadable = list(files.errors)

    def note(error: ImageError) -> None:
        unreadable.append(error)
        say(f"vitzoo: {error}")

    from vitzoo.apps.predict.given import opened
    from vitzoo.apps.predict.predict import predict
    from vitzoo.network.device import label

    network = opened(model, weights=weights, device=device)
    say(f"{network.load_report.summary()}; on {label(next(network.parameters()).device)}")
    every = predict(network, files.paths, top=top, on_error=note, stream=True)
    found = (one for one in every if not one.error)
    given = click.get_current_context().get_parameter_source("top") is ParameterSource.COMMANDLINE
    _print(found, as_json=as_json, each=given and top > 1)
    if unreadable:
        raise Exit(ExitCode.FAILED)


def _print(predictions: Iterator[Prediction], *, as_json: bool, each: bool) -> None:
    """Print predictions one by one; without any prediction, print nothing at all.

    If `each`, every class has a line on a terminal, too.
    """
    first = list(itertools.islice(predictions, 1))
    if not first:
        return
    found: Iterator[Prediction] = itertools.chain(first, predictions)
    from vitzoo.apps.predict.prediction import measure, shown

    name = measure(first[0])
    if on_terminal() and not as_json:
        if each:
            found = (replace(one, classes=(a_class,)) for one in found for a_class in one.classes)
        _print_lines(list(map(shown, found)), name)
        return
    data = (_data(one, name) for one in found)
    form = ".6g" if name == "number" else ".4f"
    ranked = (
        {"image": row["image"], "rank": rank, "label": one["label"]}
        | {name: format(one[name], form)}
        for row in data
        for rank, one in enumerate(row["classes"], 1)
    )
    columns = ("image", "rank", "label", name)
    print_rows(data if as_json else ranked, columns, as_json=as_json)


def _print_lines(rows: list[dict[str, str]], name: str) -> None:
    """Print one line for each image: long names are cut to the width of the terminal.

    Args:
        rows: results of `shown`.
        name: of the number of a class.
    """
    from shutil import get_terminal_size

    most = {c: max(screen_width(c), *(screen_width(cut(r[c], 999)) for r in rows)) for c in rows[0]}
    room = get_terminal_size().columns - most[name] - 2 * GAP
    label = min(most["label"], room // 2)
    several = any(row["next"] for row in rows) and room - label >= 2 * LEAST_NEXT
    image = min(most["image"], (room - label) // 2 if several else room - label)
    widths = {"image": image, "label": label}
    widths |= {"next": room - label - image - GAP} if several else {}
    for row in rows:
        row |= {c: cut(row[c], width, front=c == "image") for c, width in widths.items()}
    columns = ("image", "label", name, *(("next",) if "next" in widths else ()))
    print_rows(rows, columns, pretty={name: str}, fit=Fit(one_line=True))


def _data(prediction: Prediction, name: str) -> dict[str, Any]:
    classes = [
        {"index": index, "label": label, name: value} for index, label, value in prediction.classes
    ]
    return {"image": str(prediction.image), "classes": classes}
