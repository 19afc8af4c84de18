"""What is in the store: fetch, verify, import and remove registered weights; torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitzoo import settings
from vitzoo.errors import (
    IntegrityError,
    InvalidOption,
    PinError,
    StoreError,
    UnknownName,
)
from vitzoo.files.access import hash_file, make_folder_or_raise, open_regular
from vitzoo.files.shard_index import ENDING, read_index, weights_in
from vitzoo.registry.registry import Registry, registry
from vitzoo.schema.rows import Variant, choose
from vitzoo.store.hub_file import HubFile
from vitzoo.store.lockfile import Lock
from vitzoo.store.obtain import obtain, stored
from vitzoo.store.partial_file import Partial
from vitzoo.store.progress import Note
from vitzoo.store.store import Store

PATHS = ("/", ".safetensors", ".npz", ENDING)


@dataclass(frozen=True)
class Verification:
    """What hashing a file showed.

    Args:
        name: variant and weights, or a path.
        state: `ok`, `damaged`, `missing` (nothing there to verify) or `unpinned` (a file whose
            sha256 nobody names, so that nothing can be said of it).
        path: the file.
        size: bytes found.
        sha256: expected, or found for a plain path.
        detail: what is wrong.
    """

    name: str
    state: Literal["ok", "damaged", "missing", "unpinned"]
    path: Path | None = None
    size: int = 0
    sha256: str = ""
    detail: str = ""


def fetch(name: str, weights: str | None = None, note: Note | None = None) -> Path:
    """Bring a verified file into the store and return its path.

    Args:
        name: a registered variant, `variant:weights`, or `hf://owner/repo@revision/file`.
        weights: which of the variant's weights, its default if None.
        note: called with (bytes so far, bytes in all) during a download.

    Raises:
        WeightsError: one of its kinds.
    """
    file = _named(name, weights, registry())
    if file.entry.repo and settings.home() is None:
        raise StoreError("VITZOO_HOME is ':memory:', so there is no store to fetch into")
    os.close(obtain(file, note)[0])
    path = stored(file)
    if path is None:
        raise StoreError(f"{file.label} vanished from the store")
    return path


def verify(name_or_path: str | os.PathLike[str] | None = None) -> list[Verification]:
    """Hash files against their pins; never opens a socket, ignores stamps.

    Args:
        name_or_path: a variant (all of its weights), `variant:weights`, an hf:// address, a path
            (of an index or a folder: every shard), or None for everything in the store and
            everything bundled.

    Raises:
        CheckpointError: an index or a folder that names no files.
    """
    zoo = registry()
    if name_or_path is None:
        here = [_verify(file, zoo) for file in _registered(zoo) if _present(file)]
        return here + _strangers({found.sha256 for found in here}, zoo)
    text = os.fspath(name_or_path)
    if text.startswith("hf://"):
        return [_verify(HubFile.at(text), zoo)]
    if isinstance(name_or_path, os.PathLike) or text.endswith(PATHS):
        return [_hashed(str(path), path, zoo, follow=True) for path in _files(Path(text))]
    name, weights = _parts_of(text, None)
    if weights is not None:
        return [_verify(_named(name, weights, zoo), zoo)]
    return [_verify(file, zoo) for file in _files_of(zoo.variant(name), zoo)]


def local() -> dict[str, list[str]]:
    """Return which weights of which variants are here, by variant."""
    zoo = registry()
    found: dict[str, list[str]] = {}
    for variant in zoo.variants.values():
        if names := [file.entry.name for file in _files_of(variant, zoo) if _present(file)]:
            found[variant.name] = names
    return found


def import_file(path: Path) -> list[str]:
    """Copy a file into the store if its sha256 is one that registry or lock name.

    Returns:
        The labels of the weights it is.

    Raises:
        StoreError: it cannot be read, or nobody names its sha256.
    """
    home = settings.home()
    if home is None:
        raise StoreError("VITZOO_HOME is ':memory:', so there is no store to import into")
    source = open_regular(path, follow=True)
    if source is None:
        raise StoreError(f"there is no file {path}")
    try:
        sha256, size = hash_file(source), os.fstat(source).st_size
        labels = _labels(sha256, registry())
        if not labels:
            raise StoreError(
                f"{path} has sha256 {sha256}, which neither the registry nor the lock names; "
                "load it with weights='FILE' instead"
            )
        store = Store(home)
        make_folder_or_raise(store.partial(sha256).parent)
        partial = Partial(store.partial(sha256), size)
        try:
            partial.copy(source)
            if partial.sha256 != sha256:
                raise IntegrityError(f"{path} changed while it was copied; try again")
            store.adopt(partial)
        finally:
            partial.release()
    finally:
        os.close(source)
    return labels


def remove(name: str, weights: str | None = None) -> int:
    """Remove the files of a variant, or of an hf:// address, from the store.

    Args:
        name: the variant, `variant:weights`, or `hf://owner/repo@revision/file`.
        weights: which of its weights, all if None.

    Returns:
        The bytes that were freed.

    Raises:
        UnknownName: no such variant or weights.
    """
    zoo, home = registry(), settings.home()
    name, weights = _parts_of(name, weights)
    on_hub = name.startswith("hf://")
    known = [HubFile.at(name)] if on_hub else _files_of(zoo.variant(name), zoo)
    files = [file for file in known if weights in (None, file.entry.name)]
    if not files:
        raise UnknownName(f"{name} has no weights {weights!r}")
    pins = [file.pinned().pin for file in files if file.entry.repo]
    return sum(Store(home).remove(pin.sha256) for pin in pins if pin.sha256) if home else 0


def _parts_of(name: str, weights: str | None) -> tuple[str, str | None]:
    """Split `variant:weights`, as messages write it; other names stay as they are."""
    variant, colon, stated = name.partition(":")
    if not colon or name.startswith("hf://"):
        return name, weights
    if weights not in (None, stated):
        raise InvalidOption(f"{name} names weights {stated!r}, and weights is {weights!r}")
    return variant, stated


def _named(name: str, weights: str | None, zoo: Registry) -> HubFile:
    """Return the file of a name; `weights` as in `fetch`."""
    if name.startswith("hf://"):
        return HubFile.at(name)
    name, weights = _parts_of(name, weights)
    variant = zoo.variant(name)
    return HubFile.of(variant, choose(variant, weights), zoo)


def _files_of(variant: Variant, zoo: Registry) -> list[HubFile]:
    return [HubFile.of(variant, entry, zoo) for entry in variant.weights]


def _registered(zoo: Registry) -> Iterator[HubFile]:
    """Yield every registered file."""
    for variant in zoo.variants.values():
        yield from _files_of(variant, zoo)


def _present(file: HubFile) -> bool:
    return not file.entry.repo or stored(file) is not None


def _verify(file: HubFile, zoo: Registry) -> Verification:
    path, pin = stored(file), file.pinned().pin
    if path is None:
        return Verification(file.label, "missing", sha256=pin.sha256, detail="not in the store")
    return _hashed(file.label, path, zoo, pin.sha256, pin.size or None)


def _hashed(
    label: str,
    path: Path,
    zoo: Registry,
    expected: str = "",
    size: int | None = None,
    *,
    follow: bool = False,
) -> Verification:
    """Hash a file; without an expected sha256, look for what it is in registry and lock."""
    try:
        fd = open_regular(path, follow=follow)
    except StoreError as error:
        return Verification(label, "damaged", path, sha256=expected, detail=str(error))
    if fd is None:
        return Verification(label, "missing", path, sha256=expected, detail="there is no such file")
    try:
        found, actual = os.fstat(fd).st_size, hash_file(fd)
    finally:
        os.close(fd)
    if not expected:
        known = _labels(actual, zoo)
        detail = ", ".join(known) or "neither the registry nor the lock names its sha256"
        return Verification(label, "ok" if known else "unpinned", path, found, actual, detail)
    if actual != expected or size not in (None, found):
        detail = f"{found} bytes, sha256 {actual}"
        return Verification(label, "damaged", path, found, expected, detail)
    return Verification(label, "ok", path, found, expected)


def _files(path: Path) -> list[Path]:
    """Return the weights files that a path stands for."""
    path = weights_in(path)
    fd = open_regular(path, follow=True) if path.name.endswith(ENDING) else None
    if fd is None:
        return [path]
    try:
        shards = set(read_index(fd, str(path)).values())
    finally:
        os.close(fd)
    return [path.with_name(shard) for shard in sorted(shards)]


def _labels(sha256: str, zoo: Registry) -> list[str]:
    """Return what registry and lock call the file of that sha256."""
    pins = Lock(settings.lock_path()).pins()
    locked = [address for address, pin in pins.items() if pin.sha256 == sha256]
    found = [
        file.label
        for file in _registered(zoo)
        if file.entry.sha256 == sha256 or (not file.entry.sha256 and file.address in locked)
    ]
    return found or locked


def _strangers(known: set[str], zoo: Registry) -> list[Verification]:
    """Verify files in the store that no registered row names, hf:// files for instance."""
    home = settings.home()
    if home is None:
        return []
    store = Store(home)
    names = [name for name in store.names() if name not in known]
    return [
        _hashed(" ".join(_labels(name, zoo)) or f"sha256:{name[:12]}", store.path(name), zoo, name)
        for name in names
    ]


def relock(name: str, weights: str | None = None) -> None:
    """Forget what the lock says of a file and ask the authority anew.

    Raises:
        PinError: the registry pins it, or the lock is frozen; the lock is unchanged.
        NetworkError: the authority does not answer; the lock is unchanged.
    """
    file = _named(name, weights, registry())
    if file.entry.sha256:
        raise PinError(f"{file.label} is pinned by the registry; there is nothing to lock")
    if settings.frozen():
        raise PinError(f"{file.label}: the lock is frozen; leave --frozen out to update it")
    from vitzoo.store.hub_metadata import ask_authority  # imports the network's libraries

    Lock(settings.lock_path()).replace(file.address, ask_authority(file))
