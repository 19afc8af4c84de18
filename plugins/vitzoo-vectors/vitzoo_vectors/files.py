"""Folders of `vitzoo embed`, and files of vectors.

npy and safetensors are read here, mapped. Another process reads files whose libraries may crash.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitzoo.cli import run_limited
from vitzoo.errors import InvalidOption, StoreError, printable, short_repr
from vitzoo_vectors.stored import (
    CANARY,
    IDENTITY,
    Places,
    Request,
    Stored,
    check_identity,
    is_there,
    need,
)

MANIFEST, MOST = "_manifest.json", 2**24  # bytes of JSON
MEMORY, OUTPUT = 2**32, 2**30  # bytes, beside some times the size of the files
SECONDS, SPEED = 60, 2**24  # of processor time: for any file, and bytes for a further second
FLOATS = ("F64", "F32", "F16")  # types of safetensors


def read_file(path: Path, request: Request) -> Stored:
    """Return what a file, or a folder of `embed`, says of its vectors, and those of images.

    Raises:
        InvalidOption: there is no such file, or it is of no known kind.
        StoreError: it is damaged.
        MissingDependency: a package is not installed.
    """
    if is_there(manifest := path / MANIFEST):
        return _folder(manifest, request)
    if not os.path.isfile(path) or path.suffix not in KINDS:  # noqa: PTH113
        there = "it is no such file" if is_there(path) else "there is none"
        if os.path.isdir(path):  # noqa: PTH112
            there = f"it is a folder without {MANIFEST}"
        raise InvalidOption(
            f"PLACE must be a folder of vitzoo embed, a file ({', '.join(KINDS)}, .lance) or an "
            f"address such as qdrant:FOLDER#COLLECTION, got {printable(path)}: {there}; correct it"
        )
    found, sidecar = _read([path], request), sidecar_of(path)
    if IDENTITY in found.metadata:
        return found
    if not sidecar.exists():
        how = f"neither it nor {printable(sidecar.name)} (vitzoo_vectors.write_sidecar) states an"
        return replace(found, note=f"{how} identity")
    stated = _json(sidecar)
    if stated.get("sha256") != _sha256(path):
        note = (
            f"{printable(sidecar)} does not state the SHA-256 of the file, which may have changed"
        )
        how = "state the identity of what it contains now (vitzoo_vectors.write_sidecar)"
        return replace(found, note=f"{note}; {how}")
    return replace(found, metadata=stated, canary=_table(stated.get(CANARY)))


def _folder(manifest: Path, request: Request) -> Stored:
    """Read a folder of `embed`, whose parts must state what its manifest states."""
    stated, parts = _json(manifest), sorted(manifest.parent.glob("part-*.parquet"))
    if not parts:
        raise StoreError(f"{printable(manifest.parent)} has no part; run vitzoo embed again")
    found = _read(parts, request)
    identity, of_parts = _table(stated.get("identity")), found.metadata.get(IDENTITY)
    if identity and of_parts != json.dumps(identity, sort_keys=True):
        raise StoreError(
            f"{printable(parts[0])} states another identity than {MANIFEST}; take the folder from "
            "a backup, or write it again"
        )
    ranges = stated.get("ranges")
    counts = [_table(one).get("inputs") for one in ranges] if isinstance(ranges, list) else []
    numbers = [count for count in counts if type(count) is int and count >= 0]
    if not numbers or len(numbers) < len(counts):
        raise StoreError(
            f"cannot read {printable(manifest)}: ranges state no inputs; write it again"
        )
    total, left = sum(numbers), sum(numbers) - found.count
    note = f"{left} of {total} vectors of the folder are missing" if left else ""
    canary = _table(stated.get("canary"))
    return replace(found, metadata={IDENTITY: identity}, canary=canary, note=note)


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

    Raises:
        InvalidOption: it is no identity, or there is no such file.
    """
    check_identity(identity)
    if not Path(path).is_file():
        raise InvalidOption(f"there is no file {printable(path)}; write the vectors first")
    data = {"sha256": _sha256(Path(path)), IDENTITY: identity, CANARY: canary or {}}
    sidecar_of(Path(path)).write_text(json.dumps(data), encoding="utf-8", newline="\n")
    return sidecar_of(Path(path))


