"""The commands `vitzoo fetch`, `verify`, `rm`, `import` and `lock`; torch-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.exceptions import Exit

from vitzoo import settings
from vitzoo.cli.completion import complete_names
from vitzoo.cli.environment import set_for_command, verbose_option, without_plugins
from vitzoo.cli.options import PATH, flag, json_option, weights_option
from vitzoo.cli.output import print_rows, say, say_error
from vitzoo.errors import ExitCode, IntegrityError, VitzooError
from vitzoo.progress import each_download
from vitzoo.store.lockfile import Lock

URGENCY = ("damaged", "conflict", "missing", "unpinned", "ok")  # states of `verify`, worst first
ABSENT = ("missing", "unpinned")


def _freeze(_: click.Context, __: click.Parameter, frozen: bool) -> None:
    if frozen:
        set_for_command("VITZOO_FROZEN", "1")


frozen_option = flag(
    "--frozen",
    expose_value=False,
    callback=_freeze,
    help="Do not write to the lock file; a file without a pin is an error.",
)


@click.command("fetch")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_names)
@weights_option
@frozen_option
@flag("--from-hub-cache", help="Copy from the cache of huggingface_hub, without a network.")
@flag("-q", "--quiet", help="Print only the paths of the files.")
@verbose_option
@json_option
def fetch_command(
    names: tuple[str, ...], weights: str | None, from_hub_cache: bool, quiet: bool, as_json: bool
) -> None:
    """Download the weights of each NAME and check their sha256.

    NAME is a variant, VARIANT:WEIGHTS, or hf://OWNER/REPO@REVISION/FILE. The files are kept in the
    store, the folder $VITZOO_HOME (~/.cache/vitzoo if not set). A file whose sha256 the registry
    does not state is trusted on first use: its sha256 is requested from the Hub and recorded in the
    lock file, and it must match from then on.

    Up to four files are downloaded at the same time. If one fails, the others are still downloaded
    and printed, and the command fails at the end. After Ctrl-C, the same command continues.

    \b
    Examples:
      vitzoo fetch vit_b16
      vitzoo fetch vit_b16 vit_l16
      vitzoo fetch vit_b16 --weights augreg_in21k
      vitzoo fetch vit_b16:augreg_in21k
      vitzoo fetch hf://owner/repo@main/model.safetensors --frozen
    """
    from vitzoo.inventory import fetch_each

    with each_download(silent=quiet or as_json) as show:
        found = fetch_each(names, weights, show, from_hub_cache=from_hub_cache)
    rows = [
        {"name": name, "size": path.stat().st_size, "path": str(path)}
        for name, path in zip(names, found, strict=True)
        if isinstance(path, Path)
    ]
    if rows:
        only = "path" if quiet else ""
        print_rows(rows, ("name", "size", "path"), as_json=as_json, only=only)
    _report(found)


def _report(found: Iterable[object]) -> None:
    """Raise the error among results; print several, and exit with the code of the worst."""
    failures = list(dict.fromkeys(error for error in found if isinstance(error, VitzooError)))
    if len(failures) > 1:
        for error in failures:
            say_error(error)
        damaged = any(isinstance(error, IntegrityError) for error in failures)
        raise Exit(ExitCode.DAMAGED if damaged else failures[0].exit_code)
    for error in failures:
        raise error


@click.command("verify")
@click.argument("names", nargs=-1, metavar="[NAME|FILE]...", shell_complete=complete_names)
@flag("--all", "everything", help="Check all files in the store and all bundled files.")
@json_option
def verify_command(names: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Compare weights files with their recorded sha256.

    No network is used. Give variants, weights files, or --all. For an index or a folder of shards,
    every shard is checked; for a folder of `vitzoo link` or `vitzoo push`, every file. Problems are
    listed first, and stderr gets a line with the number of files in each state.

    The exit code is 3 if a file is damaged, or if the registry and the lock file contradict each
    other about a file. It is 1 if the weights of a given NAME are not on this machine, or if no
    sha256 of a given FILE is known. It is also 1 if a given file is missing, or a file that an
    index, a vitzoo.json or an installed package should have.

    \b
    Examples:
      vitzoo verify --all
      vitzoo verify vit_b16
      vitzoo verify model.safetensors
      vitzoo verify ViT-B_16.npz model.safetensors.index.json
    """
    from vitzoo.inventory import verify

    if everything == bool(names):
        raise click.UsageError("give names or files, or --all without them")
    named = [verify(name) for name in names]
    found = [row for rows in named for row in rows] if names else verify()
    found.sort(key=lambda row: URGENCY.index(row.state))
    print_rows(found, ("name", "state", "size", "sha256", "detail"), as_json=as_json)
    states = Counter[str](row.state for row in found)
    each = ", ".join(f"{states[state]} {state}" for state in reversed(URGENCY) if states[state])
    say(f"{len(found)} file{'s' if len(found) != 1 else ''}: {each or 'nothing to check'}")
    if states["damaged"] or states["conflict"]:
        raise Exit(ExitCode.DAMAGED)
    # A file that was never fetched has no path; with --all, only bundled files can be missing.
    incomplete = any(row.state == "missing" and (row.path or everything) for row in found)
    if incomplete or any(all(row.state in ABSENT for row in rows) for rows in named):
        raise Exit(ExitCode.FAILED)


