"""From a row of weights to an open file whose bytes are proven; torch-free.

What a file must be is decided before anything is looked at: by the registry, by the lock, or, on
first use, by the authority. Then the store is asked, the user's Hub cache, the endpoints in order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from vitzoo import settings
from vitzoo.errors import (
    FirstUseWarning,
    IntegrityError,
    NetworkError,
    Offline,
    PinError,
    StoreError,
    WeightsUnavailable,
)
from vitzoo.files.access import hash_file, make_folder_or_raise, open_regular
from vitzoo.plugin.package_files import data_file
from vitzoo.schema.rows import Weights
from vitzoo.store.hub_cache import from_hub_cache
from vitzoo.store.hub_file import Remote
from vitzoo.store.lockfile import Lock, Pin, pin_of, source_of
from vitzoo.store.partial_file import Partial
from vitzoo.store.progress import Note
from vitzoo.store.store import Store

log = logging.getLogger("vitzoo")

TERMS = "accept the terms on that page, then log in with `hf auth login` or set HF_TOKEN"
_SHOWN: set[str] = set()  # repositories whose terms this process has shown


def obtain(weights: Weights, label: str, package: str = "vitzoo", note: Note | None = None) -> int:
    """Return a file descriptor of the verified file, open for reading.

    Args:
        weights: the row.
        label: what it is, for messages: `vit_b16:augreg_in21k`.
        package: where a bundled file lies.
        note: called with (bytes so far, bytes in all) during a download.

    Raises:
        WeightsError: one of its kinds; no bytes are handed out that were not proven.
    """
    if not weights.repo:
        return _bundled(weights, label, package)
    pin = pin_of(weights)
    remote = _remote(weights, label, pin or _first_use(weights, label))
    fd = _stored(remote) if settings.home() else None
    if fd is None:
        fd = _bring(remote, note)
    if pin is None:
        _remember(weights, label, remote)
    return fd


def stored(weights: Weights) -> Path | None:
    """Return where the store has the file, unverified; None if it has not or has no pin."""
    home, pin = settings.home(), pin_of(weights)
    if home is None or pin is None or not os.path.lexists(Store(home).path(pin.sha256)):
        return None
    return Store(home).path(pin.sha256)


def _bundled(weights: Weights, label: str, package: str) -> int:
    path = data_file(package, weights.file)
    fd = open_regular(path, follow=True) if path else None
    if fd is None:
        raise WeightsUnavailable(
            f"{label}: {weights.file} is missing from the package {package!r}; reinstall it"
        )
    size, sha256 = os.fstat(fd).st_size, hash_file(fd)
    if (size, sha256) != (weights.size, weights.sha256):
        os.close(fd)
        raise IntegrityError(
            f"{label}: {path} has {size} bytes, sha256 {sha256}; the registry names "
            f"{weights.size} bytes, sha256 {weights.sha256}; the file is damaged or was "
            "replaced: reinstall the package it came with"
        )
    return fd


def _remote(weights: Weights, label: str, pin: Pin) -> Remote:
    return Remote(
        repo=weights.repo,
        revision=pin.commit,
        file=weights.file,
        sha256=pin.sha256,
        size=pin.size or None,
        predicted_size=weights.predicted_size,
        label=label,
        license=weights.license,
        has_terms=weights.has_terms,
        gated=weights.gated,
    )


def _first_use(weights: Weights, label: str) -> Pin:
    """Ask the authority what an unpinned file is, if the policies allow it."""
    source = source_of(weights)
    unknown = f"{label}: the sha256 of {source} is not known"
    if settings.pins_required():
        raise PinError(
            f"{unknown} and VITZOO_PINS=required; bring a lock that names it (VITZOO_LOCK), or "
            "fetch it once without VITZOO_PINS, which writes one"
        )
    if settings.frozen():
        raise PinError(f"{unknown} and the lock is frozen; fetch it once without --frozen")
    if settings.offline():
        raise Offline(
            f"{unknown} and this is offline; bring the file with a lock that names it "
            "(VITZOO_LOCK, see docs/offline.md), or fetch it once with a network: "
            f"{_fetch_command(label)}"
        )
    _show_terms(_remote(weights, label, Pin(weights.revision, 0, "", "")))
    from vitzoo.store.hub_metadata import ask_authority  # imports the network's libraries

    pin = ask_authority(weights, label)
    path = settings.lock_path()
    kept = f"and from now on the lock {path} holds it to that" if path else "and no lock keeps that"
    warnings.warn(
        f"{label}: first use of {source}; {pin.authority} says it has {pin.size} bytes, sha256 "
        f"{pin.sha256}, {kept}",
        FirstUseWarning,
        stacklevel=2,
    )
    return pin


def _fetch_command(label: str) -> str:
    if label.startswith("hf://"):
        return f"vitzoo fetch {label}"
    variant, _, name = label.partition(":")
    return f"vitzoo fetch {variant} --weights {name}"


def _remember(weights: Weights, label: str, remote: Remote) -> None:
    pin = Pin(remote.revision, remote.size or 0, remote.sha256, settings.trust_endpoint())
    Lock(settings.lock_path()).add(source_of(weights), pin)
    log.info("%s: pinned %s to sha256 %s", label, source_of(weights), pin.sha256)


def _stored(remote: Remote) -> int | None:
    home = settings.home()
    if home is None:
        return None
    always = settings.verify_mode() != "stamp"
    try:
        return Store(home).open(remote.sha256, remote.size, always=always)
    except IntegrityError as error:
        if settings.offline():
            raise
        log.warning("%s; fetching it again", error)
        return None


def _bring(remote: Remote, note: Note | None) -> int:
    """Copy or download a file that the store lacks; one process does, others wait for it."""
    home = settings.home()
    if home is None:
        partial = Partial(None, remote.bound)
        try:
            _fill(remote, partial, note)
        except BaseException:
            partial.release()
            raise
        return partial.fd
    store = Store(home)
    with _alone(home, remote):
        fd = _stored(remote)
        if fd is not None:
            return fd
        make_folder_or_raise(store.partial(remote.sha256).parent)
        partial = Partial(store.partial(remote.sha256), remote.bound)
        try:
            _check_space(home, remote, partial.size)
            _fill(remote, partial, note)
            store.adopt(partial)
        finally:
            partial.release()
        fd = store.open(remote.sha256, remote.size)
    if fd is None:
        raise StoreError(f"{store.path(remote.sha256)} vanished right after it was stored")
    return fd


def _fill(remote: Remote, partial: Partial, note: Note | None) -> None:
    if from_hub_cache(remote, partial):
        return
    if settings.offline():
        size = f"{remote.size} bytes" if remote.size else "size not known"
        raise Offline(
            f"{remote} is not in the store and this is offline (file {remote.file}, sha256 "
            f"{remote.sha256}, {size}); with a network: {_fetch_command(remote.label)}; or carry "
            "the file here: vitzoo import FILE"
        )
    from vitzoo.store.download import download

    _show_terms(remote)
    failures: list[IntegrityError | NetworkError] = []
    endpoints = settings.endpoints()
    for endpoint in endpoints:
        try:
            download(remote, endpoint, partial, settings.limits(), note)
        except (IntegrityError, NetworkError) as error:
            failures.append(error)
            if len(endpoints) > 1:
                log.warning("%s failed: %s", endpoint, error)
        else:
            return
    _raise_worst(failures, endpoints)


def _show_terms(remote: Remote) -> None:
    """Say before a first request, once, by which terms a file may be used, and who may have it."""
    if not remote.has_terms or remote.repo in _SHOWN:
        return
    _SHOWN.add(remote.repo)
    log.warning(
        "%s: license %s; read its terms before use: %s%s",
        remote.label,
        remote.license or "not known",
        remote.page,
        f"; access is gated: {TERMS}" if remote.gated else "",
    )


def _raise_worst(failures: list[IntegrityError | NetworkError], endpoints: list[str]) -> None:
    """Raise the error that says most: wrong bytes before an unreachable host."""
    worst = next((e for e in failures if isinstance(e, IntegrityError)), failures[-1])
    if len(failures) == 1:
        raise worst
    others = "; ".join(f"{url}: {e}" for url, e in zip(endpoints, failures, strict=True))
    raise type(worst)(f"{len(failures)} endpoints failed. {others}") from worst


@contextmanager
def _alone(home: Path, remote: Remote) -> Iterator[None]:
    """Hold the file's lock, waiting a bounded time for another process."""
    folder, patience = home / "locks", settings.limits().lock_wait
    make_folder_or_raise(folder)
    lock = FileLock(folder / f"{remote.sha256}.lock")
    try:
        try:
            lock.acquire(timeout=1.0)
        except Timeout:
            log.info("%s: waiting for another process that fetches it", remote)
            lock.acquire(timeout=patience)
    except Timeout as error:
        raise StoreError(
            f"{remote}: another process has held {lock.lock_file} for {patience:.0f} s; end it, or "
            "remove the lock if none is running"
        ) from error
    except OSError as error:
        raise StoreError(f"cannot lock {lock.lock_file}: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.release()


def _check_space(home: Path, remote: Remote, present: int) -> None:
    status = os.statvfs(home)
    free, needed = status.f_bavail * status.f_frsize, remote.bound - present
    if free < needed:
        raise StoreError(
            f"{remote}: needs {needed} bytes in {home}, {free} are free; make room, or point "
            "VITZOO_HOME to another disk"
        )
