"""The command `vitzoo export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vitzoo.apps.export.checks import EXTRAS, OUTPUTS, check_export, kind_of
from vitzoo.cli.completion import complete_names
from vitzoo.cli.networks import check
from vitzoo.cli.options import (
    PATH,
    Choice,
    check_there,
    flag,
    json_option,
    weights_or_file_option,
)
from vitzoo.cli.output import print_rows, say

EXPORTED = ("folder", "files", "to", "output", "difference")
EXPORTED_INT8 = (*EXPORTED, "cosine", "speed")


@click.command("export")
@click.argument("model", shell_complete=complete_names)
@click.argument("folder", metavar="DIR", type=PATH)
@click.option(
    "--to", type=Choice(tuple(EXTRAS)),
    help="Kind of file; onnx, unless DIR ends in .pt2 (torch) or .xml (openvino).",
)  # fmt: skip
@weights_or_file_option
@click.option(
    "--output",
    type=Choice(OUTPUTS),
    default="logits",
    show_default=True,
    help="What the file computes: logits, or the features that the head reads.",
)
@click.option(
    "--int8",
    metavar="IMAGES",
    multiple=True,
    type=PATH,
    help="Quantise to int8, and compare on these sample images (a file or a folder; repeatable).",
)
@flag("--force", help="Replace DIR if an earlier export wrote it.")
@json_option
def export_command(
    model: str, folder: Path, to: str | None, int8: tuple[Path, ...], as_json: bool, **options: Any
) -> None:
    """Write a network for onnxruntime, torch or OpenVINO.

    DIR gets the network (model.onnx, model.pt2, or model.xml with model.bin), preprocessing.json
    and, if the class names are known, labels.json. The network takes batches of any size. It runs
    without vitzoo.

    MODEL is a variant, VARIANT:WEIGHTS, a path or hf://OWNER/REPO: see
    docs/create.md#which-network.

    The written file is run with batches of 1, 3 and 8 images before DIR gets its name. The command
    fails, and writes nothing, if an element of the output differs from vitzoo's by more than 1e-4.
    With --int8 it also fails if the cosine with float32 is below 0.999 for a sample image.

    \b
    Examples:
      vitzoo export vit_digits digits
      vitzoo export vit_digits digits_int8 --int8 scans/
      vitzoo export my_model.safetensors features --to openvino --output pooled
    """
    check_there(int8)
    to = kind_of(folder, to)
    check_export(to, folder, options["output"], int8=bool(int8), force=options["force"])
    check(model, options["weights"])
    from vitzoo.plugin.requirements import check_extra

    check_extra(EXTRAS[to], f"vitzoo export --to {to}")
    from vitzoo.apps.export.export import export

    done = export(model, to, folder, int8=int8 or None, **options)
    say(
        f"{model}: wrote {done.folder / done.files[0]}; the file, run with batches of "
        f"{', '.join(map(str, done.batches))} images, differs from the network by at most "
        f"{done.difference:.0e} (relative to the larger of 1 and the largest element)"
    )
    if done.identity:
        network = done.identity.rpartition(":")[0]  # as on any machine; JSON has all of it
        far = f"; distance of the file to its canary {done.canary:.0e}"
        say(f"network {network}{far if done.canary is not None else ''}")
    if done.speed is not None:
        advice = "recommended here" if done.speed > 1 else "not recommended: export without --int8"
        say(
            f"int8: cosine with float32 at least {done.cosine:.6f}; {done.speed:.2f} times as fast "
            f"as float32 on this machine; {advice}"
        )
    row = vars(done) | {"files": " ".join(done.files), "difference": f"{done.difference:.0e}"}
    columns = EXPORTED if done.speed is None else EXPORTED_INT8
    print_rows([row], columns, as_json=as_json, data=done)
