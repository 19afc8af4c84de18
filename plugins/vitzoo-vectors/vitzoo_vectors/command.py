"""The command `vitzoo check-vectors`; torch-free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vitzoo import cli
from vitzoo.errors import ExitCode
from vitzoo_vectors.check import ANOTHER, NOT_APART, NOT_STATED, ROWS, SAME_NETWORK, check_vectors

COLUMNS = ("answer", "distance", "compared", "vectors", "stored", "now")
CODES = {ANOTHER: ExitCode.DAMAGED, NOT_STATED: ExitCode.FAILED, NOT_APART: ExitCode.FAILED}
COUNT = click.IntRange(min=1)


@click.command("check-vectors")
@click.argument("place", metavar="PLACE")
@click.argument("model", required=False, shell_complete=cli.complete_names)
@click.option("--output", default="pooled", show_default=True, help="Output that is stored.")
@click.option("--normalised", is_flag=True, help="The identity is of vectors of length 1.")
@click.option("--images", multiple=True, type=cli.PATH, help="Images of the vectors; a folder.")
@click.option("--column", default="", help="Name of the column, tensor or vector.")
@click.option("--rows", default=ROWS, show_default=True, type=COUNT, help="Vectors to compare.")
@click.option("--all", "every", is_flag=True, help="Compare all vectors.")
@click.option("--strict", is_flag=True, help="Exit with 1 for other numerics.")
@cli.weights_option
@cli.device_option
@cli.json_option
def check_vectors_command(
    place: str, model: str | None, images: tuple[Path, ...], rows: int, **options: Any
) -> None:
    """Say whether the vectors in PLACE are from the network MODEL.

    PLACE is a folder of vitzoo embed, a file (.parquet, .safetensors, .npy, .faiss,
    .lance) or a collection:

    \b
      qdrant:FOLDER#COLLECTION    qdrant:http://HOST:6333#COLLECTION
      chroma:FOLDER#COLLECTION    chroma:http://HOST:8000#COLLECTION
      lancedb:FOLDER#TABLE        postgresql://USER@HOST/DATABASE#TABLE

    QDRANT_API_KEY and PGPASSWORD may have the password. If no identity is stored, --images compares
    the vectors with those of their images.

    Exit codes: 0 same network, 1 not stated, 2 wrong usage, 3 another network, 4 no connection.

    \b
    Examples:
      vitzoo check-vectors embeddings vit_b16
      vitzoo check-vectors qdrant:http://localhost:6333#photos vit_b16 --strict
      vitzoo check-vectors old.npy vit_b16 --images photos --all
    """
    every, strict, as_json = (options.pop(name) for name in ("every", "strict", "as_json"))
    if model is not None:
        cli.check_network(model, options["weights"])
    options |= {"images": cli.image_files(images).paths if images else ()}
    found = check_vectors(place, model, rows=None if every else rows, **options)
    if found.note:
        cli.say(f"vitzoo: {found.note}")
    cli.print_rows([found], COLUMNS, as_json=as_json)
    code = CODES.get(found.answer, 0)
    if code or (strict and found.answer == SAME_NETWORK):
        click.get_current_context().exit(code or ExitCode.FAILED)
