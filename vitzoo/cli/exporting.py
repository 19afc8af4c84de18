"""The commands `vitzoo convert`, `export`, `link` and `push`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from vitzoo.cli.output import (
    PATH,
    check_model,
    check_there,
    complete_names,
    flag,
    force_option,
    json_option,
    print_rows,
    say,
    weights_option,
    weights_or_file_option,
)
from vitzoo.exporting import checks
from vitzoo.files.access import check_folder
from vitzoo.files.folder_manifest import own_files

COLUMNS = ("target", "written", "kept", "renamed", "transposed", "split", "stacked")
EXPORTED = ("folder", "files", "to", "output", "difference")
EXPORTED_INT8 = (*EXPORTED, "cosine", "speed")


@click.command("convert")
@click.argument("source", metavar="IN")
@click.option("--to", metavar="FORMAT", help="Checkpoint format to write.")
@click.argument("target", metavar="OUT", type=PATH)
@click.option(
    "--heads", type=int, help="Number of attention heads, if vitzoo cannot read it from IN."
)
@click.option("--variant", metavar="NAME", help="Variant whose weights IN contains.")
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
    from_pickle: bool,
    key: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Convert weights to another checkpoint format.

    A checkpoint format is a library's naming and layout of the same tensors: timm, torchvision,
    transformers_vit, google, vit_jax, big_vision, or one of a plugin. IN is a safetensors or npz
    file, the index of a sharded checkpoint, or a registered NAME or NAME:WEIGHTS. OUT ends in .npz
    for google, vit_jax and big_vision, and in .safetensors for all other formats. The written file
    is read back and compared bit by bit before it replaces OUT.

    With --from-pickle, IN is a file of torch.save, or its hf:// address. torch's weights-only
    loader reads it in a process with limits on memory and time, and OUT gets its tensors under the
    names of the pickle. Nothing else in vitzoo reads a pickle.

    \b
    Examples:
      vitzoo convert model.safetensors --to timm timm.safetensors
      vitzoo convert ViT-B_16.npz --to transformers_vit model.safetensors
      vitzoo convert vit_b16:augreg_in21k --to google B_16.npz
      vitzoo convert pytorch_model.bin model.safetensors --from-pickle
    """
    _check(to, {"--heads": heads, "--variant": variant}, key, from_pickle=from_pickle)
    checks.check_convert(to, target, force=force)
    check_model(source)
    from vitzoo.exporting.conversion import convert, convert_pickle

    if to is None:
        done, compared = convert_pickle(source, target, key=key, force=force), ""
    else:
        done = convert(source, to, target, num_heads=heads, variant=variant, force=force)
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


@click.command("export")
@click.argument("model", shell_complete=complete_names)
@click.argument("folder", metavar="DIR", type=PATH)
@click.option("--to", type=click.Choice(tuple(checks.EXTRAS)), required=True, help="Kind of file.")
@weights_or_file_option
@click.option(
    "--output",
    type=click.Choice(checks.OUTPUTS),
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
    model: str, folder: Path, to: str, int8: tuple[Path, ...], as_json: bool, **options: Any
) -> None:
    """Write a network for onnxruntime, torch or OpenVINO.

    DIR gets the network (model.onnx, model.pt2, or model.xml with model.bin), preprocessing.json
    and, if the class names are known, labels.json. The network takes batches of any size. It runs
    without vitzoo. MODEL is a variant with published weights, or a file written by vitzoo.save.

    The written file is run with batches of 1, 3 and 8 images before DIR gets its name. The command
    fails, and writes nothing, if an element of the output differs from vitzoo's by more than 1e-4.
    With --int8 it also fails if the cosine with float32 is below 0.999 for a sample image.

    \b
    Examples:
      vitzoo export vit_digits digits --to onnx
      vitzoo export vit_digits digits_int8 --to onnx --int8 scans/
      vitzoo export my_model.safetensors features --to openvino --output pooled
    """
    check_there(int8)
    checks.check_export(to, folder, options["output"], int8=bool(int8), force=options["force"])
    check_model(model, options["weights"])
    from vitzoo.plugin.requirements import check_extra

    check_extra(checks.EXTRAS[to], f"vitzoo export --to {to}")
    from vitzoo.exporting.export import export

    done = export(model, to, folder, int8=int8 or None, **options)
    say(
        f"{model}: wrote {done.folder}; the file, run with batches of "
        f"{', '.join(map(str, done.batches))} images, differs from the network by at most "
        f"{done.difference:.0e} (relative to the larger of 1 and the largest element)"
    )
    if done.speed is not None:
        advice = "recommended here" if done.speed > 1 else "not recommended: export without --int8"
        say(
            f"int8: cosine with float32 at least {done.cosine:.6f}; {done.speed:.2f} times as fast "
            f"as float32 on this machine; {advice}"
        )
    row = vars(done) | {"files": " ".join(done.files), "difference": f"{done.difference:.0e}"}
    columns = EXPORTED if done.speed is None else EXPORTED_INT8
    print_rows([row], columns, as_json=as_json, data=done)


