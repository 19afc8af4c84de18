"""`vitzoo.json`: the files of a folder that vitzoo wrote, with size and sha256; torch-free.

{"api": 1, "weights": "vit_b16:augreg_in21k", "library": "timm", "spec": {...},
 "files": {"model.safetensors": {"size": 346284714, "sha256": "32aa..."}}}
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vitzoo.errors import CheckpointError, InvalidOption, StoreError, printable
from vitzoo.files.access import LEFT, SHORT, hash_file, open_regular, read_regular
from vitzoo.files.names import SHA256, valid_file
from vitzoo.files.strict_json import strict_json

MANIFEST = "vitzoo.json"
API = 1
MAX_MANIFEST = 1024 * 1024  # bytes
MAX_FILES = 128
Files = dict[str, tuple[int, str]]
"""Size in bytes and sha256 of each file."""


def write_manifest(folder: Path, about: Mapping[str, Any]) -> Files:
    """Hash the files in a folder and write `vitzoo.json`; `about` are its further keys.

    Raises:
        StoreError: a file cannot be read or written.
    """
    files: Files = {}
    for path in sorted(folder.iterdir()):
        fd = open_regular(path)
        if fd is not None and path.name != MANIFEST:
            files[path.name] = (os.fstat(fd).st_size, hash_file(fd))
        if fd is not None:
            os.close(fd)
    table = {name: {"size": size, "sha256": sha256} for name, (size, sha256) in files.items()}
    text = json.dumps({"api": API, **about, "files": table}, indent=2)
    try:
        (folder / MANIFEST).write_text(f"{text}\n", encoding="utf-8")
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
    text = read_regular(path, MAX_MANIFEST)
    if text is None:
        return None
    try:
        data = strict_json(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {printable(str(error), 200)}") from error
    table = data.get("files") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(table, dict) or len(table) > MAX_FILES:
        raise CheckpointError(f"{path} must have a table `files` of at most {MAX_FILES} files")
    if type(data.get("api")) is not int or data["api"] > API:
        raise CheckpointError(f"{path} was written by a newer vitzoo; pip install -U vitzoo")
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
def new_folder(path: Path, *, force: bool) -> Iterator[Path]:
    """Make a folder that gets its name after the block; if the block raises, nothing is left.

    Args:
        path: the folder; it must not exist, or be empty.
        force: replace a folder that has a manifest and no other files than those it names.

    Raises:
        InvalidOption: the folder exists, or its parent does not.
        StoreError: the disk is full, or the parent cannot be written to.
    """
    _check_folder(path, force=force)
    _remove_abandoned(path)
    part = path.with_name(f".{path.name[:SHORT]}.{os.getpid()}.{time.time_ns()}")
    old = part.with_name(f"{part.name}0")
    try:
        part.mkdir()
        try:
            yield part
            _check_folder(path, force=force)
            if path.is_dir() and any(path.iterdir()):
                path.rename(old)
            part.rename(path)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(
            f"cannot write {path}: {error.strerror}; make room, or name a folder in a place that "
            "can be written to"
        ) from error


def _check_folder(path: Path, *, force: bool) -> None:
    try:
        found = [entry.name for entry in path.iterdir()]
    except FileNotFoundError as error:
        if path.parent.is_dir():
            return
        raise InvalidOption(f"there is no folder {path.parent}; make it first") from error
    except NotADirectoryError as error:
        raise InvalidOption(f"{path} is a file; name a new folder") from error
    except (OSError, ValueError) as error:  # a name that is too long or has a null byte
        reason = getattr(error, "strerror", None) or error
        raise InvalidOption(f"cannot write {path}: {reason}; name another folder") from error
    if not found:
        return
    if not force:
        raise InvalidOption(
            f"{path} is a folder with files; name a new folder, or pass --force (force=True) to "
            "replace one that vitzoo wrote"
        )
    with contextlib.suppress(CheckpointError, StoreError):
        if set(found) <= {MANIFEST, *(read_manifest(path) or ())}:
            return
    raise InvalidOption(
        f"{path} has files that its {MANIFEST} does not name, so it is not replaced; name a new "
        "folder"
    )


def _remove_abandoned(path: Path) -> None:
    """Remove what a killed process left an hour ago."""
    ours = re.compile(rf"\.{re.escape(path.name[:SHORT])}\.\d+\.\d{{16,}}")
    for left in path.parent.iterdir():
        with contextlib.suppress(OSError):
            if ours.fullmatch(left.name) and time.time() - left.lstat().st_mtime > LEFT:
                shutil.rmtree(left)
