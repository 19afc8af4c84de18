"""`vitzoo.json`: the files of a folder that vitzoo wrote, with size and sha256; torch-free.

{"api": 1, "weights": "vit_b16:augreg_in21k", "library": "timm", "spec": {...},
 "files": {"model.safetensors": {"size": 346284714, "sha256": "32aa..."}}}
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitzoo.errors import UPDATE, CheckpointError, StoreError, printable
from vitzoo.files.access import hash_file, open_regular, read_regular
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
        raise CheckpointError(f"{path} was written by a newer vitzoo; {UPDATE}")
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


def own_files(folder: Path) -> set[str]:
    """Return the names of the files in a folder that vitzoo wrote, as its manifest states them."""
    with contextlib.suppress(CheckpointError, StoreError):
        return {MANIFEST, *(read_manifest(folder) or ())}
    return set()
