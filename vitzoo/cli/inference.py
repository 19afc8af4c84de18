"""The commands `vitzoo predict`, `embed` and `probe`."""

from __future__ import annotations

import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from vitzoo.cli.output import (
    PATH,
    check_model,
    check_there,
    complete_names,
    flag,
    force_option,
    json_option,
    on_terminal,
    print_rows,
    say,
    weights_or_file_option,
)
from vitzoo.errors import InvalidOption
from vitzoo.files.names import SAFETENSORS
from vitzoo.text import UNWRITABLE, is_terminal

if TYPE_CHECKING:
    from vitzoo.errors import ImageError
    from vitzoo.inference.embedding.pipeline import Work
    from vitzoo.inference.predict import Prediction
    from vitzoo.inference.probe import Probe

PICTURES = (".png", ".svg", ".pdf")
MOST_SHOWN = 5  # unreadable images that are named


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
@click.option("--device", help="Device to compute on, such as cpu or cuda.")
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

    The most probable classes of each image are printed. MODEL is a variant with published weights,
    or a file written by vitzoo.save. IMAGES are files or folders; subfolders are not searched. For
    a file that cannot be read, an error is printed; the other images are still classified, and the
    exit code is 1.

    \b
    Examples:
      vitzoo predict vit_digits digit.png
      vitzoo predict vit_digits scans/ --top 3 --json
      vitzoo predict my_model.safetensors photo.jpg
    """
    if top < 1:
        raise InvalidOption(f"--top must be at least 1, got {top}")
    check_model(model, weights)
    unreadable: list[ImageError] = []

    def note(error: ImageError) -> None:
        unreadable.append(error)
        say(f"vitzoo: {error}")

    if not any(map(os.path.lexists, images)):
        check_there(images)  # raises
    from vitzoo.images.decode import find_images

    files = find_images(images, note)  # a missing file is reported before a download
    if not files:
        raise Exit(1)
    from vitzoo.factory import create
    from vitzoo.inference.predict import predict

    saved = Path(model).suffix == SAFETENSORS
    network = create(model, pretrained=not saved, weights=weights, device=device)
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


@click.command("embed")
@click.argument("model", shell_complete=complete_names)
@click.argument("sources", nargs=-1, required=True, metavar="SRC...")
@click.option(
    "--out",
    required=True,
    type=PATH,
    help="Folder for the Parquet files; a new one, or one that is to be completed.",
)
@weights_or_file_option
@click.option(
    "--output",
    "outputs",
    multiple=True,
    default=("pooled",),
    show_default=True,
    help="What to store: pooled, logits, labels, or tokens such as blocks.11. Can be repeated.",
)
@click.option(
    "--vectors",
    default="float32",
    show_default=True,
    type=click.Choice(["float32", "float16"]),
    help="Type of the stored vectors.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Type to compute in; that of the weights if not given.",
)
@click.option("--device", help="Device, such as cpu or cuda: under torchrun that of LOCAL_RANK.")
@click.option("--column", help="Column of Parquet files with the bytes or the paths of images.")
@click.option(
    "--shard",
    metavar="INDEX/COUNT",
    help="Compute one share of the parts, such as 0/4. RANK and WORLD_SIZE (torchrun) and "
    "SLURM_ARRAY_TASK_ID are used if it is not given.",
)
@flag("--extend", help="Add images that were appended to the sources.")
@click.option(
    "--workers",
    type=click.IntRange(1, 4096),
    help="Number of processes; one per CPU core if not given, or 1 on another device.",
)
@click.option(
    "--batch-size",
    default=64,
    show_default=True,
    type=click.IntRange(1, 4096),
    help="Number of images that each process reads ahead. It changes no vector.",
)
@click.option(
    "--chunk",
    type=click.IntRange(1, 4096),
    help="Images in a forward pass; that of the folder, or 8 on a CPU and by a trial on a GPU.",
)
@json_option
def embed_command(
    model: str,
    sources: tuple[str, ...],
    out: Path,
    shard: str | None,
    dtype: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write embeddings of many images to Parquet files.

    Each image is one row, in the order of the sources: key, error, width, height, sha256 of its
    bytes, and one column per --output. An image that cannot be read is a row with its error.

    SRC are folders (with subfolders), images, uncompressed .tar archives, .parquet files, lists
    (.txt) of one path per line, and patterns of these. vitzoo expands * and {000..009}, so quote
    them. MODEL is a variant with published weights, or a file written by vitzoo.save.

    The same command computes only what is missing, also after it was killed. An image has the same
    vector, bit for bit, whatever --batch-size, --workers and --shard are.

    \b
    Examples:
      vitzoo embed vit_digits scans/ --out vectors/
      vitzoo embed vit_b16 'shards/{000..127}.tar' --out v/ --vectors float16
      vitzoo embed vit_b16 a.parquet --out v/ --output pooled --output blocks.11
      torchrun --nproc-per-node 4 -m vitzoo embed vit_b16 photos/ --out vectors/
    """
    chosen = _shard(shard)
    check_there(source for source in sources if not re.search(r"[*?\[{]", source))
    from vitzoo.inference.embedding.out import check_out

    check_out(out.absolute())
    check_model(model, options["weights"])
    from vitzoo.plugin.requirements import check_extra

    check_extra("parquet", "vitzoo embed")
    import torch

    from vitzoo.inference.embed import embed

    with _bar("embed", with_work=True) as on_progress:
        done = embed(
            Path(model) if Path(model).suffix == SAFETENSORS else model,
            sources,
            out,
            dtype=getattr(torch, dtype) if dtype else None,
            shard=chosen,
            on_progress=on_progress,
            **options,
        )
    for line in str(done).splitlines():
        say(line)
    data = asdict(done) | {"folder": str(done.folder), "shares": done.shares}
    del data["broken"]  # stderr names them
    if as_json or not (on_terminal() and is_terminal(sys.stderr)):
        columns = ("folder", "inputs", "errors", "missing", "computed")
        print_rows([data], columns, as_json=as_json, data=data)


