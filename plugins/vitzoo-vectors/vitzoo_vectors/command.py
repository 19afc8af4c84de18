"""The command `vitzoo check-vectors`; torch-free."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from vitzoo import cli
from vitzoo.errors import ExitCode
from vitzoo_vectors.check import ANOTHER, NOT_APART, NOT_STATED, ROWS, SAME_NETWORK, check_vectors

COLUMNS = ("answer", "stored", "now", "distance", "compared", "vectors")
CODES = {ANOTHER: ExitCode.DAMAGED, NOT_STATED: ExitCode.FAILED, NOT_APART: ExitCode.FAILED}
COUNT = click.IntRange(min=1)
DTYPES = ("float32", "bfloat16", "float16")


@click.command("check-vectors")
@click.argument("place", metavar="PLACE")
@click.argument("model", required=False, shell_complete=cli.complete_names)
@click.option("--output", default="pooled", show_default=True, help="Output that is stored.")
@click.option("--normalised", is_flag=True, help="The identity is of vectors of length 1.")
@click.option("--images", multiple=True, type=cli.PATH, help="Images of the vectors; a folder.")
@click.option("--column", default="", help="Name of the column, tensor or vector.")
@click.option("--key", default="", help="Column, or entry of the payload, with names of images.")
@click.option("--rows", show_default=str(ROWS), type=COUNT, help="Vectors to compare.")
@click.option("--all", "every", is_flag=True, help="Compare all vectors.")
@click.option("--strict", is_flag=True, help="Exit with 1 for other numerics.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Type of the parameters of MODEL.")
@click.option("--chunk", type=COUNT, help="Images of a forward pass of MODEL.")
@cli.weights_option
@cli.device_option
@cli.json_option
def check_vectors_command(
    place: str, model: str | None, images: tuple[Path, ...], rows: int | None, **options: Any
) -> None:
    """Say whether the vectors in PLACE are from the network MODEL, or of its identity (vz1:...).

    PLACE is a folder of vitzoo embed, a file (.parquet, .safetensors, .npy, .faiss,
    .lance) or a collection:

    \b
      qdrant:FOLDER#COLLECTION    qdrant:http://HOST:6333#COLLECTION
      chroma:FOLDER#COLLECTION    chroma:http://HOST:8000#COLLECTION
      lancedb:FOLDER#TABLE        postgresql://USER@HOST/DATABASE#TABLE

    QDRANT_API_KEY, CHROMA_API_KEY and PGPASSWORD may have the password; CHROMA_TENANT and
    CHROMA_DATABASE are those of Chroma. The identity is in the metadata of a collection or a file,
    in the comment of a column of PostgreSQL, or in FILE.vitzoo.json.

    --images compares the vectors with those of their images: by the names that are stored (--key),
    or in the order of the paths, if there are none. The end of a path, such as the name of the
    file, is enough if only one image has it.

    Exit codes: 0 same network, same vectors, or an identity without MODEL, 1 not stated, not told
    apart, damaged, or nothing or not all could be compared, 2 wrong usage, 3 another network, 4 no
    connection.

    \b
    Examples:
      vitzoo check-vectors embeddings vit_b16
      vitzoo check-vectors qdrant:http://localhost:6333#photos vit_b16 --strict
      vitzoo check-vectors old.npy vit_b16 --images photos --all
    """
    every, strict, as_json = (options.pop(name) for name in ("every", "strict", "as_json"))
    for wrong, why in (
        (
            (rows or every) and not images,
            "--rows and --all need --images; add it, or leave them out",
        ),
        (rows and every, "--rows and --all exclude each other; leave one out"),
        (strict and model is None, "--strict needs MODEL; name it, or leave --strict out"),
    ):
        if wrong:
            raise click.UsageError(why)
    if model is not None and not model.startswith("vz1:"):
        cli.check_network(model, options["weights"])
    if model is not None and options["dtype"]:
        import torch

        options["dtype"] = getattr(torch, options["dtype"])
    options = {name: value for name, value in options.items() if value is not None}
    options["rows"] = None if every else rows or ROWS
    found = check_vectors(place, model, images=images, **options)
    if found.distance is not None:
        found = replace(found, distance=float(f"{found.distance:.2g}"))
    if found.note:
        cli.say(f"vitzoo: {found.note}")
    cli.print_rows([found], COLUMNS, as_json=as_json)
    code, incomplete = CODES.get(found.answer, 0), found.left_out or (images and not found.compared)
    if code or incomplete or (strict and found.answer == SAME_NETWORK):
        click.get_current_context().exit(code or ExitCode.FAILED)
