"""Files on Windows; `files` says what each function does; torch-free.

A file that is open here can be renamed and removed, as elsewhere. It can be replaced by another one
only after it was closed, and a mapped file can be neither replaced nor removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import msvcrt
import os
import re
import stat
import sys
import time
from collections.abc import Sequence
from ctypes import wintypes
from pathlib import Path
from typing import Any

from vitzoo.files.names import WINDOWS_DEVICE

assert sys.platform == "win32"  # noqa: S101  # type checkers read the rest for Windows only

DWORD = ctypes.c_uint32
GENERIC_READ, GENERIC_WRITE = 0x8000_0000, 0x4000_0000
SHARE_ALL = 1 | 2 | 4  # reading, writing, and renaming or removing
CREATE_NEW, OPEN_EXISTING, OPEN_ALWAYS = 1, 3, 4
OPEN_REPARSE_POINT = 0x0020_0000
REPARSE_POINT, NAME_SURROGATE = 0x400, 0x2000_0000  # in the attributes, in the tag
BASIC_INFO, ATTRIBUTE_TAG_INFO = 0, 9
NO_HANDLE = ctypes.c_void_p(-1).value
END_OF_FILE = 38
HELD = {5, 32, 33, 1224}  # access denied; shared, locked or mapped by a process
TOO_LONG = {3, 206}
MOST = 1 << 30  # bytes in one call
EPOCH = 116_444_736_000_000_000  # 1970 in units of 100 ns since 1601
WAITS = (0.01, 0.03, 0.1, 0.3, 0.6)  # seconds; a scanner opens each new file for a moment
FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f]')


class _Overlapped(ctypes.Structure):
    _fields_ = (
        ("internal", ctypes.c_size_t),
        ("internal_high", ctypes.c_size_t),
        ("offset", DWORD),
        ("offset_high", DWORD),
        ("event", wintypes.HANDLE),
    )


class _BasicInfo(ctypes.Structure):
    _fields_ = (
        ("created", ctypes.c_int64),
        ("accessed", ctypes.c_int64),
        ("written", ctypes.c_int64),
        ("changed", ctypes.c_int64),
        ("attributes", DWORD),
    )


class _AttributeTagInfo(ctypes.Structure):
    _fields_ = (("attributes", DWORD), ("tag", DWORD))


class _MemoryStatus(ctypes.Structure):
    _fields_ = (
        ("length", DWORD),
        ("load", DWORD),
        ("physical", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 6),
    )


_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel.CreateFileW.restype = wintypes.HANDLE
_kernel.CreateFileW.argtypes = [
    wintypes.LPCWSTR, *(DWORD,) * 2, ctypes.c_void_p, *(DWORD,) * 2,
    wintypes.HANDLE,
]  # fmt: skip
_kernel.CloseHandle.argtypes = [wintypes.HANDLE]
_kernel.GetFileInformationByHandleEx.argtypes = [
    wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, DWORD,
]  # fmt: skip
_kernel.GlobalMemoryStatusEx.argtypes = [ctypes.c_void_p]
for _transfer in (_kernel.ReadFile, _kernel.WriteFile):
    _transfer.argtypes = [
        wintypes.HANDLE, ctypes.c_void_p, DWORD, ctypes.c_void_p, ctypes.c_void_p,
    ]  # fmt: skip


def open_file(
    path: Path, flags: int = os.O_RDONLY, mode: int = 0o666, *, follow: bool = False
) -> int:
    handle = _handle(path, flags, 0 if follow else OPEN_REPARSE_POINT)
    if not follow and (tag := _reparse_tag(handle)):
        _kernel.CloseHandle(handle)
        if tag & NAME_SURROGATE:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        # A file that is compressed or in a cloud: without the flag, the system reads its bytes.
        handle = _handle(path, flags, 0)
    try:
        return msvcrt.open_osfhandle(handle, flags & os.O_RDWR | os.O_NOINHERIT)
    except OSError:
        _kernel.CloseHandle(handle)
        raise


def _handle(path: Path, flags: int, attributes: int) -> int:
    if "\0" in str(path):
        raise ValueError("embedded null character")
    access = GENERIC_READ | (GENERIC_WRITE if flags & os.O_RDWR else 0)
    new = CREATE_NEW if flags & os.O_EXCL else OPEN_ALWAYS
    how = new if flags & os.O_CREAT else OPEN_EXISTING
    handle: int = _kernel.CreateFileW(str(path), access, SHARE_ALL, None, how, attributes, None)
    if handle == NO_HANDLE:
        error = _error(path)
        if os.path.isdir(path):  # noqa: PTH112  # it never raises
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path)) from error
        raise error
    return handle


def _error(path: Path | None = None) -> OSError:
    error = ctypes.WinError(ctypes.get_last_error())
    error.filename = path and str(path)
    return error


def _information(handle: int, kind: int, found: ctypes.Structure) -> bool:
    size = ctypes.sizeof(found)
    return bool(_kernel.GetFileInformationByHandleEx(handle, kind, ctypes.byref(found), size))


def _reparse_tag(handle: int) -> int:
    """Return the kind of link or placeholder that a file is, 0 for a plain file."""
    found = _AttributeTagInfo()
    known = _information(handle, ATTRIBUTE_TAG_INFO, found)
    return int(found.tag) if known and found.attributes & REPARSE_POINT else 0


def change_time(fd: int, status: os.stat_result) -> int:
    found = _BasicInfo()
    known = _information(msvcrt.get_osfhandle(fd), BASIC_INFO, found)
    return max(0, (found.changed - EPOCH) * 100) if known else 0


def preadv(fd: int, targets: Sequence[Any], position: int) -> int:
    (target,) = targets
    size = min(memoryview(target).nbytes, MOST)
    buffer = (ctypes.c_char * size).from_buffer(target)
    return _transferred(_kernel.ReadFile, fd, buffer, size, position)


def pread(fd: int, size: int, position: int) -> bytes:
    data = bytearray(min(size, MOST))
    count = preadv(fd, [data], position) if data else 0
    return bytes(data[:count])


def pwrite(fd: int, data: Any, position: int) -> int:
    piece = bytes(data[:MOST])
    return _transferred(_kernel.WriteFile, fd, piece, len(piece), position)


def _transferred(function: Any, fd: int, buffer: Any, size: int, position: int) -> int:
    """Read or write at a position, which becomes that of the descriptor, too."""
    count = DWORD()
    place = _Overlapped(offset=position & 0xFFFF_FFFF, offset_high=position >> 32)
    handle = msvcrt.get_osfhandle(fd)
    good = function(handle, buffer, size, ctypes.byref(count), ctypes.byref(place))
    if not good and ctypes.get_last_error() != END_OF_FILE:
        raise _error()
    return count.value


def memory(size: int) -> Any:
    import mmap

    return mmap.mmap(-1, size)


def physical_memory() -> int:
    found = _MemoryStatus()
    found.length = ctypes.sizeof(found)
    if not _kernel.GlobalMemoryStatusEx(ctypes.byref(found)):
        raise _error()
    return int(found.physical)


def replace(source: Path, target: Path) -> None:
    for wait in WAITS:
        with contextlib.suppress(PermissionError):
            os.replace(source, target)  # noqa: PTH105  # as `files`
            return
        time.sleep(wait)
    os.replace(source, target)  # noqa: PTH105


def move_new(source: Path, target: Path) -> None:
    """Rename a file of the store. Another process may have stored the same file, and read it."""
    try:
        replace(source, target)
    except PermissionError:
        if not target.is_file():
            raise
        source.unlink()


def remove(path: Path) -> None:
    """Remove a file. One that Linux stored on a shared disk is read-only."""
    try:
        path.unlink()
    except PermissionError:
        path.chmod(stat.S_IWRITE)
        path.unlink()


def sync(fd: int) -> None:
    os.fsync(fd)


def sync_path(path: Path) -> None:
    if path.is_dir():  # Windows syncs no folders
        return
    fd = open_file(path, os.O_RDWR, follow=True)  # it syncs only what may be written to
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def writable_by_others(status: os.stat_result) -> bool:
    return False  # a mode says nothing here; the access lists of the user's profile decide


def protect(fd: int) -> None:
    """Do nothing: a read-only file could not be removed, and its attribute protects from no one."""


def copy_mode(path: Path, fd: int) -> None:
    """Do nothing: a file has the access list of its folder."""


def not_a_name(name: str) -> str:
    if WINDOWS_DEVICE.fullmatch(name):
        return f"Windows reserves the name {name!r} for a device"
    if found := FORBIDDEN.search(name):
        return f"on Windows no name of a file has {found[0]!r}"
    return f"Windows drops the last character of {name!r}" if name.endswith((".", " ")) else ""


def reason(error: Exception) -> object:
    text = getattr(error, "strerror", None) or error
    code, path = getattr(error, "winerror", None), str(getattr(error, "filename", None) or "")
    if code in HELD:
        return f"{text} (if a process has it open or mapped, end that process)"
    if code in TOO_LONG and len(path) >= 248:
        return f"{text} (the path has {len(path)} characters, Windows accepts 259 at most)"
    return text
