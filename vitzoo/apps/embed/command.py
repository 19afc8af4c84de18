"""The command `vitzoo embed`."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from vitzoo.cli.completion import complete_names
from vitzoo.cli.networks import check
from vitzoo.cli.options import (
    PATH,
    Choice,
    device_name,
    flag,
    json_option,
    matched,
    weights_or_file_option,
)
from vitzoo.cli.output import on_terminal, print_rows, say
from vitzoo.errors import InvalidOption, VitzooError
from vitzoo.text import is_terminal

NATIVE = "a number of patches, such as --native-size=256; without a number, put it after SRC"


def _patches(value: str | bool) -> int | bool:
    """Read the largest number of patches of an image; True stands for that of the network."""
    return value is True or int(matched(r"[1-9]\d{0,8}", str(value), NATIVE)[0])


class _Embed(click.Command):
    """Refuses `--native-size=-3` as a value; click takes it for another option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for given, after in pairwise([*args, ""]):
            name, _, value = given.partition("=")
            if name == "--native-size" and re.match(r"-\d", value or after):
                _patches(value or after)
        return super().parse_args(ctx, args)


@click.command("embed", cls=_Embed)
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
    type=Choice(["float32", "float16"]),
    help="Type of the stored vectors.",
)
@click.option(
    "--dtype",
    type=Choice(["float32", "bfloat16", "float16"]),
    help="Type to compute in; that of the weights if not given. bfloat16 is fast on CUDA: its "
    "embeddings of vit_digits have a cosine of at least 0.9998 with those in float32 "
    "(measured on the CPU).",
)
@click.option(
    "--device", type=device_name, metavar="NAME",
    help="Device to compute on, such as cpu or cuda:1; cuda is that of LOCAL_RANK under torchrun. "
    "Default: that of a folder with vectors, VITZOO_DEVICE, or a GPU if there is one.",
)  # fmt: skip
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
    help="Images in a forward pass; that of the folder, or 8 on a CPU and by a trial on CUDA.",
)
@click.option(
    "--native-size", is_flag=False, flag_value=True, type=_patches, metavar="[=MAX_PATCHES]",
    help="Let each image keep its aspect ratio, with at most as many patches: by default those "
    "of the network.",
)  # fmt: skip
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

    MODEL is a variant, VARIANT:WEIGHTS, a path or hf://OWNER/REPO: see
    docs/create.md#which-network.

    SRC are folders (with subfolders, without hidden files), images, uncompressed .tar archives,
    .parquet files, lists (.txt) of one path per line, and patterns of these. vitzoo expands * and
    {000..009}, so quote them.

    The same command computes only what is missing, also after Ctrl-C or a kill. An image has the
    same vector, bit for bit, whatever --batch-size, --workers and --shard are.

    \b
    Examples:
      vitzoo embed vit_digits scans/ --out vectors/
      vitzoo embed vit_b16 'shards/{000..127}.tar' --out v/ --vectors float16
      vitzoo embed vit_b16 a.parquet --out v/ --output pooled --output blocks.11
      vitzoo embed vit_b16 photos/ --out vectors/ --native-size=512
      torchrun --nproc-per-node 4 -m vitzoo embed vit_b16 photos/ --out vectors/
    """
    chosen = _shard(shard)
    from vitzoo.apps.embed.out import MANIFEST, check_out, check_outputs
    from vitzoo.apps.embed.sources import check_sources

    found = check(model, options["weights"])  # first: an image may be in the place of the network
    if not os.path.lexists(out / MANIFEST):  # an earlier version counted hidden images, too
        check_sources(sources)
    check_out(out.absolute())
    check_outputs(options["outputs"], found.variant)
    from vitzoo.plugin.requirements import check_extra

    check_extra("parquet", "vitzoo embed")
    import torch

    from vitzoo.apps.embed.embed import embed

    torch_dtype = getattr(torch, dtype) if dtype else None
    try:
        done = embed(model, sources, out, dtype=torch_dtype, shard=chosen, **options)
    except KeyboardInterrupt:
        say(f"vitzoo: interrupted; {_finished(out)}")
        raise
    for line in str(done).splitlines():
        say(line)
    data = asdict(done) | {"folder": str(done.folder), "shares": done.shares}
    data["work"] = done.work._asdict()  # a tuple, which JSON would write as a list
    del data["broken"], data["reasons"]  # stderr names them
    if as_json or not (on_terminal() and is_terminal(sys.stderr)):
        columns = ("folder", "inputs", "errors", "missing", "computed")
        print_rows([data], columns, as_json=as_json, data=data)


def _finished(out: Path) -> str:
    """Return what an interrupted run has left in a folder, and how to continue."""
    from vitzoo.apps.embed.folder import MANIFEST, Manifest

    try:
        manifest = Manifest.read(out / MANIFEST)
    except VitzooError as error:  # the interruption is what is raised
        return str(error)
    if manifest is None:
        return f"nothing is written to {out} yet; the same command begins again"
    parts = list(manifest.parts())
    there = [part for part in parts if (out / part.name).exists()]
    images = sum(part.stop - part.start for part in there)
    return (
        f"{out} has {images:,} of {manifest.count:,} images ({len(there):,} of {len(parts):,} "
        "parts); the same command continues"
    )


def _shard(text: str | None) -> tuple[int, int] | None:
    """Return (index, count) from INDEX/COUNT."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text) if text else None
    if text and not (match and int(match[1]) < int(match[2])):
        raise InvalidOption(f"--shard must be INDEX/COUNT, such as 0/4, got {text!r}")
    return (int(match[1]), int(match[2])) if match else None