@click.command("link")
@click.argument("name", metavar="NAME", shell_complete=complete_names)
@click.argument("folder", metavar="DIR", type=PATH)
@click.option(
    "--for",
    "library",
    required=True,
    type=click.Choice(("timm", "transformers", "open_clip", "torchvision")),
    help="Library that will load the folder.",
)
@weights_option
@flag("--force", help="Replace the folder if vitzoo wrote it.")
@json_option
def link_command(
    name: str, folder: Path, library: str, weights: str | None, force: bool, as_json: bool
) -> None:
    """Write verified weights to a folder that another library loads.

    NAME is a variant or VARIANT:WEIGHTS. The file of the store is copied if LIBRARY reads its
    checkpoint format, else converted; its sha256 is checked on the way. DIR also gets the configs
    of the library, and vitzoo.json, with which `vitzoo verify DIR` checks the folder again. The
    library itself checks nothing. On stderr is the call that loads the folder.

    \b
    Examples:
      vitzoo link vit_b16 b16 --for timm
      vitzoo link vit_b16:google_in21k_ft_in1k b16 --for transformers
      vitzoo link clip/vit_b32 b32 --for transformers --json
    """
    check_folder(folder.absolute(), own_files(folder), force=force)
    check_model(name, weights)
    from vitzoo.exporting.link import link

    done = link(name, folder, library, weights=weights, force=force)
    how = "copied" if done.copied else "converted"
    say(f"{done.weights}: {how} for {done.library} to {done.folder}; load it with")
    say(f"  {done.call}")
    files = {str(done.folder / file): entry for file, entry in done.files.items()}
    _print_files(done, files, as_json=as_json)


@click.command("push")
@click.argument("model", metavar="MODEL", shell_complete=complete_names)
@click.argument("repo", metavar="OWNER/NAME")
@click.option("--folder", metavar="DIR", type=PATH, help="Keep the folder here.")
@flag("--dry-run", help="Write the folder and upload nothing.")
@click.option(
    "--license", metavar="NAME", help="License of the weights, such as apache-2.0 or cc-by-nc-4.0."
)
@click.option(
    "--for",
    "library",
    type=click.Choice(checks.PUSHED),
    help="Library that loads the folder, too; by default timm, if it has the network.",
)
@click.option("--base-model", multiple=True, metavar="REPO", help="What MODEL was made from.")
@click.option(
    "--dataset", "datasets", multiple=True, metavar="REPO", help="What MODEL was trained on."
)
@flag("--private", help="Make the new repository private.")
@click.option("--message", default="Upload the model with vitzoo", help="Message of the commit.")
@flag("--force", help="Replace DIR if vitzoo wrote it, and commit to a repository that exists.")
@json_option
def push_command(
    model: str, repo: str, folder: Path | None, private: bool, as_json: bool, **options: Any
) -> None:
    """Upload a model with its card to a repository of the Hub.

    MODEL is a file of vitzoo.save, a variant or VARIANT:WEIGHTS. The folder has weights, configs,
    a model card (README.md) and vitzoo.json. vitzoo loads it, and so do timm and transformers if
    they have the network. Every file is hashed again before it is sent. The token comes from
    HF_TOKEN or `hf auth login`, and goes to the Hub alone.

    \b
    Examples:
      vitzoo push a.safetensors acme/birds --license mit --dry-run --folder birds
      vitzoo push a.safetensors acme/birds --license mit --private
      vitzoo push vit_digits acme/digits --for transformers
    """
    checks.check_push(repo, folder, **options)
    check_model(model)
    if not options["dry_run"]:
        from vitzoo.exporting.upload import check_upload

        check_upload(repo)
    from vitzoo.exporting.push import push

    done = push(model, repo, folder=folder, private=private or None, **options)
    say(f"{done.repo}: {done.url}" if done.url else f"{folder}: written, nothing was uploaded")
    _print_files(done, done.files, as_json=as_json)


def _print_files(done: object, files: Mapping[str, tuple[int, str]], *, as_json: bool) -> None:
    """Print size and sha256 of written files, or all of the result as JSON."""
    columns = ("file", "size", "sha256")
    rows = [dict(zip(columns, (file, *entry), strict=True)) for file, entry in files.items()]
    print_rows(rows, columns, as_json=as_json, data=done)
