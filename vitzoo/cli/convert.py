"""The command `vitzoo convert`."""

from __future__ import annotations

from pathlib import Path

import click

from vitzoo.cli.output import force_option, json_option, print_json, print_rows

COLUMNS = ("target", "written", "kept", "renamed", "transposed", "split", "stacked")


@click.command("convert")
@click.argument("source", metavar="IN")
@click.option("--to", required=True, metavar="FORMAT", help="Checkpoint format to write.")
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--heads", type=int, help="Number of attention heads, if vitzoo cannot read it from IN."
)
@click.option("--variant", metavar="NAME", help="Variant whose weights IN contains.")
@force_option
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
    """Convert weights to another checkpoint format.

    A checkpoint format is a library's naming and layout of the same tensors: timm, torchvision,
    transformers_vit, google, big_vision, or one of a plugin. IN is a safetensors or npz file, the
    index of a sharded checkpoint, or a registered NAME or NAME:WEIGHTS. OUT ends in .npz for google
    and big_vision, and in .safetensors for all other formats. The written file is read back and
    compared bit by bit before it replaces OUT.

    \b
    Examples:
      vitzoo convert model.safetensors --to timm timm.safetensors
      vitzoo convert ViT-B_16.npz --to transformers_vit model.safetensors
      vitzoo convert vit_b16:augreg_in21k --to google B_16.npz
    """
    from vitzoo.conversion import convert

    done = convert(source, to, target, num_heads=heads, variant=variant, force=force)
    click.echo(
        f"{done.source}: read {done.read} tensors of the format {done.source_format}; wrote "
        f"{done.written} tensors of the format {done.target_format}, read back and compared: equal",
        err=True,
    )
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        print_json(done)
    else:
        print_rows([done], COLUMNS)