@click.command("rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=complete_names)
@click.option("--weights", metavar="NAME", help="Remove only the weights of this name.")
def rm_command(names: tuple[str, ...], weights: str | None) -> None:
    """Delete the weights of each NAME from the store.

    NAME is a variant, VARIANT:WEIGHTS or hf://OWNER/REPO@REVISION/FILE. `freed` is the number of
    bytes that were deleted.

    \b
    Examples:
      vitzoo rm vit_l16
      vitzoo rm vit_b16 --weights augreg_in21k
    """
    from vitzoo.inventory import remove

    without_plugins(names)
    rows = [{"name": name, "freed": remove(name, weights)} for name in names]
    print_rows(rows, ("name", "freed"))


@click.command("import")
@click.argument("files", nargs=-1, required=True, type=PATH)
@json_option
def import_command(files: tuple[Path, ...], as_json: bool) -> None:
    """Copy weights FILES into the store.

    This replaces `vitzoo fetch` on a machine without a network: download the files on another
    machine and copy them here. The registry or the lock file must state the sha256 of each file.

    \b
    Examples:
      vitzoo import model.safetensors
    """
    from vitzoo.inventory import import_file

    rows = [{"file": str(file), "weights": import_file(file)} for file in files]
    if not as_json:
        rows = [row | {"weights": ", ".join(row["weights"])} for row in rows]
    print_rows(rows, ("file", "weights"), as_json=as_json)


@click.command("lock")
@click.argument("cached", nargs=-1, metavar="[NAME]...", shell_complete=complete_names)
@click.option(
    "--update",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_names,
    help="Replace the pins of NAME.",
)
@flag("--from-hub-cache", help="Pin files in the cache of huggingface_hub.")
@weights_option
@frozen_option
@json_option
def lock_command(
    cached: tuple[str, ...],
    names: tuple[str, ...],
    from_hub_cache: bool,
    weights: str | None,
    as_json: bool,
) -> None:
    """Show the lock file, or change pins in it.

    The lock file contains the pins that trust on first use has recorded. A pin is the commit, size
    and sha256 of a weights file. `--update NAME` requests them again from the trusted Hub endpoint
    and replaces the recorded pin. NAME is a variant or hf://OWNER/REPO@REVISION/FILE.

    `--from-hub-cache` hashes the files of each NAME in the cache of huggingface_hub, copies them to
    the store and records their pins, with `hub-cache` in place of the endpoint. It uses no network,
    and prints these pins. Without a NAME, it pins all registered weights that the cache has and
    that have no pin.

    \b
    Examples:
      vitzoo lock
      vitzoo lock --update vit_l16_384
      vitzoo lock --from-hub-cache
      vitzoo lock --from-hub-cache vit_l16_384
    """
    from vitzoo.inventory import pin_from_hub_cache, relock

    if cached and not from_hub_cache:
        raise click.UsageError("NAME needs --from-hub-cache; to replace its pins: --update NAME")
    if weights and from_hub_cache and not cached:
        raise click.UsageError("--weights needs a NAME")
    if names and from_hub_cache:
        raise click.UsageError("give either --update or --from-hub-cache")
    found: list[Any] = []
    if from_hub_cache:
        if cached:
            without_plugins(cached)
        with each_download(silent=as_json) as show:
            found = pin_from_hub_cache(cached, weights, show)
        files = [file for pinned in found if not isinstance(pinned, VitzooError) for file in pinned]
        pins = {file.address: file.pin for file in files}
        if not found:
            say("the Hub cache has no registered weights without a pin")
    else:
        without_plugins(names)
        for name in names:
            relock(name, weights)
        pins = Lock(settings.lock_path()).pins()
    rows = [{"source": source, **asdict(pin)} for source, pin in pins.items()]
    print_rows(rows, ("source", "sha256", "size", "commit", "endpoint"), as_json=as_json)
    _report(found)
