"""The command `vitzoo bench`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vitzoo.cli.completion import complete_names
from vitzoo.cli.networks import check
from vitzoo.cli.options import (
    PATH,
    Choice,
    check_there,
    device_option,
    flag,
    json_option,
    matched,
    weights_or_file_option,
)
from vitzoo.cli.output import on_terminal, print_json, print_rows, say

if TYPE_CHECKING:
    from vitzoo.apps.bench.results import Measurement

WAYS = (
    "eager", "compile", "freeze", "bf16", "onnxruntime", "openvino", "torchao", "ort-int8",
    "timm", "timm-compile", "timm-bf16",
)  # fmt: skip
BENCH = (
    "way", "batch", "images_per_second", "ratio", "memory", "cosine", "top1",
)  # fmt: skip


def _names(value: str) -> list[str]:
    """Read names of ways with commas."""
    return [Choice(WAYS).convert(name.strip(), None, None) for name in value.split(",")]


def _sizes(value: str) -> list[int]:
    """Read numbers with commas."""
    expected = "numbers of images such as 1,8"
    found = matched(r"\d{1,9}(,\d{1,9})*", value, expected)
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
    "--batch", "batches", metavar="LIST", type=_sizes,
    help="Images in a batch, such as 1,8. Default: 1 and 8; on CUDA, 1 and up to 256 that fit.",
)  # fmt: skip
@click.option(
    "--images", multiple=True, metavar="PATH", type=PATH,
    help="Image or folder on which outputs are compared; may be repeated.",
)  # fmt: skip
@click.option(
    "--rounds", type=int,
    help="Measurements of each way, at least 6. Default: 9, or 6 with --quick.",
)  # fmt: skip
@click.option(
    "--seconds", type=float,
    help="Time of all measurements together. Default: 30, or 6 with --quick.",
)  # fmt: skip
@flag("--quick", help="Leave out the ways that compile, OpenVINO and int8, unless --ways has them.")
@device_option
@json_option
def bench_command(model: str, images: tuple[Path, ...], as_json: bool, **options: Any) -> None:
    """Measure the ways to run MODEL here, and recommend the best.

    MODEL is a variant, VARIANT:WEIGHTS, a path or hf://OWNER/REPO: see
    docs/create.md#which-network. Without it, vit_digits is measured, which is part of vitzoo.

    Each way runs in a separate process, and the ways are measured alternately. Printed are images
    per second, how much faster than eager that is (both with 95 % intervals), peak memory beyond
    that of an empty process, and the agreement with eager: the smallest cosine of the outputs, and
    the part of the images with the same best class.

    A way is recommended if it is at least 1.1x as fast at the lower end of the interval, with a
    cosine of at least 0.999. A way that fails is a line with its cause. On the CPU, all installed
    ways but timm's are measured. On a GPU, these are eager, compile, bf16 and timm's. The first
    line on stderr says what is measured and about how long. A small network takes some minutes,
    and with --quick less than one: then eager, bf16 and onnxruntime are measured on the CPU.

    \b
    Examples:
      vitzoo bench
      vitzoo bench vit_b16 --quick
      vitzoo bench vit_b16 --images photos/
      vitzoo bench vit_s16 --untrained --batch 1,32 --ways compile,freeze
      vitzoo bench vit_digits --batch 8 --ways compile --rounds 6 --seconds 3
      vitzoo bench vit_b16 --device cuda --batch 64 --json
    """
    check_there(images)
    check(model, options["weights"])
    import torch

    from vitzoo.apps.bench.bench import bench
    from vitzoo.network.device import label

    def tell(_: int, __: int, text: str) -> None:
        if text and text not in WAYS:  # a sentence, which stays; the bar has the names
            say(text)

    done = bench(model, images=images or None, on_progress=tell, **options)
    for line in done.left_out:
        say(f"not measured: {line}")
    if as_json:
        print_json(done)
        return
    _print_bench(done.rows)
    place = label(torch.device(done.device))
    how = f"{done.threads} thread(s) on {place}"
    say(f"weights: {done.weights}; compared on {done.images}; {how}")
    if done.identity:
        say(f"network {done.identity.rpartition(':')[0]}")
    for line in done.advice:
        say(line)


def _print_bench(found: Sequence[Measurement]) -> None:
    """Print the rows; on a terminal with intervals in brackets, and failures below."""
    if not on_terminal():
        rows = [asdict(row) for row in found]
        for data in rows:
            for name in ("images_per_second", "ratio"):
                low, high = data.pop(f"{name}_interval") or (None, None)
                data |= {f"{name}_low": low, f"{name}_high": high}
        columns = [key for key in rows[0] if key not in BENCH]
        print_rows(rows, (*BENCH, *columns))
        return
    shown = [row.shown() for row in found if not row.error]
    print_rows(shown, tuple(shown[0]))
    for row in found:
        if row.error:
            say(f"{row.way} failed: {row.error}")
