"""Fetch, verify, import and remove registered weights in the store; torch-free."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal

from vitzoo import settings
from vitzoo.display import ResultList, brief
from vitzoo.errors import (
    IntegrityError,
    PinError,
    StoreError,
    UnknownName,
    VitzooError,
)
from vitzoo.files.access import hash_file, open_regular
from vitzoo.files.folder_manifest import MANIFEST, read_manifest
from vitzoo.files.names import INDEX
from vitzoo.files.shard_index import SHARD, read_index, weights_in
from vitzoo.foreign.hub import (
    SHARDED,
    files_at,
    shards_of,
    sidecars_at,
    take_cached,
    take_cached_at,
)
from vitzoo.keywords import check_keywords, check_progress, check_types, hint_of_progress
from vitzoo.log import log
from vitzoo.opening import File, Folder, Named, OnHub, locate
from vitzoo.progress import Note, OnProgress, Show, bar, reporting
from vitzoo.registry.choice import choose
from vitzoo.registry.registry import Registry, registry
from vitzoo.registry.shard_indexes import indexes, keys_of
from vitzoo.schema.addresses import address_of, parts_of_address, parts_of_name
from vitzoo.store.hub_cache import in_hub_cache, not_from_cache, with_cached_pin
from vitzoo.store.hub_file import HubFile
from vitzoo.store.lockfile import Lock, Pin
from vitzoo.store.locks import ended_by
from vitzoo.store.obtain import obtain, stored
from vitzoo.store.store import Store

AT_ONCE = 4  # downloads, or requests for pins
Pins = Callable[[], Mapping[str, Pin]]
"""Returns the pins of the lock by address; it reads the lock at most once."""


@dataclass(frozen=True)
class Verification:
    """The result of `verify` for one file.

    Args:
        name: variant and weights name, or a path.
        state: `ok`, `damaged`, `missing` (there is no file), `unpinned` (neither the registry nor
            the lock file names the sha256 of the file) or `conflict` (registry and lock file pin
            different files, or a size is stated that a file with this sha256 cannot have).
        path: of the file.
        size: bytes of the file.
        sha256: the expected one; for a plain path, that of the file.
        detail: the reason of the state.
    """

    name: str
    state: Literal["ok", "damaged", "missing", "unpinned", "conflict"]
    path: Path | None = None
    size: int = 0
    sha256: str = ""
    detail: str = ""

    __repr__ = brief
    _columns = ("name", "state", "size", "path", "detail")


Check = tuple[str, Callable[[], Verification]]
"""The name of a file, and the function that verifies it."""


@check_keywords(hint_of_progress)
def fetch(
    name: str,
    weights: str | None = None,
    *,
    from_hub_cache: bool = False,
    on_progress: OnProgress | None = None,
    progress: bool = True,
) -> Path:
    """Download a file into the store, unless it is there, verify it and return its path.

    Args:
        name: a variant, `variant:weights` or an address, see docs/create.md#which-network.
        weights: name of the variant's weights; None for the default weights.
        from_hub_cache: copy the file from the cache of huggingface_hub instead, and pin it in the
            lock file; no socket is opened, see docs/trust.md#from-the-cache-of-huggingface_hub.
        on_progress: is called during a download with the bytes so far, their number, and `name`. An
            error that it raises ends the download and is raised as it is.
        progress: whether to show a bar on a terminal or in a notebook.

    Raises:
        WeightsError: one of its kinds.
    """
    check_types("fetch", name=(name, "text"), weights=(weights, "text or None"))
    check_types("fetch", from_hub_cache=(from_hub_cache, "a boolean"))
    check_progress("fetch", on_progress, progress)
    file = _checked(name, weights, from_hub_cache)
    with reporting(name, on_progress, progress, after=0, in_bytes=True) as report:
        return _fetch(name, file, lambda done, total: report(done, total, name), from_hub_cache)


def fetch_each(
    names: Sequence[str], weights: str | None, show: Show, *, from_hub_cache: bool = False
) -> list[Path | VitzooError]:
    """Fetch files, at most `AT_ONCE` at the same time; return the path of each, or its error.

    No download starts before all names are checked. A file that several names mean is fetched once.
    An error does not end the other downloads; Ctrl-C ends all of them and keeps the partial files.

    Args:
        names, weights, from_hub_cache: as in `fetch`.
        show: shows the download of a name.

    Raises:
        UnknownName, InvalidOption, StoreError: of a name, before the first download.
    """
    files = {name: _checked(name, weights, from_hub_cache) for name in names}
    groups: dict[str, list[str]] = {}
    for name, file in files.items():
        groups.setdefault(file.entry.sha256 or file.address if file else name, []).append(name)
    found = dict[str, Path | VitzooError]()

    def work(group: Sequence[str]) -> None:
        for name in group:
            try:
                with show(name) as note:
                    found[name] = _fetch(name, files[name], note, from_hub_cache)
            except VitzooError as error:
                found[name] = error

    parallel(work, [*groups.values()])
    return [found[name] for name in names]


def parallel(work: Callable[[Sequence[str]], None], groups: Sequence[Sequence[str]]) -> None:
    """Call `work` for each group in threads; an exception in this thread ends their requests."""
    if len(groups) == 1:
        work(groups[0])
        return
    from concurrent.futures import ThreadPoolExecutor

    stop = threading.Event()

    def stoppable(group: Sequence[str]) -> None:
        with ended_by(stop):
            work(group)

    with ThreadPoolExecutor(AT_ONCE, "vitzoo-fetch") as pool:
        try:
            for _ in pool.map(stoppable, groups):
                pass
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise


def _checked(name: str, weights: str | None, from_hub_cache: bool) -> HubFile | None:
    """Check the arguments of `fetch`; return the file, None for that of an address on the Hub."""
    if from_hub_cache:
        _check_may_pin()
    file = _named(name, weights, registry())
    if (file is None or not file.entry.bundled) and settings.home() is None:
        raise StoreError("VITZOO_HOME is ':memory:', so there is no store to fetch into")
    return file


def _fetch(name: str, file: HubFile | None, note: Note | None, from_hub_cache: bool) -> Path:
    """Fetch the file of a name, or for None those of an address; return the path of the weights."""
    if from_hub_cache:
        fetched = _from_hub_cache(name, file, note)[0]
    elif file:
        fetched = _fetched([file], note)
    else:
        fetched = _fetched(_at_hub(name), note)
    path = stored(fetched)
    if path is None:
        raise StoreError(f"{fetched.label} vanished from the store; fetch it again")
    return path


def _fetched(files: Sequence[HubFile], note: Note | None) -> HubFile:
    """Fetch files, and return the last one with its pin."""
    for file in files:
        fd, sha256 = obtain(file, note)
        os.close(fd)
    return replace(file, pin=replace(file.pin, sha256=sha256))


def _at_hub(address: str) -> list[HubFile]:
    """Return the weights file at an address; before an index, the files that it needs."""
    sidecars, file = sidecars_at(address)
    shards = shards_of(file, sidecars, registry()) if file.is_index else []
    return [*shards, file]


@check_keywords(hint_of_progress)
def verify(
    name_or_path: str | os.PathLike[str] | None = None,
    *,
    on_progress: OnProgress | None = None,
    progress: bool = True,
) -> list[Verification]:
    """Hash files and compare them with their pins; opens no socket and ignores stamps.

    Args:
        name_or_path: see docs/create.md#which-network. A variant means all of its weights, the path
            of an index or folder all shards, that of a folder of `link` or `push` all its files.
            None: all files in the store and all bundled files.
        on_progress: is called with the number of files so far, of all, and the name of the next
            one. An error that it raises ends the call and is raised as it is.
        progress: whether to show a bar on a terminal or in a notebook.

    Raises:
        CheckpointError: an index or a folder that names no files, or a damaged `vitzoo.json`.
    """
    check_types("verify", name_or_path=(name_or_path, "text or a path or None"))
    check_progress("verify", on_progress, progress)
    zoo, pins, rows = registry(), _pins(), list[Verification]()
    found = None if name_or_path is None else locate(name_or_path, zoo=zoo)
    if found is None:
        checks = _checks_here(zoo, pins)
    elif isinstance(found, File | Folder):
        checks = _checks_at(found.path, zoo, pins)
    else:
        files = _files_of(_located(name_or_path), zoo, pins)
        checks = [_check(*_pinned(file, pins)) for file in files]
    with reporting("files", on_progress, progress) as report:
        for name, check in checks:
            report(len(rows), len(checks), name)
            rows.append(check())
        report(len(rows), len(checks), "")
    return ResultList(rows)


def _checks_here(zoo: Registry, pins: Pins) -> list[Check]:
    """Return the checks of the bundled files and of all files in the store."""
    every = [_pinned(file, pins) for file in _registered(zoo)]
    known = {file.pin.sha256 or file.entry.sha256 for file, _ in every}
    here = [
        _check(file, conflict)
        for file, conflict in every
        if conflict or file.entry.bundled or stored(file)
    ]
    return here + _checks_of_others(known, zoo, pins)


def local() -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the names of stored and bundled weights, by variant, and contradictory pins.

    The second value has, by variant, a message for each file that registry and lock pin
    differently.
    """
    found: dict[str, list[str]] = {}
    conflicts: dict[str, list[str]] = {}
    pins = _pins()
    for entry in _registered(registry()):
        file, conflict = _pinned(entry, pins)
        variant, name = parts_of_name(file.label)
        if conflict:
            conflicts.setdefault(variant, []).append(f"{file.label}: {conflict}")
        elif file.entry.bundled or stored(file):
            found.setdefault(variant, []).append(str(name))
    return found, conflicts


