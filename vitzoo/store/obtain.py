"""Opening the verified file of registered weights, which is fetched if need be; torch-free.

The sha256 comes from the registry, from the lock file, or on first use from the trusted Hub
endpoint. With it, the file is searched in the store, in the user's Hub cache and at the endpoints.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import disk_usage

from filelock import Timeout

from vitzoo import settings
from vitzoo.errors import (
    EntryNotFound,
    FirstUseWarning,
    IntegrityError,
    NetworkError,
    Offline,
    PinError,
    StoreError,
    WeightsUnavailable,
    printable,
)
from vitzoo.files.access import fix_of, hash_file, make_folder_or_raise, open_regular
from vitzoo.files.names import on_hub
from vitzoo.log import log
from vitzoo.plugin.package_files import data_file
from vitzoo.progress import Note
from vitzoo.schema.addresses import parts_of_name
from vitzoo.store.hub_cache import copy_from_hub_cache, in_hub_cache
from vitzoo.store.hub_file import HubFile
from vitzoo.store.lockfile import HUB_CACHE, UNPINNED, Lock
from vitzoo.store.locks import locked
from vitzoo.store.partial_file import Partial, copy_verified
from vitzoo.store.store import Store
from vitzoo.text import UNWRITABLE, megabytes

TERMS = "accept the terms on that page, then log in with `hf auth login` or set HF_TOKEN"
_GUARD = threading.Lock()  # of the three sets below
_TRUSTED: set[tuple[Path | None, str, str]] = set()  # lock file, address and sha256 that were said
_SHOWN: set[str] = set()  # places whose terms this process has shown
_ARRIVING: set[Partial] = set()  # files that this process is fetching


def obtain(file: HubFile, note: Note | None = None) -> tuple[int, str]:
    """Return a descriptor of the verified file, open for reading, and the sha256 of the file.

    Args:
        file: the registered file; its pin is looked up here.
        note: called with (bytes so far, bytes in all) during a download.

    Raises:
        WeightsError: one of its kinds; the file is missing, or could not be verified.
    """
    if file.entry.bundled:
        return _bundled(file), file.entry.sha256
    stated, file = file.pin, _pinned(file)
    if file.needs_pin:
        _check_first_use(file)
    if file.needs_pin or file.pin is stated:
        with _asking(file.address):
            file = _pinned(replace(file, pin=stated))  # another process may have pinned it
            if file.needs_pin or file.pin is stated:
                file = _first_used(file)
                fd = _there(file, note)
                _lock(file)
                return fd, file.pin.sha256
    return _there(file, note), file.pin.sha256


def _pinned(file: HubFile) -> HubFile:
    """Return a file with its pin of registry or lock, which must be the one it came with."""
    stated, file = file.pin, file.pinned()
    if file.pin.absent and not file.entry.sha256:
        raise EntryNotFound(
            f"{file}: commit {file.pin.commit} has no such file, as the lock "
            f"{settings.lock_path()} states; `vitzoo lock --update {file.address}` asks again"
        )
    if stated.sha256 not in ("", file.pin.sha256):
        raise PinError(
            f"{file}: the lock {settings.lock_path()} names another sha256 than when its configs "
            f"were read, {file.pin.sha256} instead of {stated.sha256}; try again"
        )
    return file


def _there(file: HubFile, note: Note | None) -> int:
    """Return a descriptor of a verified file; download it if it is not stored."""
    fd = _stored(file)
    return _bring(file, note) if fd is None else fd


def stored(file: HubFile) -> Path | None:
    """Return the path of a bundled, stored or own file, unverified; None if it is missing.

    `file` has its pin.
    """
    entry = file.entry
    if entry.bundled:
        return data_file(file.package, entry.file)
    home, sha256 = settings.home(), file.pin.sha256
    in_store = [Store(home).path(sha256)] if home and sha256 else []
    own = [Path(entry.path)] if entry.path else []
    return next((path for path in in_store + own if os.path.lexists(path)), None)


def _bundled(file: HubFile) -> int:
    entry = file.entry
    path = data_file(file.package, entry.file)
    fd = open_regular(path, follow=True) if path else None
    if fd is None:
        raise WeightsUnavailable(
            f"{file.label}: {entry.file} is missing from the package {file.package!r}; reinstall it"
        )
    size, sha256 = os.fstat(fd).st_size, hash_file(fd)
    if (size, sha256) != (entry.size, entry.sha256):
        os.close(fd)
        raise IntegrityError(
            f"{file.label}: {path} has {size} bytes, sha256 {sha256}; the registry names "
            f"{entry.size} bytes, sha256 {entry.sha256}; the file is damaged or was replaced: "
            "reinstall its package"
        )
    return fd


def _first_used(file: HubFile) -> HubFile:
    """Return a file with the pin that the trusted Hub endpoint states; ask if it is not known."""
    _show_terms(file)
    if file.needs_pin:
        from vitzoo.store.hub_metadata import request_pin  # imports network libraries

        file = replace(file, pin=request_pin(file))
    return file


def together(files: Sequence[HubFile]) -> list[HubFile]:
    """Return files of one repository with their pins, all of one commit.

    One request asks the trusted Hub endpoint for the pins that are not known yet. The pins of
    configs are written to the lock, also of those that the repository does not have. Where only
    that of the one weights file is unknown, `obtain` asks for it.

    Raises:
        WeightsError: as `obtain`.
    """
    new = next((file for file in files if file.pinned().needs_pin), None)
    if new is None:
        return _with_pins(files)
    _check_first_use(new)
    with _asking(new.address.removesuffix(new.entry.file)):  # another process may pin the configs
        return _with_pins(files)


def _with_pins(files: Sequence[HubFile]) -> list[HubFile]:
    files = [file.pinned() for file in files]
    commits = sorted({file.pin.commit for file in files if file.pin.commit})
    if len(commits) > 1:
        raise PinError(
            f"{files[0].address}: the lock {settings.lock_path()} names several commits of its "
            f"repository: {', '.join(commits)}; ask again with `vitzoo lock --update`"
        )
    new = [file for file in files if file.needs_pin]
    if not new:
        return files
    known = replace(UNPINNED, commit=commits[0]) if commits else UNPINNED
    asked = [replace(file, pin=known) for file in new]
    alone = all(file.small or file.pin.absent for file in files if file not in new)
    if not (commits and len(new) == 1 and alone and not new[0].small):
        from vitzoo.store.hub_metadata import stated  # imports network libraries

        asked = stated(asked)
    for file in asked:
        if file.pin.absent or file.small:
            _lock(file)  # weights are pinned once their bytes are verified
    found = dict(zip(new, asked, strict=True))
    return [found.get(file, file) for file in files]


def read_small(file: HubFile) -> bytes | None:
    """Return the verified bytes of a config with a pin; None if the repository does not have it."""
    if file.pin.absent:
        return None
    with os.fdopen(obtain(file)[0], "rb") as opened:
        return opened.read()


def _check_first_use(file: HubFile) -> None:
    """Raise an error if the settings forbid to ask for a pin."""
    unknown = f"{file.label}: the sha256 of {file.address} is not known"
    if settings.pins_required():
        raise PinError(
            f"{unknown} and VITZOO_PINS=required; use a lock file that names it (VITZOO_LOCK), or "
            "fetch it once without VITZOO_PINS, which writes one"
        )
    if settings.frozen():
        raise PinError(f"{unknown} and the lock is frozen; fetch it once without --frozen")
    if settings.offline():
        if in_hub_cache(file):
            raise Offline(
                f"{unknown} and vitzoo is offline, but the Hub cache has the file; hash and pin it "
                f"with vitzoo lock --from-hub-cache {file.label}"
            )
        raise Offline(
            f"{unknown} and vitzoo is offline; copy the weights file, and a lock file that names "
            "it (VITZOO_LOCK), from another machine (see docs/trust.md#without-a-network), or run "
            f"with network access: {_fetch_command(file)}"
        )


def _lock(file: HubFile) -> None:
    """Write the pin of a file to the lock file, and say that a weights file was trusted.

    For an address this is a FirstUseWarning. For registered weights it is one line of the log.
    """
    path, pin = settings.lock_path(), file.pin
    Lock(path).add(file.address, pin)
    if pin.absent:
        return
    log.info(
        "%s: pinned %s to commit %s, %d bytes and sha256 %s, as %s states",
        *(file.label, file.address, pin.commit, pin.size, pin.sha256, pin.endpoint),
    )
    if file.small:
        return
    where = f"pinned now in {printable(path)}" if path else "not pinned: there is no lock file"
    trust = "hashed from the Hub cache" if pin.endpoint == HUB_CACHE else "trust on first use"
    text = f"{file.label}: {trust}, {megabytes(pin.size)}, {where}"
    if on_hub(file.label) or settings.pins_warn():
        with contextlib.suppress(*UNWRITABLE):
            warnings.warn(text, FirstUseWarning, stacklevel=_caller_level())
        return
    with _GUARD:  # without a lock file, each call pins it again
        known = (path, file.address, pin.sha256)
        if known in _TRUSTED:
            return
        _TRUSTED.add(known)
    log.warning("%s", text)


def _caller_level() -> int:
    """Return the `stacklevel` that names the line of the user's code, not one of vitzoo."""
    from traceback import extract_stack  # needed once for each file

    package = f"{Path(__file__).parents[1]}{os.sep}"
    files = [frame.filename for frame in extract_stack()[-2::-1]]  # that of `_lock` first
    return 2 + max(i for i, file in enumerate(files) if file.startswith(package))


