"""The command `vitzoo convert`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from vitzoo.apps.convert.checks import check_convert
from vitzoo.cli.networks import check
from vitzoo.cli.options import (
    PATH,
    flag,
    force_option,
    json_option,
)
from vitzoo.cli.output import print_rows, say

COLUMNS = ("target", "written", "kept", "renamed", "transposed", "split", "stacked")


@click.command("convert")
@click.argument("source", metavar="IN")
@click.option("--to", metavar="FORMAT", help="Checkpoint format to write.")
@click.argument("target", metavar="OUT", type=PATH)
@click.option(
    "--heads", type=int, help="Number of attention heads, if vitzoo cannot read it from IN."
)
@click.option("--variant", metavar="NAME", help="Variant whose weights IN contains.")
@click.option("--prefix", metavar="PREFIX", help="Keys of the network, if IN has several networks.")
@flag("--from-pickle", help="Write the tensors of a .pt, .pth or .bin file as safetensors.")
@click.option("--key", metavar="ENTRY", help="Entry of the pickle, such as teacher or a.b.")
@force_option
@json_option
def convert_command(
    source: str,
    to: str | None,
    target: Path,
    heads: int | None,
    variant: str | None,
    prefix: str | None,
    from_pickle: bool,
    key: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Convert weights to another checkpoint format.

    A checkpoint format is the tensor names and axis orders of a library: timm, torchvision,
    transformers_vit, google, vit_jax, big_vision, or one of a plugin. IN is a variant,
    VARIANT:WEIGHTS, a path or hf://OWNER/REPO: see docs/create.md#which-network. OUT ends in .npz
    for google, vit_jax and big_vision, and in .safetensors for all other formats. Without an ending
    it is a folder, for a format that states one. What is written is read back and compared bit by
    bit before it replaces OUT.

    With --from-pickle, IN is a file of torch.save, the index of several, or an hf:// address of
    one. torch's weights-only loader reads it in a process with limits on memory and time, and
    imports no class that it names. OUT gets its tensors under the names of the pickle. Nothing else
    in vitzoo reads a pickle.

    \b
    Examples:
      vitzoo convert model.safetensors --to timm timm.safetensors
      vitzoo convert ViT-B_16.npz --to transformers_vit model.safetensors
      vitzoo convert vit_b16:augreg_in21k --to google B_16.npz
      vitzoo convert a.safetensors --to timm b.safetensors --prefix model_ema.
      vitzoo convert pytorch_model.bin model.safetensors --from-pickle
    """
    others = {"--heads": heads, "--variant": variant, "--prefix": prefix}
    _check(to, others, key, from_pickle=from_pickle)
    check_convert(to, target, force=force)
    check(source)
    from vitzoo.apps.convert.conversion import convert, convert_pickle

    if to is None:
        done, compared = convert_pickle(source, target, key=key, force=force), ""
    else:
        done = convert(
            source, to, target, num_heads=heads, variant=variant, prefix=prefix, force=force
        )
        compared = ", read back and compared: equal"
    say(
        f"{done.source}: read {done.read} tensors of the format {done.source_format}; wrote "
        f"{done.written} tensors of the format {done.target_format} to {target}{compared}",
    )
    for note in done.notes:
        say(f"note: {note}")
    print_rows([done], COLUMNS, as_json=as_json, data=done)


def _check(
    to: str | None, others: Mapping[str, object], key: str | None, *, from_pickle: bool
) -> None:
    """Refuse options that do not belong together."""
    if from_pickle:
        wrong = [name for name, value in {"--to": to, **others}.items() if value is not None]
        if wrong:
            raise click.UsageError(
                f"--from-pickle writes the tensors under their names, without {wrong[0]}; convert "
                "the written file in a second call"
            )
    elif to is None:
        raise click.UsageError("Missing option '--to', or '--from-pickle' for a pickle.")
    elif key is not None:
        raise click.UsageError("--key names an entry of a pickle; pass --from-pickle, too")
