"""Files on Linux, macOS and Windows; torch-free.

On Linux most functions are those of Python. Those of Windows are in `windows_files`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

if sys.platform == "win32":
    from vitzoo.files.platform.windows_files import (
        change_time as change_time,
        copy_mode as copy_mode,
        memory as memory,
        move_new as move_new,
        not_a_name as not_a_name,
        open_file as open_file,
        physical_memory as physical_memory,
        pread as pread,
        preadv as preadv,
        protect as protect,
        pwrite as pwrite,
        reason as reason,
        remove as remove,
        replace as replace,
        sync as sync,
        sync_path as sync_path,
        writable_by_others as writable_by_others,
    )
else:
    pread, preadv, pwrite = os.pread, os.preadv, os.pwrite
    replace = move_new = os.replace
    remove = os.unlink

    def open_file(
        path: Path, flags: int = os.O_RDONLY, mode: int = 0o666, *, follow: bool = False
    ) -> int:
        """Open a file, without waiting for the writer of a pipe.

        Args:
            path: of the file.
            flags: O_RDONLY or O_RDWR, and O_CREAT and O_EXCL.
            mode: permissions of a new file, before those that the umask takes away.
            follow: whether a symbolic link is followed.

        Raises:
            OSError: with ELOOP or EMLINK for a link, EISDIR for a folder.
        """
        flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
        return os.open(path, flags, mode)

    def change_time(fd: int, status: os.stat_result) -> int:
        """Return the time of the last change of a file in ns, which no program can set back."""
        return status.st_ctime_ns

    def writable_by_others(status: os.stat_result) -> bool:
        """Tell whether the mode or the owner of a file lets another user write to it."""
        return status.st_uid != os.geteuid() or bool(status.st_mode & 0o022)

    def protect(fd: int) -> None:
        """Make a file read-only."""
        os.fchmod(fd, 0o444)

    def copy_mode(path: Path, fd: int) -> None:
        """Give an open file the permissions of another one.

        Raises:
            FileNotFoundError: there is no such file.
        """
        os.fchmod(fd, path.stat().st_mode & 0o7777)

    def sync_path(path: Path) -> None:
        """Sync a folder, so that a rename in it survives a power failure; or a closed file."""
        fd = os.open(path, os.O_RDONLY)
        try:
            sync(fd)
        finally:
            os.close(fd)

    def physical_memory() -> int:
        """Return the memory of the machine in bytes."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def memory(size: int) -> Any:
        """Return a buffer of zeros, whose pages the kernel makes when they are first written."""
        import mmap

        return mmap.mmap(-1, size, access=mmap.ACCESS_COPY)

    def not_a_name(name: str) -> str:
        """Return why no file can have this name; empty if one can."""
        return ""

    def reason(error: Exception) -> object:
        """Return the cause of an error, for a message."""
        return getattr(error, "strerror", None) or error


if sys.platform == "linux":
    sync, copy_file_range = os.fsync, os.copy_file_range

    def unnamed_file() -> int:
        """Open a file in memory; on macOS and Windows, a temporary file without a name."""
        return os.memfd_create("vitzoo", os.MFD_CLOEXEC)

    def machine() -> str:
        """Return the name of the folder with this machine's stamps; empty on Linux."""
        return ""

else:
    if sys.platform == "darwin":
        import fcntl

        def sync(fd: int) -> None:
            """Write a file to the disk. On macOS, fsync leaves it in the cache of the disk."""
            try:
                fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            except OSError:  # a file system without it, of a network for instance
                os.fsync(fd)

    def copy_file_range(source: int, target: int, size: int, start: int, to: int) -> int:
        """Copy nothing: these systems have no call that shares blocks on every file system."""
        return 0

    def unnamed_file() -> int:
        """Open a file that vanishes when it is closed."""
        from tempfile import TemporaryFile

        with TemporaryFile() as file:
            return os.dup(file.fileno())

    def machine() -> str:
        """Return the name of the folder with this machine's stamps."""
        import re
        from platform import node

        return f"{sys.platform}-{re.sub('[^A-Za-z0-9-]', '-', node())[:64]}"


def state(fd: int) -> State:
    """Return the state of an open file."""
    s = os.fstat(fd)
    return State(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, change_time(fd, s))


def mapped(fd: int) -> Any:
    """Map a file into memory; a page that is written becomes a copy."""
    import mmap

    return mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)


def free_space(folder: Path) -> int:
    """Return the bytes that this user may still write to the disk of a folder."""
    from shutil import disk_usage

    return disk_usage(folder).free


class State(NamedTuple):
    """What changes with a file. `ctime_ns` is 0 if the system has no time of the last change."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
