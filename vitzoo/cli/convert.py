"""`vitzoo convert`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from vitzoo.cli.output import json_option, print_json, print_rows

COLUMNS = ("target", "written", "kept", "renamed", "transposed", "split", "stacked")


@click.command("convert")
@click.argument("source", metavar="IN")
@click.option("--to", required=True, metavar="FORMAT", help="Layout to write; see docs/formats.md.")
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option("--heads", type=int, help="Attention heads, where IN does not say and FORMAT asks.")
@click.option("--variant", metavar="NAME", help="Registered network that IN belongs to.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
@json_option
def convert_command(
    source: str,
    to: str,
    target: Path,
    heads: int | None,
    variant: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the weights IN in the layout of another library.

    IN is a safetensors file, an npz file, the index of a sharded one, or a registered NAME or
    NAME:WEIGHTS. OUT ends in .npz for google and big_vision, in .safetensors for the others. It
    is read back and compared bit by bit before it takes its name.

    \b
    Examples:
      vitzoo convert model.safetensors --to timm timm.safetensors
      vitzoo convert ViT-B_16.npz --to transformers_vit model.safetensors
      vitzoo convert vit_b16:augreg_in21k --to google B_16.npz
    """
    from vitzoo.conversion import convert

    done = convert(source, to, target, num_heads=heads, variant=variant, force=force)
    click.echo(
        f"{done.source}: {done.read} tensors in the layout {done.source_format}; "
        f"{done.written} written as {done.target_format}, read back and equal bit by bit",
        err=True,
    )
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        print_json(asdict(done))
    else:
        print_rows([asdict(done)], COLUMNS, pretty=dict.fromkeys(COLUMNS[1:], str))