def _pins() -> Pins:
    return cache(Lock(settings.lock_path()).pins)


def import_file(path: Path) -> list[str]:
    """Copy a file into the store if the registry or the lock file names its sha256.

    Returns:
        The variant and weights names of the file.

    Raises:
        StoreError: the file cannot be read, or its sha256 is unknown.
    """
    home = settings.home()
    if home is None:
        raise StoreError("VITZOO_HOME is ':memory:', so there is no store to import into")
    source = open_regular(path, follow=True)
    if source is None:
        raise StoreError(f"there is no file {path}")
    with os.fdopen(source, "rb"):
        with bar(path.name, in_bytes=True) as note:
            sha256, size = hash_file(source, note), os.fstat(source).st_size
        labels = _labels(registry(), _pins()).get(sha256)
        if not labels:
            raise StoreError(
                f"{path} has sha256 {sha256}, which neither the registry nor the lock names; "
                "load it with weights='FILE' instead"
            )
        with Store(home).receive(sha256, size) as partial:
            partial.copy(source)
            if partial.sha256 != sha256:
                raise IntegrityError(f"{path} changed while it was copied; try again")
    return labels


def remove(name: str, weights: str | None = None) -> int:
    """Remove the files of a variant, or of an hf:// address, from the store.

    Args:
        name: a variant, `variant:weights` or an address, see docs/create.md#which-network.
        weights: name of its weights; None for all.

    Returns:
        The number of freed bytes.

    Raises:
        UnknownName, WeightsUnavailable: no such variant, or no such weights.
    """
    home = settings.home()
    found = _located(name, weights)
    if isinstance(found, Named) and (weights or not found.variant.weights):
        found = replace(found, row=choose(found.variant, weights, registry()))
    pins = _pins()
    files = _files_of(found, registry(), pins)
    for file in files:
        if file.entry.bundled:
            part = "%s: these weights are part of the package %s, and cannot be removed alone"
            log.warning(part, file.label, file.package)
    hashes = [file.pinned(pins).pin.sha256 for file in files if not file.entry.bundled]
    return sum(Store(home).remove(sha256) for sha256 in hashes if sha256) if home else 0


