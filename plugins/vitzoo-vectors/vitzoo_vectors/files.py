"""Folders of `vitzoo embed`, and files of vectors, which another process reads."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vitzoo.errors import InvalidOption, StoreError, printable
from vitzoo_vectors.stored import CANARY, IDENTITY, Stored, need

KINDS = {  # by the suffix: the reader in `child`, and the distribution that it needs
    ".parquet": ("parquet", "pyarrow"),
    ".safetensors": ("safetensors", "safetensors"),
    ".npy": ("npy", "numpy"),
    ".faiss": ("faiss", "faiss-cpu"),
    ".index": ("faiss", "faiss-cpu"),
}
MANIFEST, MOST = "_manifest.json", 2**24  # bytes of JSON
PASSED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "SYSTEMROOT", "TEMP", "TMP")


def read_file(path: Path, wanted: Sequence[str], most: int) -> Stored:
    """Return what a file, or a folder of `embed`, says of its vectors, and the first of them.

    Raises:
        InvalidOption: there is no such file, or it is of no known kind.
        StoreError: it is damaged.
        MissingDependency: a package is not installed.
    """
    if (manifest := path / MANIFEST).exists():
        stated, parts = _json(manifest), sorted(path.glob("part-*.parquet"))
        found = _in_child(parts or [path / "part-000000.parquet"], wanted, most)
        metadata = {IDENTITY: stated.get("identity")}
        return replace(found, metadata=metadata, canary=stated.get(CANARY[7:]) or {})
    if not path.is_file() or path.suffix not in KINDS:
        raise InvalidOption(
            f"PLACE must be a folder of vitzoo embed, a file ({', '.join(KINDS)}) or an address "
            f"such as qdrant:FOLDER#COLLECTION, got {printable(path)}; correct it"
        )
    found, sidecar = _in_child([path], wanted, most), sidecar_of(path)
    if IDENTITY in found.metadata or not sidecar.exists():
        return found
    stated = _json(sidecar)
    if stated.get("sha256") != _sha256(path):
        return replace(found, note=f"{printable(sidecar)} states another SHA-256")
    return replace(found, metadata=stated, canary=stated.get(CANARY) or {})


def sidecar_of(path: Path) -> Path:
    """Return where the metadata of a file are that cannot hold any."""
    return path.with_name(f"{path.name}.vitzoo.json")


def write_sidecar(
    path: str | os.PathLike[str], identity: str, canary: Mapping[str, Any] | None = None
) -> Path:
    """Write FILE.vitzoo.json, with the SHA-256 of the file, and return its path.

    Args:
        path: of an npy file or a FAISS index, which is whole.
        identity: of its vectors, by `vitzoo.identity`.
        canary: of outputs, by name, as a manifest of `embed` has it.
    """
    data = {"sha256": _sha256(Path(path)), IDENTITY: identity, CANARY: canary or {}}
    sidecar_of(Path(path)).write_text(json.dumps(data), encoding="utf-8", newline="\n")
    return sidecar_of(Path(path))


def _in_child(paths: Sequence[Path], wanted: Sequence[str], most: int) -> Stored:
    kind, distribution = KINDS[paths[0].suffix]
    shown = printable(paths[0])
    need(distribution.removesuffix("-cpu"), distribution, shown)
    command = [sys.executable, "-P", "-m", "vitzoo_vectors.child", kind, str(most)]
    done = subprocess.run(
        [*command, ",".join(wanted), *map(os.path.abspath, paths)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={name: os.environ[name] for name in PASSED if name in os.environ},
        check=False,
    )
    line, _, data = done.stdout.partition(b"\n")
    stated = json.loads(line or b'{"error": "its reader ended, or needs too much memory"}')
    if error := stated.get("error"):
        usage = stated.get("code") == InvalidOption.exit_code
        text = f"cannot read {shown}: {printable(error)}; check the file"
        raise InvalidOption(text) if usage else StoreError(text)
    vectors = np.frombuffer(data, "<f4").reshape(stated["shape"])
    return Stored(stated.get("metadata", {}), stated["count"], vectors, stated["keys"])


def _json(path: Path) -> dict[str, Any]:
    """Return the table in a file."""
    try:
        with path.open("rb") as file:
            return dict(json.loads(file.read(MOST)))
    except (OSError, TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"cannot read {printable(path)}: {error}; write it again") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
