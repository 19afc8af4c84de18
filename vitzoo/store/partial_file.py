"""A download under way: a file of our own that is hashed as it grows; torch-free."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import time
from pathlib import Path

from vitzoo.errors import StoreError
from vitzoo.files.access import CHUNK, unwritable

ABANDONED = 600.0  # seconds; the limits of a download end one without a byte long before
FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Partial:
    """The beginning of a file, with the hash of what is there.

    Every process writes to a file of its own name. On failure the file is renamed to the common
    name, where the next run finds it; a killed process leaves it under its own name, and the next
    run finds it when nothing was written to it for `ABANDONED` seconds. A run renames what it
    continues first, so that two never write to one file even where locks have no effect.

    Args:
        path: the common name; None keeps the bytes in memory.
        bound: most bytes the file may have; a longer beginning is removed.
    """

    def __init__(self, path: Path | None, bound: int) -> None:
        self.common = path
        self.bound = bound
        self.path = path and path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        self.size = 0
        self._digest = hashlib.sha256()
        if path is None or self.path is None:
            self.fd = os.memfd_create("vitzoo", os.MFD_CLOEXEC)
        else:
            self.fd = self._take(path, self.path)
            self._hash_beginning()

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

    def copy(self, source: int) -> None:
        """Replace the bytes by those of an open file, `bound` at most.

        Blocks are shared where the file system can.

        Raises:
            StoreError: as `write`.
        """
        self.restart()
        position = 0
        with contextlib.suppress(OSError):  # on another disk, say; what is missing is written below
            while count := os.copy_file_range(
                source, self.fd, self.bound - position, position, position
            ):
                position += count
        self._hash_beginning()
        while chunk := os.pread(source, min(CHUNK, self.bound - self.size), self.size):
            self.write(chunk)

    def move(self, path: Path) -> None:
        """Give the complete file its name, and remove what other runs left of it.

        Raises:
            OSError: it cannot be moved.
        """
        if self.path is None or self.common is None:
            return
        self.path.replace(path)
        self.path = None
        for left in leftovers(self.common):
            with contextlib.suppress(OSError):
                left.unlink()

    def release(self) -> None:
        """Give the file back under its common name, for a later run; remove it if it is empty."""
        os.close(self.fd)
        if self.path is None or self.common is None:
            return
        with contextlib.suppress(OSError):
            if self.size:
                self.path.replace(self.common)
            else:
                self.path.unlink()

    def _take(self, common: Path, own: Path) -> int:
        """Open the longest beginning that an earlier run left, else a new file."""
        fd = None
        for left in leftovers(common):
            with contextlib.suppress(OSError):  # another process was first
                status = left.lstat()
                good = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
                if fd is None and good and status.st_size <= self.bound:
                    os.utime(left)  # before it has another name: nobody else continues it
                    left.rename(own)
                    fd = os.open(own, FLAGS)
                else:
                    left.unlink()
        if fd is not None:
            return fd
        try:
            return os.open(own, FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise unwritable(common.parent, error.strerror or str(error)) from error

    def _hash_beginning(self) -> None:
        while chunk := os.pread(self.fd, CHUNK, self.size):
            self._digest.update(chunk)
            self.size += len(chunk)


def leftovers(common: Path) -> list[Path]:
    """Return what earlier runs left of a file, the longest first.

    Args:
        common: the name under which a failed run gives its file back. Files of other names count
            when nothing was written to them for `ABANDONED` seconds.
    """
    sizes: dict[Path, int] = {}
    for path in common.parent.glob(f"{common.name}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if path == common or time.time() - status.st_mtime > ABANDONED:
                sizes[path] = status.st_size
    return sorted(sizes, key=sizes.__getitem__, reverse=True)