def _located(name: object, weights: str | None = None) -> Named | OnHub:
    """Return the variant or the address that the arguments of `fetch` name."""
    found = locate(name, weights)
    if isinstance(found, Named | OnHub):
        return found
    raise UnknownName(
        f"{name} is no name of weights, expected a variant, VARIANT:WEIGHTS or "
        "hf://OWNER/REPO@REVISION/FILE; `vitzoo list --all` shows all variants"
    )


def _named(name: str, weights: str | None, zoo: Registry) -> HubFile | None:
    """Return the file that the arguments of `fetch` name, None for an address."""
    found = _located(name, weights)
    if isinstance(found, OnHub):
        return None
    return HubFile.of(found.variant, found.row or choose(found.variant, weights, zoo), zoo)


def _files_of(found: Named | OnHub, zoo: Registry, pins: Pins) -> list[HubFile]:
    """Return the files at an address, the named file of a variant, or all of its files."""
    if isinstance(found, OnHub):
        names = _locked_at(found.address, pins()) or [found.address]
        return [HubFile.at(address) for address in names]
    rows = (found.row,) if found.row else found.variant.weights
    return [HubFile.of(found.variant, row, zoo) for row in rows]


def _locked_at(address: str, pins: Mapping[str, Pin]) -> list[str]:
    """Return the files of the lock that an address without a file, or of an index, means."""
    repo, revision, file = parts_of_address(address)
    parent, slash, name = file.rpartition("/")
    if name and not name.endswith(INDEX):
        return []
    folder = f"{address_of(repo, revision)}/{parent}{slash}"
    return [a for a, pin in pins.items() if a.startswith(folder) and not pin.absent]


