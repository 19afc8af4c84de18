"""A download under way: a file of our own that is hashed as it grows; torch-free."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import secrets
import stat
import time
from pathlib import Path

from vitzoo.errors import StoreError

CHUNK = 1024 * 1024
ABANDONED = 3600.0  # seconds without a byte after which a partial file has no writer any more
READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
WRITE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_in_use: set[str] = set()  # names of this process's partial files


class Partial:
    """The beginning of a file, with the hash of what is there.

    A process takes a partial file by renaming it to a name of its own, so that two never write the
    same one even where locks do nothing. On failure it goes back under its common name for the
    next run; a killed process leaves it under its own name, where the next run finds it and copies
    it, as nobody can be sure on every file system that its writer is gone.

    Args:
        path: the common name; None keeps the bytes in memory.
        bound: most bytes the file may have; a longer beginning is thrown away.
    """

    def __init__(self, path: Path | None, bound: int) -> None:
        self.common = path
        self.bound = bound
        self.path: Path | None = None
        self.size = 0
        self._name = ""
        self._digest = hashlib.sha256()
        if path is None:
            self.fd = os.memfd_create("vitzoo", os.MFD_CLOEXEC)
        else:
            self.fd, self.path = self._take(path)
            self._name = self.path.name
            _in_use.add(self._name)
            self.read_beginning()
            self._inherit(path)

    @property
    def sha256(self) -> str:
        """Hash of the bytes so far."""
        return self._digest.hexdigest()

    def write(self, chunk: bytes) -> None:
        """Append bytes.

        Raises:
            StoreError: the disk is full or the file cannot be written; what is there is kept.
        """
        view = memoryview(chunk)
        while view:
            try:
                written = os.pwrite(self.fd, view, self.size)
            except OSError as error:
                raise StoreError(
                    f"cannot write {self.path or 'memory'}: {error.strerror} after {self.size} "
                    f"of {self.bound} bytes; make room, or point VITZOO_HOME to another disk"
                ) from error
            self._digest.update(view[:written])
            self.size += written
            view = view[written:]

    def restart(self) -> None:
        """Throw the bytes away."""
        os.ftruncate(self.fd, 0)
        self.size = 0
        self._digest = hashlib.sha256()

    def release(self) -> None:
        """Give the file back under its common name, for a later run; remove it if it is empty."""
        os.close(self.fd)
        _in_use.discard(self._name)
        if self.path is None or self.common is None:
            return
        with contextlib.suppress(OSError):
            if self.size:
                self.path.replace(self.common)
            else:
                self.path.unlink()

    def _take(self, common: Path) -> tuple[int, Path]:
        name = f"{common.name}.{_place()}.{os.getpid()}.{secrets.token_hex(4)}"
        own = common.with_name(name)
        with contextlib.suppress(OSError):
            common.rename(own)
        try:
            fd = os.open(own, WRITE_FLAGS, 0o600)
            if stat.S_ISREG(os.fstat(fd).st_mode) and os.fstat(fd).st_nlink == 1:
                return fd, own
            os.close(fd)
        except OSError:
            pass
        # A link, a pipe, a folder or another's file lay there: leave it, start with a fresh one.
        with contextlib.suppress(OSError):
            own.unlink()
        own = own.with_name(f"{own.name}.new")
        try:
            return os.open(own, WRITE_FLAGS | os.O_EXCL, 0o600), own
        except OSError as error:
            raise StoreError(
                f"cannot write in {common.parent}: {error.strerror}; make it writable, or point "
                "VITZOO_HOME to another folder"
            ) from error

    def read_beginning(self) -> None:
        """Hash what the file already holds; throw it away if it is longer than it may be."""
        if os.fstat(self.fd).st_size > self.bound:
            os.ftruncate(self.fd, 0)
        while chunk := os.pread(self.fd, CHUNK, self.size):
            self._digest.update(chunk)
            self.size += len(chunk)

    def _inherit(self, common: Path) -> None:
        """Continue the longest beginning that a killed process left; clear all of them away."""
        for path in common.parent.glob(f"{common.name}.*"):
            with contextlib.suppress(OSError, StoreError):
                if path != self.path and _abandoned(path, common):
                    if self.size < path.lstat().st_size <= self.bound:
                        self._copy(path)
                    path.unlink()

    def _copy(self, path: Path) -> None:
        source = os.open(path, READ_FLAGS)
        try:
            if stat.S_ISREG(os.fstat(source).st_mode):
                self.restart()
                while chunk := os.pread(source, min(CHUNK, self.bound - self.size), self.size):
                    self.write(chunk)
        finally:
            os.close(source)


def _abandoned(path: Path, common: Path) -> bool:
    """Tell whether the process that a partial file is named after is gone."""
    place, _, rest = path.name.removeprefix(f"{common.name}.").partition(".")
    pid = rest.partition(".")[0]
    if place != _place() or not pid.isdigit():
        return time.time() - path.lstat().st_mtime > ABANDONED
    if int(pid) == os.getpid():
        return path.name not in _in_use
    return not _alive(int(pid))


@functools.cache
def _place() -> str:
    """Name the boot and container in which the ids of this machine's processes mean something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        place = f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        place = platform.node()
    return hashlib.sha256(place.encode()).hexdigest()[:8]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
