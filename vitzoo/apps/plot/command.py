"""The command `vitzoo plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vitzoo.apps.plot.kinds import KINDS, check_count, check_kind
from vitzoo.cli.completion import complete_names
from vitzoo.cli.networks import check
from vitzoo.cli.options import (
    PATH,
    Choice,
    check_there,
    device_option,
    flag,
    force_option,
    json_option,
    matched,
    size_option,
    weights_or_file_option,
)
from vitzoo.cli.output import print_rows, say
from vitzoo.files.access import check_figure


def _indices(value: str) -> list[int]:
    """Read indices from 0: numbers and ranges with commas, such as 0,2-4,-1."""
    expected = "indices such as 0,2-4 or -1 for the last"
    found: list[int] = []
    for part in value.split(","):
        first, last = matched(r"(-?\d{1,4})(?:-(\d{1,4}))?", part, expected).groups()
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise click.BadParameter(f"expected {expected}; got {value!r}")
    return found


def _patch(value: str) -> tuple[int, int]:
    """Read the row and the column of a patch."""
    found = matched(r"(\d{1,5}),(\d{1,5})", value, "ROW,COLUMN of a patch, such as 0,5")
    return int(found[1]), int(found[2])


@click.command("plot")
@click.argument("kind", metavar="KIND", type=Choice(tuple(KINDS)))
@click.argument("model", shell_complete=complete_names)
@click.argument("images", nargs=-1, type=PATH)
@click.option(
    "--out", required=True, metavar="FILE", type=PATH,
    help="Write the figure to this .png or .svg file.",
)  # fmt: skip
@weights_or_file_option
@flag("--untrained", help="Load no weights: draw the network as it is initialised.")
@size_option
@click.option(
    "--layers", metavar="LIST", type=_indices,
    help="Indices of blocks from 0, such as 0,2-4 or -1 for the last.",
)  # fmt: skip
@click.option("--heads", metavar="LIST", type=_indices, help="Indices of heads from 0.")
@click.option(
    "--query", metavar="ROW,COLUMN", type=_patch,
    help="Draw the attention of this patch, not of the class token.",
)  # fmt: skip
@device_option
@force_option
@json_option
def plot_command(
    kind: str,
    model: str,
    images: tuple[Path, ...],
    out: Path,
    weights: str | None,
    untrained: bool,
    image_size: int | tuple[int, int] | None,
    device: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Draw what MODEL has learned, or what it does with IMAGES.

    MODEL is a variant, VARIANT:WEIGHTS, a path or hf://OWNER/REPO: see
    docs/create.md#which-network. IMAGES are files or folders (with subfolders, without
    hidden files). The same call on the same device writes the same bytes. Printed is the path of
    the file; --json adds names, shapes and ranges of the numbers that are drawn. vitzoo.plot in
    Python returns the numbers.

    \b
    KIND is one of:
      filters             principal components of the patch projection
      positions           similarity of the position of each patch with all others
      attention-distance  mean distance over which each head attends, over IMAGES
      attention           attention of the class token over one image, by head
      rollout             attention of all blocks, multiplied, over each image
      tokens              principal components of the patch tokens as colours

    \b
    Examples:
      vitzoo plot filters vit_b16 --out filters.png
      vitzoo plot attention vit_digits digit.png --layers -1 --out a.svg
      vitzoo plot attention-distance vit_b16 photos/ --out distance.png
      vitzoo plot positions vit_b16 --untrained --image-size 224x336 --out p.png
    """
    if untrained and weights is not None:
        raise click.UsageError("--untrained loads no weights; leave --weights out")
    # All of this comes before torch is imported, and before a download.
    check_figure(out, force=force)
    check_kind(kind, [name for name, value in options.items() if value is not None])
    check(model, weights)
    check_there(images)
    if not any(path.is_dir() for path in images):
        check_count(kind, len(images))
    from vitzoo.plugin.requirements import check_extra

    check_extra("plot", "vitzoo plot")
    from vitzoo.images.find import find_images

    files = find_images(images)
    check_count(kind, len(files))
    from vitzoo.apps.plot.plot import plot
    from vitzoo.apps.predict.given import opened
    from vitzoo.network.device import label

    network = opened(
        model, pretrained=not untrained, weights=weights, image_size=image_size, device=device
    )
    say(f"{network.load_report.summary()}; on {label(next(network.parameters()).device)}")
    drawn = plot(kind, network, files, **options)
    drawn.save(out, force=force)
    rows = [
        {"array": name, "shape": list(array.shape)}
        | {
            "least": array.min().item() if array.size else None,
            "most": array.max().item() if array.size else None,
        }
        for name, array in drawn.arrays.items()
    ]
    data = {"out": str(out), "kind": kind, "arrays": rows}
    print_rows([data], ("out",), as_json=as_json, only="out", data=data)