def _registered(zoo: Registry) -> Iterator[HubFile]:
    for variant in zoo.variants.values():
        yield from (HubFile.of(variant, entry, zoo) for entry in variant.weights)


def _pinned(file: HubFile, pins: Pins) -> tuple[HubFile, str]:
    """Return a file with its pin, or unchanged with the contradiction of registry and lock.

    Raises:
        PinError: the lock is damaged.
    """
    if file.entry.repo:
        pins()
    try:
        return file.pinned(pins), ""
    except PinError as error:
        return file, str(error)


def _check(file: HubFile, conflict: str) -> Check:
    """Return the check of what `_pinned` returned."""
    return file.label, partial(_verify, file, conflict)


def _verify(file: HubFile, conflict: str) -> Verification:
    if conflict:
        return Verification(file.label, "conflict", sha256=file.entry.sha256, detail=conflict)
    path, pin = stored(file), file.pin
    if path is None:
        detail = "not in the store"
        if file.entry.bundled:
            detail = f"not in the installed package {file.package}; reinstall it"
        return Verification(file.label, "missing", sha256=pin.sha256, detail=detail)
    return _compared(file.label, path, pin.sha256, pin.size, follow=bool(file.entry.path))


def _compared(
    name: str, path: Path, sha256: str, size: int = 0, *, follow: bool = False
) -> Verification:
    """Compare the bytes of a file with an expected size and SHA-256; `size` 0 means any size."""
    found = hashed(name, path, follow=follow)
    if found.state != "unpinned":
        return replace(found, sha256=sha256)
    if found.sha256 == sha256 and size in (0, found.size):
        return replace(found, state="ok")
    if found.sha256 == sha256:
        detail = f"has its sha256 and {found.size} bytes, but {size} bytes are stated; correct that"
        return replace(found, state="conflict", sha256=sha256, detail=detail)
    detail = f"{found.size} bytes, sha256 {found.sha256}"
    return replace(found, state="damaged", sha256=sha256, detail=detail)


