"""Checks of the arguments of `push` before anything is read, downloaded or computed; torch-free.

The command makes them before it imports torch, and the function again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from vitzoo.errors import InvalidOption
from vitzoo.files.access import check_folder
from vitzoo.files.folder_manifest import MANIFEST
from vitzoo.files.names import valid_repo
from vitzoo.foreign.sidecars import CONFIG, OPEN_CLIP, PROCESSOR
from vitzoo.keywords import check_choice, check_types
from vitzoo.schema.reader import describe

LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 .+_-]{0,99}")
PUSHED = ("timm", "transformers", "vitzoo")
MODEL, OPEN_CLIP_MODEL, CARD = "model.safetensors", "open_clip_model.safetensors", "README.md"
# The names of all files that each command writes: no other file is ever replaced.
LINK_FILES = frozenset({MODEL, OPEN_CLIP_MODEL, CONFIG, PROCESSOR, OPEN_CLIP, MANIFEST})
BESIDE = frozenset({"metrics.csv", "curves.png", "confusion.png", "run.toml"})  # of a training run
PUSH_FILES = frozenset({MODEL, CONFIG, PROCESSOR, CARD, MANIFEST}) | BESIDE


def check_push(
    repo: str,
    folder: str | os.PathLike[str] | None,
    library: str | None,
    license: str | None,  # noqa: A002
    base_model: Sequence[str],
    datasets: Sequence[str],
    message: str,
    *,
    dry_run: bool,
    force: bool,
) -> None:
    """Refuse what `push` cannot write.

    Raises:
        InvalidOption: a value is not possible, or the folder cannot be written.
    """
    check_types("push", repo=(repo, "text"), folder=(folder, "text or a path or None"))
    check_types("push", base_model=(base_model, "a sequence"), datasets=(datasets, "a sequence"))
    check_types("push", license=(license, "text or None"), library=(library, "text or None"))
    check_types("push", message=(message, "text"))
    if not valid_repo(repo):
        raise InvalidOption(f"a repository of the Hub is written owner/name, got {describe(repo)}")
    if dry_run and folder is None:
        raise InvalidOption("without an upload there must be a folder: --folder DIR (folder=)")
    if library is not None:
        check_choice("library", library, PUSHED)
    if license is not None and not LICENSE.fullmatch(license):
        raise InvalidOption(
            "license must be an identifier such as apache-2.0 or cc-by-nc-4.0, got "
            f"{describe(license)}"
        )
    for kind, names in (("base_model", base_model), ("datasets", datasets)):
        if isinstance(names, str) or not all(
            isinstance(n, str) and re.fullmatch(r"[\w.-]{1,96}(/[\w.-]{1,96})?", n, re.ASCII)
            for n in names
        ):
            raise InvalidOption(f"{kind} must be a list of names on the Hub, got {describe(names)}")
    if not message.strip():
        raise InvalidOption(f"message must be a text, got {describe(message)}; leave it out")
    if folder is not None:
        check_folder(Path(folder), PUSH_FILES, force=force)
