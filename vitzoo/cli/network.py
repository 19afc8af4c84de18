"""The commands `vitzoo summary`, `plot` and `bench`."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from vitzoo.cli.output import (
    PATH,
    check_model,
    check_there,
    complete_names,
    echo,
    flag,
    force_option,
    json_option,
    megabytes,
    on_terminal,
    print_json,
    print_rows,
    say,
    weights_or_file_option,
)
from vitzoo.files.names import SAFETENSORS
from vitzoo.plotting.kinds import KINDS, check_count, check_kind, check_out

IN_LATER_BLOCK = re.compile(r"blocks\.[1-9]\d*\.")


def _matched(pattern: str, value: str, expected: str) -> re.Match[str]:
    """Return how a pattern matches the value of an option; refuse another value."""
    found = re.fullmatch(pattern, value, re.ASCII)
    if not found:
        raise click.BadParameter(f"expected {expected}; got {value!r}")
    return found


def _image_size(value: str) -> int | tuple[int, int]:
    """Read a size in px: one number, or HEIGHTxWIDTH."""
    expected = "a number of px or HEIGHTxWIDTH, such as 224x336"
    height, width = _matched(r"(\d{1,9})(?:[xX](\d{1,9}))?", value, expected).groups()
    return (int(height), int(width)) if width else int(height)


size_option = click.option(
    "--image-size", metavar="PX", type=_image_size, help="Image size in px, or HEIGHTxWIDTH."
)


@click.command("summary")
@click.argument("name", shell_complete=complete_names)
@size_option
@click.option("--num-classes", type=int, help="Number of classes; 0 for a network without a head.")
@click.option("--in-chans", type=int, help="Number of image channels.")
@click.option("--patch-embed", metavar="NAME", help="Patch embedder, such as conv or unfold.")
@click.option("--pos-embed", metavar="NAME", help="Position embedding, such as learned or rope.")
@click.option(
    "--pool", metavar="NAME", help="Use the registered pool of this name, such as class or mean."
)
@click.option(
    "--head", metavar="NAME", help="Use the registered head of this name, such as linear or mlp."
)
@click.option(
    "--batch-size",
    type=click.IntRange(1, 65_536),
    default=1,
    show_default=True,
    help="Images per batch.",
)
@flag("--all", "every", help="Show the layers of every block, not only of one.")
@json_option
def summary_command(
    name: str, batch_size: int, every: bool, as_json: bool, **arguments: Any
) -> None:
    """Show the layers of a network: shapes, operations and memory.

    NAME is a variant, or a file (.toml or .json) with a spec, that is, the description of a
    network. The options change the network. No weights are loaded and no memory is allocated for
    parameters.

    \b
    Examples:
      vitzoo summary vit_b16
      vitzoo summary vit_b16 --image-size 256
      vitzoo summary vit_b16 --image-size 224x336
      vitzoo summary vit_h14 --all --json
    """
    from vitzoo.factory import create
    from vitzoo.summary import summarize

    summary = summarize(create(name, device="meta", **arguments), batch_size)
    if as_json:
        print_json(summary)
        return
    layers = [
        {"layer": layer.name, "kind": layer.kind, "params": layer.params}
        | {"output": "x".join(map(str, layer.output)) or None}
        for layer in summary.layers
        if every or not IN_LATER_BLOCK.match(layer.name)
    ]
    print_rows(layers, ("layer", "kind", "output", "params"))
    echo()
    terms = [asdict(term) | {"sum": term.weights + term.biases} for term in summary.terms]
    columns = ("weights", "biases", "sum")
    terms.append({"name": "total"} | {key: sum(term[key] for term in terms) for key in columns})
    print_rows(terms, ("name", *columns))
    echo()
    title = "without biases and norms"
    print_rows([{title: name, "weights": n} for name, n in summary.by_hand], (title, "weights"))
    echo()
    macs = summary.flops // 2
    if on_terminal():
        echo(
            f"{macs / 10**9:.4g} GMACs, peak memory of activations: "
            f"{megabytes(summary.activations)} in fp32"
        )
        return
    costs = {"matmul FLOPs": summary.flops, "MACs": macs, "activation bytes": summary.activations}
    echo("\t".join(f"{what}: {n}" for what, n in costs.items()))


RANGE = re.compile(r"(-?\d+)(?:-(\d+))?", re.ASCII)


def _indices(value: str) -> list[int]:
    """Read indices from 0: numbers and ranges with commas, such as 0,2-4,-1."""
    pattern = r"-?\d{1,4}(?:-\d{1,4})?(?:,-?\d{1,4}(?:-\d{1,4})?)*"
    expected = "indices such as 0,2-4 or -1 for the last"
    found: list[int] = []
    for first, last in RANGE.findall(_matched(pattern, value, expected)[0]):
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise click.BadParameter(f"expected {expected}; got {value!r}")
    return found


def _patch(value: str) -> tuple[int, int]:
    """Read the row and the column of a patch."""
    found = _matched(r"(\d{1,5}),(\d{1,5})", value, "ROW,COLUMN of a patch, such as 0,5")
    return int(found[1]), int(found[2])


@click.command("plot")
@click.argument("kind", metavar="KIND", type=click.Choice(tuple(KINDS)))
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
@click.option("--device", help="Device to compute on, such as cpu or cuda.")
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

    MODEL is a variant with published weights, or a file written by vitzoo.save. IMAGES are files or
    folders; subfolders are not searched. The same call writes the same bytes. Printed are names,
    shapes and ranges of the numbers that are drawn; vitzoo.plot in Python returns the numbers.

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
    check_out(out, force=force)
    check_kind(kind, [name for name, value in options.items() if value is not None])
    check_there(images)
    if not any(path.is_dir() for path in images):
        check_count(kind, len(images))
    check_model(model, weights)
    from vitzoo.plugin.requirements import check_extra

    check_extra("plot", "vitzoo plot")
    from vitzoo.factory import create
    from vitzoo.images.decode import find_images
    from vitzoo.plotting.plot import plot

    files = find_images(images)
    check_count(kind, len(files))
    saved = Path(model).suffix == SAFETENSORS
    pretrained = not (untrained or saved)
    network = create(
        model, pretrained=pretrained, weights=weights, image_size=image_size, device=device
    )
    say(network.load_report.summary())  # type: ignore[union-attr]
    drawn = plot(kind, network, files, **options)
    say(f"wrote {drawn.save(out, force=force)}")
    rows = [
        {"array": name, "shape": list(array.shape)}
        | {
            "least": array.min().item() if array.size else None,
            "most": array.max().item() if array.size else None,
        }
        for name, array in drawn.arrays.items()
    ]
    shown = [row | {"shape": "x".join(map(str, row["shape"]))} for row in rows]  # type: ignore[arg-type]
    pretty = dict.fromkeys(("least", "most"), "{:.6g}".format)
    data = {"out": str(out), "kind": kind, "arrays": rows}
    print_rows(shown, ("array", "shape", *pretty), as_json=as_json, data=data, pretty=pretty)


WAYS = (
    "eager", "compile", "freeze", "bf16", "onnxruntime", "openvino", "torchao", "ort-int8",
    "timm", "timm-compile", "timm-bf16",
)  # fmt: skip
BENCH = (
    "way", "batch", "images_per_second", "ratio", "memory", "cosine", "top1",
)  # fmt: skip


def _names(value: str) -> list[str]:
    """Read names with commas."""
    return [name.strip() for name in value.split(",")]


def _sizes(value: str) -> list[int]:
    """Read numbers with commas."""
    expected = "numbers of images such as 1,8"
    found = _matched(r"\d{1,9}(,\d{1,9})*", value, expected)
    return [int(number) for number in found[0].split(",")]


@click.command("bench")
@click.argument("model", default="vit_digits", shell_complete=complete_names)
@weights_or_file_option
@flag("--untrained", help="Load no weights: measure with random ones.")
@click.option(
    "--ways", metavar="LIST", type=_names,
    help=f"Ways to measure, with commas: {', '.join(WAYS)}. Default: see above.",
)  # fmt: skip
@click.option(
    "--batch", "batches", metavar="LIST", default="1,8", show_default=True, type=_sizes,
    help="Images in a batch.",
)  # fmt: skip
@click.option(
    "--images", multiple=True, metavar="PATH", type=PATH,
    help="Image or folder on which outputs are compared; may be repeated.",
)  # fmt: skip
@click.option("--rounds", default=9, show_default=True, help="Turns of each way, at least 6.")
@click.option("--seconds", default=30.0, show_default=True, help="Time of all turns together.")
@click.option("--device", help="Device to compute on, such as cpu or cuda.")
@json_option
def bench_command(model: str, images: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Measure the ways to run MODEL here, and recommend the best.

    MODEL is a variant with published weights, or a file written by vitzoo.save; vit_digits, which
    is part of vitzoo, if it is left out. Each way runs in a process of its own, and all take turns.
    Printed are images per second, how much faster than eager that is (both with 95 % intervals),
    peak memory beyond that of an empty process, and the agreement with eager: the smallest cosine
    of the outputs, and the part of the images with the same best class.

    A way is recommended if it is at least 1.1x as fast at the lower end of the interval, with a
    cosine of at least 0.999. A way that fails is a line with its cause. On the CPU, all installed
    ways but timm's are measured. On a GPU, these are eager, compile, bf16 and timm's.

    \b
    Examples:
      vitzoo bench
      vitzoo bench vit_b16 --images photos/
      vitzoo bench vit_s16 --untrained --batch 1,32 --ways compile,freeze
      vitzoo bench vit_digits --batch 8 --ways compile --rounds 6 --seconds 3
      vitzoo bench vit_b16 --device cuda --batch 64 --json
    """
    check_there(images)
    check_model(model, options["weights"])
    from vitzoo.benchmarking.bench import bench

    done = bench(model, images=images or None, on_progress=say, **options)
    for line in done.left_out:
        say(f"not measured: {line}")
    if as_json:
        print_json(done)
        return
    rows = [asdict(row) for row in done.rows]
    _print_bench(rows)
    say(f"weights: {done.weights}; compared on {done.images}; {done.threads} thread(s)")
    for line in done.advice:
        say(line)