def _checks_at(path: Path, zoo: Registry, pins: Pins) -> list[Check]:
    """Return the checks of a weights file, the shards of an index, or the files of a folder."""
    labels = _labels(zoo, pins)
    files = read_manifest(path) if os.path.isdir(path) else None  # noqa: PTH112
    if files is None:
        return [(file.name, partial(_identified, file, labels)) for file in _files(path)]

    def compared(name: str, size: int, sha256: str) -> Verification:
        row = _compared(str(path / name), path / name, sha256, size)
        known = row.state == "ok" and labels.get(sha256)
        return replace(row, detail=", ".join(known)) if known else row

    others = {entry.name: entry.lstat().st_size for entry in path.iterdir()}
    detail = f"{MANIFEST} does not name it, and another library may read it; remove it"
    damaged = partial(Verification, state="damaged", detail=detail)
    checks: list[Check] = [(n, partial(compared, n, *files[n])) for n in sorted(files)]
    return checks + [
        (name, partial(damaged, str(path / name), path=path / name, size=size))
        for name, size in sorted(others.items())
        if not (name in files or name == MANIFEST or name.startswith("."))
    ]


def _identified(path: Path, labels: Mapping[str, list[str]]) -> Verification:
    """Hash a file and search its sha256 in `labels`."""
    found = hashed(str(path), path, follow=True)
    if found.state != "unpinned":
        return found
    if known := labels.get(found.sha256):
        return replace(found, state="ok", detail=", ".join(known))
    return replace(found, detail="neither the registry nor the lock names its sha256")


def hashed(name: str, path: Path, *, follow: bool = False) -> Verification:
    """Hash a file; the state of a readable file is `unpinned`."""
    try:
        fd = open_regular(path, follow=follow)
    except StoreError as error:
        return Verification(name, "damaged", path, detail=str(error))
    if fd is None:
        return Verification(name, "missing", path, detail="there is no such file")
    with os.fdopen(fd, "rb"), bar(name.rpartition("/")[2], in_bytes=True) as note:
        return Verification(name, "unpinned", path, os.fstat(fd).st_size, hash_file(fd, note))


def _files(path: Path) -> list[Path]:
    """Return the weights files at a path: the file itself, or the shards of an index."""
    path = weights_in(path, indexes)
    fd = open_regular(path, follow=True) if (keys := keys_of(path)) else None
    if fd is None:
        return [path]
    with os.fdopen(fd, "rb"):
        shards = set(read_index(fd, str(path), keys=keys).values())
    return [path.with_name(shard) for shard in sorted(shards)]


def _labels(zoo: Registry, pins: Pins) -> dict[str, list[str]]:
    """Return, by sha256, the labels of registered files, or else their addresses in the lock."""
    labels: dict[str, list[str]] = {}
    addresses: dict[str, list[str]] = {}
    for address, pin in pins().items():
        addresses.setdefault(pin.sha256, []).append(address)
    for file in _registered(zoo):
        sha256 = file.entry.sha256 or file.locked(pins())[1].sha256
        labels.setdefault(sha256, []).append(file.label)
    return addresses | labels


def _checks_of_others(known: set[str], zoo: Registry, pins: Pins) -> list[Check]:
    """Return the checks of stored files that are not registered, such as hf:// files."""
    home = settings.home()
    if home is None:
        return []
    store, labels = Store(home), _labels(zoo, pins)
    shown = {
        sha256: " ".join(labels.get(sha256, [f"sha256:{sha256[:12]}"]))
        for sha256 in store.names()
        if sha256 not in known
    }
    return [
        (name, partial(_compared, name, store.path(sha256), sha256))
        for sha256, name in shown.items()
    ]