def _read(paths: Sequence[Path], request: Request) -> Stored:
    """Read files of one suffix."""
    read, distribution = KINDS[paths[0].suffix]
    shown = printable(paths[0])
    need(distribution.removesuffix("-cpu"), distribution, shown)
    try:
        if isinstance(read, str):
            return _in_child(read, paths, request)
        return read(paths[0], request)
    except InvalidOption as error:
        raise InvalidOption(f"{shown}: {error}") from error
    except Exception as error:  # of any library
        text = f"cannot read {shown}: {printable(str(error) or repr(error))}; check the file"
        raise StoreError(text) from error


def _npy(path: Path, request: Request) -> Stored:
    """Read an array (n, d), without any pickle."""
    request.refuse_column()
    request.refuse_key()
    array = np.lib.format.open_memmap(path, mode="r")
    if array.ndim != 2 or array.dtype.kind != "f":
        raise ValueError(f"expected floats (n, d), got {array.dtype} {array.shape}")
    count, width = array.shape
    return request.read({}, count, list, lambda places: _taken(array, places), width=width)


def _safetensors(path: Path, request: Request) -> Stored:
    """Read a tensor (n, d)."""
    from safetensors import safe_open

    request.refuse_key()
    with safe_open(path, framework="numpy") as file:
        parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        floats = {n: p for n, p in parts.items() if p.get_dtype() in FLOATS}
        tables = [name for name, part in floats.items() if len(part.get_shape()) == 2]
        name = request.choose(tables)
        count, width = parts[name or tables[0]].get_shape()

        def take(places: Places) -> NDArray[Any]:
            whole = len(places) == count  # a slice of all is copied twice
            return np.asarray(file.get_tensor(name)) if whole else _taken(parts[name], places)

        return request.read(file.metadata() or {}, count, list, take, width=width if name else 0)


def _taken(part: Any, places: Places) -> NDArray[Any]:
    """Return what is at sorted places, neighbours at once."""
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    runs = pairwise([0, *breaks, len(places)])
    found = [part[places[start] : places[stop - 1] + 1] for start, stop in runs]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _in_child(kind: str, paths: Sequence[Path], request: Request) -> Stored:
    """Read files in a limited process, which is not trusted."""
    size = sum(path.stat().st_size for path in paths)
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as target:
        source.write(json.dumps([[*map(os.path.abspath, paths)], vars(request)]).encode())
        source.flush()
        run_limited(
            "vitzoo_vectors.child:read",
            kind,
            source=source,
            target=target,
            memory=MEMORY + 6 * size,
            seconds=SECONDS + size // SPEED,
            output=OUTPUT + 16 * size,
        )
        target.seek(0)
        stated = json.loads(target.readline())
        images = stated["images"]
        count, belonging, width = (int(stated[n]) for n in ("count", "belonging", "width"))
        vectors = np.fromfile(target, "<f4").reshape(len(images), width if images else 0)
    if any(type(image) is not int or image not in range(len(request.images)) for image in images):
        raise ValueError(f"it states other images, {short_repr(images)}")
    metadata, named = _table(stated["metadata"]), bool(stated["named"])
    return Stored(metadata, count, vectors, images, named=named, belonging=belonging, width=width)


Read = Callable[[Path, Request], Stored]
KINDS: dict[str, tuple[str | Read, str]] = {  # by the suffix: the reader, and what it needs
    ".parquet": ("parquet", "pyarrow"),
    ".safetensors": (_safetensors, "safetensors"),
    ".npy": (_npy, "numpy"),
    ".faiss": ("faiss", "faiss-cpu"),
    ".index": ("faiss", "faiss-cpu"),
}


def _table(value: object) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


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
