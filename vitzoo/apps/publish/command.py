"""The commands `vitzoo link` and `vitzoo push`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from vitzoo.apps.publish.checks import LINK_FILES, PUSHED, check_push
from vitzoo.cli.completion import complete_names
from vitzoo.cli.networks import check
from vitzoo.cli.options import PATH, Choice, flag, json_option, weights_option
from vitzoo.cli.output import print_rows, say
from vitzoo.files.access import check_folder


@click.command("link")
@click.argument("name", metavar="NAME", shell_complete=complete_names)
@click.argument("folder", metavar="DIR", type=PATH)
@click.option(
    "--for",
    "library",
    required=True,
    type=Choice(("timm", "transformers", "open_clip", "torchvision")),
    help="Library that will load the folder.",
)
@weights_option
@flag("--force", help="Replace the folder if vitzoo wrote it.")
@json_option
def link_command(
    name: str, folder: Path, library: str, weights: str | None, force: bool, as_json: bool
) -> None:
    """Write verified weights to a folder that another library loads.

    NAME is a variant or VARIANT:WEIGHTS: see docs/create.md#which-network. The file of the store is
    copied if LIBRARY reads its checkpoint format, else converted; its sha256 is checked on the way.
    DIR also gets the configs of the library, and vitzoo.json, with which `vitzoo verify DIR` checks
    the folder again. The library itself checks nothing. On stderr is the call that loads the
    folder.

    \b
    Examples:
      vitzoo link vit_b16 b16 --for timm
      vitzoo link vit_b16:google_in21k_ft_in1k b16 --for transformers
      vitzoo link clip/vit_b32 b32 --for transformers --json
    """
    check_folder(folder, LINK_FILES, force=force)
    check(name, weights)
    from vitzoo.apps.publish.link import link

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
@flag("--dry-run", help="Write the folder of --folder, upload nothing.")
@click.option(
    "--license", metavar="NAME", help="License of the weights, such as apache-2.0 or cc-by-nc-4.0."
)
@click.option(
    "--for",
    "library",
    type=Choice(PUSHED),
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

    MODEL is a variant, VARIANT:WEIGHTS, a path or hf://OWNER/REPO: see
    docs/create.md#which-network.

    The folder has weights, configs, a model card (README.md) and vitzoo.json. vitzoo loads it, and
    so do timm and transformers if they have the network. Every file is hashed again before it is
    sent. The token comes from HF_TOKEN or `hf auth login`, and goes to the Hub alone.

    \b
    Examples:
      vitzoo push a.safetensors acme/birds --license mit --dry-run --folder birds
      vitzoo push a.safetensors acme/birds --license mit --private
      vitzoo push vit_digits acme/digits --for transformers
    """
    check_push(repo, folder, **options)
    check(model)
    if not options["dry_run"]:
        from vitzoo.apps.publish.upload import check_upload

        check_upload(repo)
    from vitzoo.apps.publish.push import push

    done = push(model, repo, folder=folder, private=private or None, **options)
    say(f"{done.repo}: {done.url}" if done.url else f"{folder}: written, nothing was uploaded")
    _print_files(done, done.files, as_json=as_json)


def _print_files(done: object, files: Mapping[str, tuple[int, str]], *, as_json: bool) -> None:
    """Print size and sha256 of written files, or all of the result as JSON."""
    columns = ("file", "size", "sha256")
    rows = [dict(zip(columns, (file, *entry), strict=True)) for file, entry in files.items()]
    print_rows(rows, columns, as_json=as_json, data=done)
