"""The command `vitzoo probe`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from vitzoo.cli.completion import complete_names
from vitzoo.cli.networks import check
from vitzoo.cli.options import (
    PATH,
    device_option,
    force_option,
    json_option,
    weights_or_file_option,
)
from vitzoo.cli.output import on_terminal, print_rows, say
from vitzoo.errors import ExitCode
from vitzoo.images.find import LeftOut, shown_left_out

if TYPE_CHECKING:
    from vitzoo.apps.probe.probe import Probe

PICTURES = (".png", ".svg", ".pdf")
MOST_SHOWN = 5  # unreadable images that are named


@click.command("probe")
@click.argument("model", shell_complete=complete_names)
@click.argument("data", type=PATH)
@weights_or_file_option
@click.option(
    "--embeddings",
    metavar="DIR",
    type=PATH,
    help="Folder of embeddings to read, or to write; cache/embeddings in VITZOO_HOME if not given.",
)
@click.option(
    "--confusion",
    metavar="FILE",
    type=PATH,
    help="Write the confusion matrix of logistic regression as an image: .png, .svg or .pdf.",
)
@click.option(
    "--save",
    metavar="FILE",
    type=PATH,
    help="Write the logistic regression to a .safetensors file, which predict takes as MODEL.",
)
@click.option(
    "--test-share",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.2,
    show_default=True,
    help="Share of each class that is drawn for the test if the data has no split.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the random splits.")
@click.option("--image-column", metavar="NAME", help="Column of paths or images in a file.")
@click.option("--label-column", metavar="NAME", help="Column of classes in a file.")
@click.option("--split-column", metavar="NAME", help="Column of train, val and test in a file.")
@device_option
@force_option
@json_option
def probe_command(
    model: str,
    data: Path,
    confusion: Path | None,
    save: Path | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how well features of MODEL tell classes apart.

    MODEL is a variant, VARIANT:WEIGHTS, a path or hf://OWNER/REPO: see
    docs/create.md#which-network.

    DATA is a folder with one folder of images for each class, or with folders train and test (or
    val) that have these; or a .csv, .tsv or .parquet file with the columns path and label, and
    perhaps split. The network is not trained. k-NN and logistic regression are fitted to the
    features of the training images, and their accuracy on the test images is printed with a 95 %
    interval.

    For an image that cannot be read, an error is printed; it is left out of all scores, and the
    exit code is 1.

    \b
    Examples:
      vitzoo probe vit_b16 flowers/
      vitzoo probe dinov2/vit_s14 birds.csv --label-column species --json
      vitzoo probe vit_b16 flowers/ --confusion f.png --save f.safetensors
    """
    from vitzoo.apps.probe.labelled import check_data
    from vitzoo.files.access import check_figure, check_target, writing_to
    from vitzoo.files.names import check_path
    from vitzoo.plugin.requirements import check_extra

    if save:
        check_target(check_path(save), force=force)
    if confusion:
        check_figure(confusion, "--confusion", PICTURES, force=force)
        check_extra("plot", "vitzoo probe --confusion")
    check(model, options["weights"])
    check_data(data)
    check_extra("probe", "vitzoo probe")
    from vitzoo.apps.probe.probe import probe

    found = probe(model, data, **options)
    _explain(found)
    _print_scores(found, as_json=as_json)
    if confusion:
        with writing_to(confusion, force=force) as file:
            found.figure().savefig(file, format=confusion.suffix[1:].lower(), dpi=120)
        say(f"wrote {confusion}")
    if save:
        say(f"wrote {found.save(save, force=force)}")
    if found.unreadable:
        raise Exit(ExitCode.FAILED)


def _explain(found: Probe) -> None:
    """Say which images the scores are from."""
    drawn = "drawn by hash" if found.random_split else "as the data says"
    say(
        f"{len(found.train)} training and {len(found.test)} test images of {len(found.classes)} "
        f"classes, {drawn}; network on {found.device}"
    )
    if found.unused:
        say(f"{found.unused} validation images are not used, because there are test images")
    if found.left_out:
        say(f"vitzoo: {shown_left_out(LeftOut(found.left_out))}")
    for name, error in found.unreadable[:MOST_SHOWN]:
        say(f"vitzoo: {name}: {error}")
    if found.unreadable:
        one = len(found.unreadable) == 1
        count = "1 image" if one else f"{len(found.unreadable)} images"
        say(f"vitzoo: {count} cannot be read; {'it is' if one else 'they are'} in no score")
    if found.identity:
        say(f"network {found.identity.rpartition(':')[0]}")
    say(f"logistic regression has C = {found.C:g}, chosen on training images")
    for note in found.notes:
        say(f"vitzoo: {note}")


def _print_scores(found: Probe, *, as_json: bool) -> None:
    if as_json or not on_terminal():
        rows = [score.to_data() for score in found.scores]
        columns = ("classifier", "accuracy", "low", "high", "correct", "total")
        print_rows(rows, columns, as_json=as_json, data=found.to_data())
        return
    shown = [score.shown() for score in found.scores]
    print_rows(shown, tuple(shown[0]))
