"""Files on Linux, macOS and Windows; torch-free.

On Linux most functions are those of Python. Those of Windows are in `windows_files`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

if sys.platform == "win32":
    from vitzoo.files.platform import windows_files as windows

    open_file, set_mode, machine = windows.open_file, windows.set_mode, windows.machine
    pread, preadv, pwrite = windows.pread, windows.preadv, windows.pwrite
    replace, move_new, remove = windows.replace, windows.move_new, windows.remove
    sync, sync_path, change_time = windows.sync, windows.sync_path, windows.change_time
    writable_by_others, not_a_name = windows.writable_by_others, windows.not_a_name
    physical_memory, memory, reason = windows.physical_memory, windows.memory, windows.reason
else:
    pread, preadv, pwrite = os.pread, os.preadv, os.pwrite
    replace = move_new = os.replace
    remove, set_mode = os.unlink, os.fchmod

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


def copy_nothing(source: int, target: int, size: int, start: int, to: int) -> int:
    """Copy nothing: the system has no call that shares blocks on every file system."""
    return 0


def temporary_file() -> int:
    """Open a file without a name, which vanishes when it is closed."""
    from tempfile import TemporaryFile

    with TemporaryFile() as file:
        return os.dup(file.fileno())


if sys.platform == "linux":
    sync = os.fsync
    # A Python that was built for glibc before 2.27, as conda's can be, lacks two calls of Linux.
    copy_file_range = getattr(os, "copy_file_range", copy_nothing)

    def unnamed_file() -> int:
        """Open a file in memory, or a temporary file where Python has no such files."""
        if hasattr(os, "memfd_create"):
            return os.memfd_create("vitzoo", os.MFD_CLOEXEC)
        return temporary_file()

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

        def machine() -> str:
            """Return the name of the folder with this machine's stamps."""
            return f"macos-{os.uname().nodename.partition('.')[0]}"  # a network adds its domain

    copy_file_range, unnamed_file = copy_nothing, temporary_file


def state(fd: int) -> State:
    """Return the state of an open file."""
    s = os.fstat(fd)
    return State(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, change_time(fd, s))


def mapped(fd: int) -> Any:
    """Map a file into memory; a page that is written becomes a copy."""
    import mmap

    return mmap.mmap(fd, 0, access=mmap.ACCESS_COPY)


class State(NamedTuple):
    """What changes with a file. `ctime_ns` is 0 if the system has no time of the last change."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