def pin_from_hub_cache(
    names: Sequence[str], weights: str | None, show: Show
) -> list[Sequence[HubFile] | VitzooError]:
    """Copy files from the Hub cache to the store and write their pins to the lock file.

    An error does not end the others.

    Args:
        names, weights: as in `fetch`; without names, all registered weights that have no pin and
            are in the Hub cache.
        show: shows the copy of a name.

    Returns:
        The files of each name with their pins, the weights file first, or the error.
    """
    zoo, found = registry(), list[Sequence[HubFile] | VitzooError]()
    _check_may_pin()
    _lock()
    files = {name: _named(name, weights, zoo) for name in names}
    for name, file in (files or _pinnable(zoo)).items():
        try:
            with show(name) as note:
                found.append(_from_hub_cache(name, file, note))
        except VitzooError as error:
            found.append(error)
    return found


def _pinnable(zoo: Registry) -> dict[str, HubFile | None]:
    """Return the registered files without a pin that the Hub cache has, by label."""
    pins = _pins()
    files = (file for file in _registered(zoo) if file.entry.repo and not file.entry.sha256)
    return {
        file.label: file
        for file in files
        if not _pinned(file, pins)[0].pin.sha256 and in_hub_cache(file)
    }


def _check_may_pin() -> None:
    """Raise an error if the settings forbid to take pins from the Hub cache."""
    if settings.pins_required():
        raise PinError(
            "VITZOO_PINS=required forbids pins of the Hub cache, which only states what is in it; "
            "use a lock file that names the files (VITZOO_LOCK), or unset VITZOO_PINS"
        )
    if settings.frozen():
        raise PinError(
            "the lock is frozen, so no pin of the Hub cache is written; leave --frozen out, or "
            "unset VITZOO_FROZEN"
        )


def _from_hub_cache(name: str, file: HubFile | None, note: Note | None) -> list[HubFile]:
    """Take the file of a name from the Hub cache, or for None those of an address.

    Raises:
        PinError: the file is not on the Hub.
    """
    if file is None:
        return take_cached_at(name, note)
    if not file.entry.repo:
        raise PinError(f"{file.label} is not on the Hub, so there is nothing to pin; fetch it")
    file = file.pinned()
    file = file if file.pin.sha256 else with_cached_pin(file)
    if file.pin.absent:  # only for an address it is of use to know
        raise not_from_cache(file)
    return [take_cached(file, note)]


def _lock() -> Lock:
    """Return the lock file to write.

    Raises:
        PinError: there is none.
    """
    lock = Lock(settings.lock_path())
    if lock.path is None:
        raise PinError(
            f"VITZOO_HOME is '{settings.MEMORY}', so there is no lock file to write; name one in "
            "VITZOO_LOCK, or set VITZOO_HOME to a folder"
        )
    return lock


def relock(name: str, weights: str | None = None) -> None:
    """Request the pin of a file from the trusted Hub endpoint again and write it to the lock file.

    Raises:
        PinError: the registry pins the file, or the lock file is frozen and stays unchanged.
        NetworkError: the trusted Hub endpoint does not answer; the lock file stays unchanged.
    """
    file = _named(name, weights, registry())
    files = [file] if file else files_at(name)
    if files[0].entry.sha256:
        raise PinError(f"{files[0].label} is pinned by the registry; there is nothing to lock")
    if settings.frozen():
        raise PinError(f"{files[0].label}: the lock is frozen; leave --frozen out to update it")
    lock = _lock()
    from vitzoo.store.hub_metadata import request_pin, request_pins  # imports network libraries

    known = lock.pins()
    if file is None and not parts_of_address(name)[2]:
        files.append(files[0].beside(SHARDED))
    there = {one.address for one in files}
    shards = [] if file else [a for a in _locked_at(name, known) if SHARD.search(a)]
    files += [HubFile.at(address) for address in shards if address not in there]
    pins = dict(zip(files, request_pins(files), strict=True))
    if all(pin.absent for one, pin in pins.items() if one.is_index or not one.small):
        request_pin(files[0])  # raises the error about a missing file
    for one, pin in pins.items():
        if not (one.is_index and pin.absent and one.address not in known):
            lock.add(one.address, pin, replace=True)