def _fetch_command(file: HubFile) -> str:
    if on_hub(file.label):
        return f"vitzoo fetch {file.label}"
    variant, name = parts_of_name(file.label)
    return f"vitzoo fetch {variant} --weights {name}"


def _stored(file: HubFile) -> int | None:
    home = settings.home()
    if home is None:
        return None
    always = settings.verify_mode() != "stamp"
    try:
        return Store(home).open(file.pin.sha256, file.size, always=always)
    except IntegrityError as error:
        if settings.offline():
            raise
        log.warning("%s; fetching it again", error)
        return None


def _bring(file: HubFile, note: Note | None) -> int:
    """Copy or download a file that the store lacks; other processes wait for the one that does."""
    home = settings.home()
    if home is None:
        partial = Partial(None, file.bound)
        try:
            _fill(file, partial, note)
        except BaseException:
            partial.release()
            raise
        return partial.fd
    store = Store(home)
    with _alone(file.pin.sha256, file):
        fd = _stored(file)
        if fd is not None:
            return fd
        with store.receive(file.pin.sha256, file.bound) as partial:
            try:
                _check_room(home, file, partial)
                _fill(file, partial, note)
            finally:
                _ARRIVING.discard(partial)
        fd = store.open(file.pin.sha256, file.size)
    if fd is None:
        raise StoreError(
            f"{store.path(file.pin.sha256)} vanished right after it was stored; try again"
        )
    return fd