def _shard(text: str | None) -> tuple[int, int] | None:
    """Return (index, count) from INDEX/COUNT."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text) if text else None
    if text and not match:
        raise InvalidOption(f"--shard must be INDEX/COUNT, such as 0/4, got {text!r}")
    return (int(match[1]), int(match[2])) if match else None


@contextmanager
def _bar(name: str, *, with_work: bool = False) -> Iterator[Callable[..., None] | None]:
    """Yield a function that shows how many images are done; None if stderr cannot show a bar.

    With `with_work`, the function also takes the work, and shows the rate and the slowest stage.
    """
    from rich import progress
    from rich.console import Console

    from vitzoo.inference.embed import bottleneck

    console = Console(stderr=True)
    if not is_terminal(sys.stderr) or console.is_dumb_terminal:
        yield None
        return
    text, length = progress.TextColumn(name), progress.BarColumn(None if with_work else 40)
    columns = [text, length, progress.MofNCompleteColumn()]
    if with_work:
        text = progress.TextColumn("{task.fields[slowest]}", markup=False)
        columns += [text, progress.TimeRemainingColumn()]
    bar = progress.Progress(*columns, console=console, transient=True)
    task, began = bar.add_task(name, total=None, slowest=""), time.monotonic()

    def show(done: int, total: int, work: Work | None = None) -> None:
        with suppress(*UNWRITABLE):
            rate = f"{done / max(time.monotonic() - began, 1e-3):,.0f}/s"
            slowest = "" if work is None else f"{rate}, waits for {bottleneck(work)}"
            bar.update(task, completed=done, total=total, slowest=slowest)
            bar.start()
            if done == total and not with_work:
                bar.stop()

    try:
        yield show
    finally:
        with suppress(*UNWRITABLE):
            bar.stop()


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
    type=float,
    default=0.2,
    show_default=True,
    help="Share of each class that is drawn for the test if the data has no split.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the random splits.")
@click.option("--image-column", metavar="NAME", help="Column of paths or images in a file.")
@click.option("--label-column", metavar="NAME", help="Column of classes in a file.")
@click.option("--split-column", metavar="NAME", help="Column of train, val and test in a file.")
@click.option("--device", help="Device to compute on, such as cpu or cuda.")
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
    from vitzoo.files.access import check_path, check_target, writing_to
    from vitzoo.plotting.kinds import check_out
    from vitzoo.plugin.requirements import check_extra

    if save:
        check_target(check_path(save), force=force)
    if confusion:
        check_out(confusion, "--confusion", PICTURES, force=force)
        check_extra("plot", "vitzoo probe --confusion")
    if not data.exists():
        raise InvalidOption(
            f"{data}: there is no such folder or file; expected a folder with a folder for each "
            "class, or a .csv, .tsv or .parquet file"
        )
    check_model(model, options["weights"])
    check_extra("probe", "vitzoo probe")
    from vitzoo.inference.probe import probe

    with _bar("images") as progress:
        found = probe(model, data, progress=progress, **options)
    _explain(found)
    _print_scores(found, as_json=as_json)
    if confusion:
        with writing_to(confusion, force=force) as file:
            found.figure().savefig(file, format=confusion.suffix[1:].lower(), dpi=120)
        say(f"wrote {confusion}")
    if save:
        say(f"wrote {found.save(save, force=force)}")
    if found.unreadable:
        raise Exit(1)


def _explain(found: Probe) -> None:
    """Say which images the scores are from."""
    drawn = "drawn at random" if found.random_split else "as the data says"
    say(
        f"{len(found.train)} training and {len(found.test)} test images of {len(found.classes)} "
        f"classes, {drawn}"
    )
    if found.unused:
        say(f"{found.unused} validation images are not used, because there are test images")
    for name, error in found.unreadable[:MOST_SHOWN]:
        say(f"vitzoo: {name}: {error}")
    if found.unreadable:
        one = len(found.unreadable) == 1
        count = "1 image" if one else f"{len(found.unreadable)} images"
        say(f"vitzoo: {count} cannot be read; {'it is' if one else 'they are'} in no score")
    if found.duplicates:
        say(
            f"vitzoo: {found.duplicates} of {len(found.test)} test images have the same bytes as a "
            "training image"
        )
    say(f"logistic regression has C = {found.C:g}, chosen on training images")
    if not found.classifier.converged:
        say("vitzoo: logistic regression did not converge; its accuracy may be too low")


def _print_scores(found: Probe, *, as_json: bool) -> None:
    rows = [score.to_data() for score in found.scores]
    if as_json or not on_terminal():
        columns = ("classifier", "accuracy", "low", "high", "correct", "total")
        print_rows(rows, columns, as_json=as_json, data=found.to_data())
        return
    shown = [
        {
            "classifier": row["classifier"],
            "accuracy": f"{row['accuracy']:.1%}",
            "95 % interval": f"{row['low']:.1%} to {row['high']:.1%}",
            "correct": f"{row['correct']:,} of {row['total']:,}",
        }
        for row in rows
    ]
    print_rows(shown, tuple(shown[0]))
