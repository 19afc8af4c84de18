"""A partial file: an unfinished download, hashed while it is written; torch-free."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from vitzoo.errors import HashMismatch, SizeMismatch, StoreError
from vitzoo.files.access import CHUNK, copy_blocks, unwritable
from vitzoo.files.platform import files as system

if TYPE_CHECKING:
    from vitzoo.store.hub_file import HubFile

ABANDONED = 600.0  # seconds; a download without a byte is ended long before by its limits


class Partial:
    """The first bytes of a file, with their hash.

    Each process writes to a file with a unique name. After a failure, the process renames its file
    to the common name, from which the next run continues it. The file of a killed process keeps its
    unique name; a later run continues it if nothing was written to it for `ABANDONED` seconds. A
    run renames a file before it continues it, so two processes never write to one file, even where
    file locks have no effect.

    Args:
        path: the common name; None keeps the bytes in memory.
        bound: most bytes that the file may have; a longer partial file is removed.
    """

    def __init__(self, path: Path | None, bound: int) -> None:
        self.common = path
        self.bound = bound
        self.path = path and path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        self.size = 0
        self._digest = hashlib.sha256()
        if path is None or self.path is None:
            self.fd = system.unnamed_file()
        else:
            self.fd = self._take(path, self.path)
            self._hash_beginning()

    @property
    def sha256(self) -> str:
        """The sha256 of the bytes so far."""
        return self._digest.hexdigest()

    def write(self, chunk: bytes) -> None:
        """Append bytes.

        Raises:
            StoreError: the disk is full, or the file cannot be written; earlier bytes are kept.
        """
        view = memoryview(chunk)
        try:
            while view:
                written = system.pwrite(self.fd, view, self.size)
                self._digest.update(view[:written])
                self.size += written
                view = view[written:]
        except OSError as error:
            raise StoreError(
                f"cannot write {self.path or 'memory'}: {error.strerror} after {self.size} "
                f"of {self.bound} bytes; make room, or point VITZOO_HOME to another disk"
            ) from error

    def restart(self) -> None:
        """Remove all bytes."""
        os.ftruncate(self.fd, 0)
        self.size = 0
        self._digest = hashlib.sha256()

    def copy(self, source: int) -> None:
        """Replace the bytes by those of an open file, at most `bound` bytes.

        The two files share their blocks on disk if the file system supports it.

        Raises:
            StoreError: as `write`.
        """
        self.restart()
        copy_blocks(source, self.fd, self.bound)
        self._hash_beginning()
        while chunk := system.pread(source, min(CHUNK, self.bound - self.size), self.size):
            self.write(chunk)

    def move(self, path: Path) -> None:
        """Rename the complete file, and remove partial files that other runs left.

        Raises:
            OSError: it cannot be moved.
        """
        if self.path is None or self.common is None:
            return
        system.move_new(self.path, path)
        self.path = None
        for left in leftovers(self.common):
            with contextlib.suppress(OSError):
                left.unlink()

    def release(self) -> None:
        """Rename the file to its common name, for a later run; remove it if it is empty."""
        os.close(self.fd)
        if self.path is None or self.common is None:
            return
        with contextlib.suppress(OSError):
            if self.size:
                self.path.replace(self.common)
            else:
                self.path.unlink()

    def _take(self, common: Path, own: Path) -> int:
        """Open the longest partial file that an earlier run left, or a new one."""
        fd = None
        for left in leftovers(common):
            with contextlib.suppress(OSError):  # another process was first
                status = left.lstat()
                good = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
                if fd is None and good and status.st_size <= self.bound:
                    os.utime(left)  # before the new name: no other process continues a recent file
                    left.rename(own)
                    fd = system.open_file(own, os.O_RDWR)
                else:
                    left.unlink()
        if fd is not None:
            return fd
        try:
            return system.open_file(own, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise unwritable(common.parent, error) from error

    def _hash_beginning(self) -> None:
        while chunk := system.pread(self.fd, CHUNK, self.size):
            self._digest.update(chunk)
            self.size += len(chunk)


def leftovers(common: Path) -> list[Path]:
    """Return the partial files that earlier runs left, the longest first.

    Args:
        common: the name that a failed run gives to its file. A file with a unique name is returned
            only if nothing was written to it for `ABANDONED` seconds.
    """
    sizes: dict[Path, int] = {}
    for path in common.parent.glob(f"{common.name}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if path == common or time.time() - status.st_mtime > ABANDONED:
                sizes[path] = status.st_size
    return sorted(sizes, key=sizes.__getitem__, reverse=True)


def copy_verified(
    file: HubFile, source: int, path: str | os.PathLike[str], partial: Partial, fix: str
) -> None:
    """Copy an open file of the user, which may change later, and check the copy; close the file.

    Raises:
        HashMismatch, SizeMismatch: it is another file than the pin names; `fix` ends the message.
    """
    with os.fdopen(source, "rb"):
        size = os.fstat(source).st_size
        if file.size not in (None, size):
            raise SizeMismatch(
                f"{file.label}: {path} has {size} bytes, expected {file.size}; {fix}"
            )
        partial.copy(source)
    if partial.sha256 != file.pin.sha256:
        found = partial.sha256
        partial.restart()
        raise HashMismatch(
            f"{file.label}: {path} has sha256 {found}, expected {file.pin.sha256}; {fix}"
        )
