"""`vitzoo.json`: the files of a folder that vitzoo wrote, with size and sha256; torch-free.

{"api": 1, "weights": "vit_b16:augreg_in21k", "library": "timm", "spec": {...},
 "files": {"model.safetensors": {"size": 346284714, "sha256": "32aa..."}}}
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from vitzoo.errors import CheckpointError, InvalidOption, StoreError, printable
from vitzoo.files.access import (
    check_folder,
    hash_file,
    open_regular,
    read_regular,
    writing_folder,
)
from vitzoo.files.names import SHA256, valid_file
from vitzoo.files.strict_json import strict_json
from vitzoo.installing import update

MANIFEST = "vitzoo.json"
API = 1
MAX_MANIFEST = 1024 * 1024  # bytes
MAX_FILES = 128
KEPT = "it is kept: move it elsewhere, or name a new folder"
Files = dict[str, tuple[int, str]]
"""Size in bytes and sha256 of each file."""


def write_manifest(folder: Path, about: Mapping[str, Any]) -> Files:
    """Hash the files in a folder and write `vitzoo.json`; `about` are its further keys.

    Raises:
        StoreError: a file cannot be read or written.
    """
    files: Files = {}
    for path in sorted(folder.iterdir(), key=lambda path: path.name):
        fd = open_regular(path)
        if fd is not None and path.name != MANIFEST:
            files[path.name] = (os.fstat(fd).st_size, hash_file(fd))
        if fd is not None:
            os.close(fd)
    table = {name: {"size": size, "sha256": sha256} for name, (size, sha256) in files.items()}
    text = json.dumps({"api": API, **about, "files": table}, indent=2)
    try:
        (folder / MANIFEST).write_text(f"{text}\n", "utf-8", newline="\n")
    except OSError as error:
        raise StoreError(f"cannot write {folder / MANIFEST}: {error.strerror}") from error
    return files


def read_manifest(folder: Path) -> Files | None:
    """Return the files that the manifest in a folder names; None if there is no manifest.

    Raises:
        CheckpointError: the manifest is damaged, of a newer vitzoo, or names a file elsewhere.
        StoreError: it cannot be read.
    """
    path = folder / MANIFEST
    if (text := read_regular(path, MAX_MANIFEST)) is None:
        return None
    try:
        data = strict_json(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {printable(str(error), 200)}") from error
    table = data.get("files") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(table, dict) or len(table) > MAX_FILES:
        raise CheckpointError(f"{path} must have a table `files` of at most {MAX_FILES} files")
    if type(data.get("api")) is not int or data["api"] > API:
        raise CheckpointError(f"{path} was written by a newer vitzoo; {update()}")
    return {name: _entry(path, name, value) for name, value in table.items()}


def _entry(path: Path, name: str, value: object) -> tuple[int, str]:
    size, sha256 = (value.get(k) if isinstance(value, dict) else None for k in ("size", "sha256"))
    plain = valid_file(name) and "/" not in name
    good = type(size) is int and size >= 0 and isinstance(sha256, str) and SHA256.fullmatch(sha256)
    if plain and good:
        return size, sha256  # type: ignore[return-value]  # checked above
    raise CheckpointError(
        f"{path}: expected plain file names, each with size and sha256, got "
        f"{ascii(name)[:80]}: {ascii(value)[:120]}"
    )


@contextlib.contextmanager
def writing_own(folder: Path, known: Collection[str], *, force: bool) -> Iterator[Path]:
    """Write a folder with a manifest as `writing_folder` does; a changed file is never replaced.

    Args:
        folder: where nothing is, or an empty folder.
        known: names of the files that the caller writes, the manifest among them.
        force: whether to replace a folder whose files are those that its manifest states.

    Raises:
        InvalidOption: as `check_folder`; or a file was changed, or is not in the manifest.
        StoreError: the disk is full, or the folder cannot be written to.
    """
    check_folder(folder, known, force=force)
    _check_unchanged(folder)
    with writing_folder(folder, known, force=force) as new:
        yield new
        _check_unchanged(folder)


def _check_unchanged(folder: Path) -> None:
    """Raise InvalidOption for a file that is not as the manifest in the folder states."""
    found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if not found:
        return
    try:
        files = read_manifest(folder)
    except (CheckpointError, StoreError) as error:
        raise InvalidOption(f"{error}; {KEPT}") from error
    if files is None:
        raise InvalidOption(
            f"{folder / found[0]}: the folder has no {MANIFEST}, the list of what vitzoo wrote "
            f"there, so the file may be another's; {KEPT}"
        )
    for name in found:
        if name == MANIFEST:
            continue
        if name not in files:
            raise InvalidOption(
                f"{folder / name} is not in {MANIFEST}, the list of what vitzoo wrote there; {KEPT}"
            )
        if not _is_same(folder / name, *files[name]):
            raise InvalidOption(f"{folder / name} was changed since vitzoo wrote it; {KEPT}")


def _is_same(path: Path, size: int, sha256: str) -> bool:
    """Tell whether a file has these bytes."""
    try:
        fd = open_regular(path)
        if fd is None:
            return False
        with os.fdopen(fd, "rb"):
            return os.fstat(fd).st_size == size and hash_file(fd) == sha256
    except StoreError:  # a link, or a file that cannot be read
        return False