def _check_room(home: Path, file: HubFile, partial: Partial) -> None:
    """Raise an error if the disk has no room for a file and for those that are arriving."""
    with _GUARD:
        taken = sum(max(0, other.bound - other.size) for other in _ARRIVING)
        free, needed = disk_usage(home).free, file.bound - partial.size
        if free < taken + needed:
            others = f", of which other downloads take {taken}" if taken else ""
            raise StoreError(
                f"{file}: needs {needed} bytes in {home}, {free} are free{others}; make room, or "
                "point VITZOO_HOME to another disk"
            )
        _ARRIVING.add(partial)


def _fill(file: HubFile, partial: Partial, note: Note | None) -> None:
    if file.data:
        partial.restart()
        partial.write(file.data)
        return
    if path := file.entry.path:
        fix = "put the right file there, or correct the entry in the registry file"
        source = open_regular(Path(path), follow=True)
        if source is None:
            raise WeightsUnavailable(f"{file.label}: there is no file {path}; {fix}")
        copy_verified(file, source, path, partial, fix)
        return
    if file.entry.repo and copy_from_hub_cache(file, partial):
        return
    if settings.offline():
        size = f"{file.size} bytes" if file.size else "size not known"
        cache = ", no file in the Hub cache has its sha256," if file.entry.repo else ""
        raise Offline(
            f"{file.label} is not in the store{cache} and vitzoo is offline",
            f"with a network, run {_fetch_command(file)}",
            f"or download {file.link} (sha256 {file.pin.sha256}, {size}) on another machine, and "
            "run vitzoo import FILE here",
        )
    _show_terms(file)
    _download(file, partial, note)


def _download(file: HubFile, partial: Partial, note: Note | None) -> None:
    """Download a file from the first endpoint that has it."""
    from vitzoo.store.download import download  # imports network libraries

    failures: list[IntegrityError | NetworkError] = []
    endpoints = [file.entry.url] if file.entry.url else settings.endpoints()
    for endpoint in endpoints:
        try:
            download(file, endpoint, partial, settings.limits(), note)
        except (IntegrityError, NetworkError) as error:
            failures.append(error)
            if len(endpoints) > 1:
                log.warning("%s failed: %s", endpoint, error.args[0])
        else:
            return
    # Wrong bytes tell the user more than an endpoint that cannot be reached.
    worst = next((e for e in failures if isinstance(e, IntegrityError)), failures[-1])
    if len(failures) == 1:
        raise worst
    texts = [f"{url}: {error.args[0]}" for url, error in zip(endpoints, failures, strict=True)]
    raise type(worst)(f"{len(failures)} endpoints failed", *texts, *worst.args[1:]) from worst


def _show_terms(file: HubFile) -> None:
    """Log the license of a file, once per repository, if its users have to read terms."""
    entry = file.entry
    with _GUARD:
        if not entry.has_terms or file.page in _SHOWN:
            return
        _SHOWN.add(file.page)
    log.warning(
        "%s: license %s; read its terms before use: %s%s",
        file.label,
        entry.license or "not known",
        file.page,
        f"; access is gated: {TERMS}" if entry.gated else "",
    )


@contextmanager
def _asking(address: str) -> Iterator[None]:
    """Hold the lock of an address until its pin is written, so that other processes do not ask."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_alone(hashlib.sha256(address.encode()).hexdigest(), address))
        except StoreError as error:
            if isinstance(error.__cause__, Timeout):
                raise
        yield  # without a lock, where none can be made: they ask for the same pin


@contextmanager
def _alone(name: str, what: object) -> Iterator[None]:
    """Hold a lock file of the store; wait a bounded time for another process that does."""
    home, patience = settings.home(), settings.limits().lock_wait
    if home is None:
        yield
        return
    make_folder_or_raise(home / "locks")
    path = home / "locks" / f"{name}.lock"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(path, what, patience))
        except Timeout as error:
            raise StoreError(
                f"{what}: another process has locked {path} for {patience:.0f} s; end that "
                "process, or remove the lock if no such process is running"
            ) from error
        except OSError as error:
            elsewhere = "point VITZOO_HOME to another disk"
            fix = fix_of(error, f"make it writable, or {elsewhere}", elsewhere)
            raise StoreError(f"cannot lock {path}: {error.strerror}; {fix}") from error
        yield
