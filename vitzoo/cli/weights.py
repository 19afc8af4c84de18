"""`vitzoo fetch`, `verify`, `rm`, `import` and `lock`: torch-free."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from vitzoo.cli.environment import set_for_command, without_plugins
from vitzoo.cli.output import echo, json_option, print_json, print_rows
from vitzoo.store.progress import progress

frozen_option = click.option(
    "--frozen", is_flag=True, help="Never write the lock; an unpinned file is an error."
)
weights_option = click.option("--weights", help="Weights name, instead of the default.")
INTEGRITY = 3


@click.command("fetch")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@weights_option
@frozen_option
@click.option("-q", "--quiet", is_flag=True, help="Print the paths only.")
@json_option
def fetch_command(
    names: tuple[str, ...], weights: str | None, frozen: bool, quiet: bool, as_json: bool
) -> None:
    """Bring the verified weights of each NAME into the store.

    NAME is a variant, variant:weights, or hf://owner/repo@revision/file.

    \b
    Examples:
      vitzoo fetch vit_b16
      vitzoo fetch vit_b16 --weights augreg_in21k
      vitzoo fetch vit_b16:augreg_in21k
      vitzoo fetch hf://owner/repo@main/model.safetensors --frozen
    """
    from vitzoo.inventory import fetch

    _freeze(frozen)
    rows = []
    for name in names:
        with progress(name, silent=quiet or as_json) as note:
            path = fetch(name, weights, note)
        rows.append({"name": name, "size": path.stat().st_size, "path": str(path)})
    if as_json:
        print_json(rows)
    elif quiet:
        echo("".join(f"{row['path']}\n" for row in rows), nl=False)
    else:
        print_rows(rows, ("name", "size", "path"), pretty={"size": "{:,}".format})


@click.command("verify")
@click.argument("names", nargs=-1, metavar="[NAME|FILE]...")
@click.option("--all", "everything", is_flag=True, help="Everything in the store, and bundled.")
@json_option
@click.pass_context
def verify_command(
    context: click.Context, names: tuple[str, ...], everything: bool, as_json: bool
) -> None:
    """Hash weights files and compare them with their pins. Opens no socket.

    Exits with 3 if a file is damaged, with 1 if nothing of a NAME is here, or if neither registry
    nor lock names the sha256 of a FILE. Of an index, or of a folder/, every shard is hashed.

    \b
    Examples:
      vitzoo verify --all
      vitzoo verify vit_b16
      vitzoo verify model.safetensors
      vitzoo verify ViT-B_16.npz model.safetensors.index.json
    """
    from vitzoo.inventory import verify

    if everything == bool(names):
        raise click.UsageError("give names or files, or --all")
    named = [verify(name) for name in names]
    found = [row for rows in named for row in rows] if names else verify()
    rows = [asdict(row) for row in found]
    if as_json:
        print_json(rows)
    else:
        columns = ("name", "state", "size", "sha256", "detail")
        print_rows(rows, columns, pretty={"size": "{:,}".format})
    if any(row.state == "damaged" for row in found):
        context.exit(INTEGRITY)
    if any(all(row.state in ("missing", "unpinned") for row in rows) for rows in named):
        context.exit(1)


@click.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--weights", help="Only the weights of this name.")
def rm_command(names: tuple[str, ...], weights: str | None) -> None:
    """Remove all weights of each NAME (a variant, or hf://...) from the store.

    Plugins are left alone, but those that a NAME belongs to.

    \b
    Examples:
      vitzoo rm vit_l16
      vitzoo rm vit_b16 --weights augreg_in21k
    """
    from vitzoo.inventory import remove

    without_plugins(names)
    rows = [{"name": name, "freed": remove(name, weights)} for name in names]
    print_rows(rows, ("name", "freed"), pretty={"freed": "{:,}".format})


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@json_option
def import_command(files: tuple[Path, ...], as_json: bool) -> None:
    """Copy FILEs into the store whose sha256 the registry or the lock names.

    For machines without a network: fetch elsewhere, carry the files, import them.

    \b
    Examples:
      vitzoo import model.safetensors
    """
    from vitzoo.inventory import import_file

    rows = [{"file": str(file), "weights": import_file(file)} for file in files]
    if as_json:
        print_json(rows)
    else:
        shown = [row | {"weights": ", ".join(row["weights"])} for row in rows]
        print_rows(shown, ("file", "weights"))


@click.command("lock")
@click.option("--update", "names", multiple=True, metavar="NAME", help="Trust NAME anew.")
@weights_option
@frozen_option
@json_option
def lock_command(names: tuple[str, ...], weights: str | None, frozen: bool, as_json: bool) -> None:
    """Show the lock file, or request pins from the trusted Hub endpoint again.

    \b
    Examples:
      vitzoo lock
      vitzoo lock --update vit_l16_in21k
    """
    from vitzoo import settings
    from vitzoo.inventory import relock
    from vitzoo.store.lockfile import Lock

    _freeze(frozen)
    without_plugins(names)
    for name in names:
        relock(name, weights)
    pins = Lock(settings.lock_path()).pins()
    rows = [{"source": source, **asdict(pin)} for source, pin in pins.items()]
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ("source", "sha256", "size", "commit", "endpoint"))


def _freeze(frozen: bool) -> None:
    """Forbid writing the lock until the command has ended."""
    if frozen:
        set_for_command("VITZOO_FROZEN", "1")