def _print_bench(rows: list[dict[str, Any]]) -> None:
    """Print the rows; on a terminal with intervals in brackets, and failures below."""
    if not on_terminal():
        for row in rows:
            for name in ("images_per_second", "ratio"):
                low, high = row.pop(f"{name}_interval") or (None, None)
                row |= {f"{name}_low": low, f"{name}_high": high}
        columns = [key for key in rows[0] if key not in BENCH]
        print_rows(rows, (*BENCH, *columns))
        return
    from vitzoo.benchmarking.results import five_digits

    shown = [
        {
            "way": row["way"],
            "batch": row["batch"],
            "images/s": _spread(row, "images_per_second"),
            "x of eager": _spread(row, "ratio"),
            "MiB": None if row["memory"] is None else round(row["memory"] / 2**20),
            "cosine": five_digits(row["cosine"]),
            "top-1": None if row["top1"] is None else f"{row['top1']:.0%}",
        }
        for row in rows
        if not row["error"]
    ]
    print_rows(shown, tuple(shown[0]))
    for row in rows:
        if row["error"]:
            say(f"{row['way']} failed: {row['error']}")


def _spread(row: dict[str, Any], name: str) -> str:
    """Write a median with its interval, each with three digits."""
    median, low, high = (
        f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
        for value in (row[name], *row[f"{name}_interval"])
    )
    return f"{median} ({low}-{high})"
