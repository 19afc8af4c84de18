"""Files on Windows; `files` says what each function does; torch-free.

A file that `open_file` opened can be renamed and removed meanwhile, as elsewhere. Windows replaces
no open file, and neither replaces nor removes a mapped one.
"""

from __future__ import annotations

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

if sys.platform != "win32":  # type checkers read the rest for Windows only
    raise ImportError("this module is for Windows")

GENERIC_READ, GENERIC_WRITE = 0x8000_0000, 0x4000_0000
SHARE_ALL = 1 | 2 | 4  # reading, writing, and renaming or removing
CREATE_NEW, OPEN_EXISTING, OPEN_ALWAYS = 1, 3, 4
OPEN_REPARSE_POINT = 0x0020_0000
REPARSE_POINT, NAME_SURROGATE = 0x400, 0x2000_0000  # bits of the attributes, and of the tag
BASIC_INFO, ATTRIBUTE_TAG_INFO = 0, 9
END_OF_FILE, TOO_LONG = 38, {3, 206}
HELD = {5, 32, 33, 1224}  # access denied; a file is open, locked or mapped in a process
MOST = 1 << 30  # bytes in one call
EPOCH = 116_444_736_000_000_000  # 1970 in units of 100 ns since 1601
WAITS = (0.01, 0.03, 0.1, 0.3, 0.6)  # seconds; a scanner opens each new file for a moment
FORBIDDEN = re.compile(r'[<>:"|?*\x00-\x1f]|[. ]$')

_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
_handle, _address, _number = wintypes.HANDLE, ctypes.c_void_p, ctypes.c_uint32
_kernel.CreateFileW.restype = _handle
for _name, _types in {
    "CreateFileW": (wintypes.LPCWSTR, _number, _number, _address, _number, _number, _handle),
    "CloseHandle": (_handle,),
    "GetFileInformationByHandleEx": (_handle, _number, _address, _number),
    "GlobalMemoryStatusEx": (_address,),
    "ReadFile": (_handle, _address, _number, _address, _address),
    "WriteFile": (_handle, _address, _number, _address, _address),
}.items():
    getattr(_kernel, _name).argtypes = _types


def _error(path: object = None) -> OSError:
    error = ctypes.WinError(ctypes.get_last_error())
    error.filename = path
    return error


def open_file(
    path: Path, flags: int = os.O_RDONLY, mode: int = 0o666, *, follow: bool = False
) -> int:
    handle = _open(str(path), flags, 0 if follow else OPEN_REPARSE_POINT)
    attributes, tag = _information(handle, ATTRIBUTE_TAG_INFO, _number * 2) or (0, 0)
    if not follow and attributes & REPARSE_POINT:
        _kernel.CloseHandle(handle)
        if tag & NAME_SURROGATE:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        # A file that is compressed or in a cloud: without the flag, the system reads its bytes.
        handle = _open(str(path), flags, 0)
    return msvcrt.open_osfhandle(handle, flags & os.O_RDWR | os.O_NOINHERIT)


def _open(path: str, flags: int, attributes: int) -> int:
    if "\0" in path:
        raise ValueError("embedded null character")
    access = GENERIC_READ | (GENERIC_WRITE if flags & os.O_RDWR else 0)
    new = CREATE_NEW if flags & os.O_EXCL else OPEN_ALWAYS
    how = new if flags & os.O_CREAT else OPEN_EXISTING
    handle: int = _kernel.CreateFileW(path, access, SHARE_ALL, None, how, attributes, None)
    if handle == _address(-1).value:
        if os.path.isdir(path):  # noqa: PTH112  # it never raises
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise _error(path)  # in a variable, it would be a cycle that keeps the callers' files open
    return handle


def _information(handle: int, kind: int, structure: Any) -> Any:
    """Return the fields of a structure of numbers, None if the file system has them not."""
    found = structure()
    size = ctypes.sizeof(found)
    known = _kernel.GetFileInformationByHandleEx(handle, kind, ctypes.byref(found), size)
    return [*found] if known else None


def change_time(fd: int, status: os.stat_result) -> int:
    found = _information(msvcrt.get_osfhandle(fd), BASIC_INFO, ctypes.c_int64 * 5)
    return max(0, (found[3] - EPOCH) * 100) if found else 0  # Python's is that of its creation


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
    """Read or write at a position. The position of the descriptor moves, too."""
    count, place = _number(), (ctypes.c_uint64 * 4)(0, 0, position, 0)  # an OVERLAPPED, 64 bits
    handle = msvcrt.get_osfhandle(fd)
    good = function(handle, buffer, size, ctypes.byref(count), ctypes.byref(place))
    if not good and ctypes.get_last_error() != END_OF_FILE:
        raise _error()
    return count.value


def memory(size: int) -> Any:
    import mmap

    return mmap.mmap(-1, size)


def physical_memory() -> int:
    found = (ctypes.c_uint64 * 8)(64)  # a MEMORYSTATUSEX, which begins with its size
    if not _kernel.GlobalMemoryStatusEx(ctypes.byref(found)):
        raise _error()
    return int(found[1])


def machine() -> str:
    return f"windows-{os.environ.get('COMPUTERNAME', '')}"


def replace(source: Path, target: Path) -> None:
    for wait in WAITS:
        try:
            source.replace(target)
        except PermissionError:
            time.sleep(wait)
        else:
            return
    source.replace(target)


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
        if path.stat().st_mode & stat.S_IWRITE:  # a process has it open
            raise
        path.chmod(stat.S_IWRITE)
        path.unlink()


sync = os.fsync


def sync_path(path: Path) -> None:
    if path.is_file():  # Windows syncs no folders, and a file only where it may be written to
        fd = open_file(path, os.O_RDWR, follow=True)
        try:
            sync(fd)
        finally:
            os.close(fd)


def writable_by_others(status: os.stat_result) -> bool:
    return False  # the access list of the user's profile decides; a mode says nothing


def set_mode(fd: int, mode: int) -> None:
    pass  # a file has the access list of its folder; one that is read-only cannot be removed


def not_a_name(name: str) -> str:
    bad = WINDOWS_DEVICE.fullmatch(name) or FORBIDDEN.search(name)
    return f"on Windows no file can have the name {name!r}" if bad else ""


def reason(error: Exception) -> object:
    text, code = getattr(error, "strerror", None) or error, getattr(error, "winerror", None)
    if code in HELD:
        return f"{text} (if a process has it open or mapped, end that process)"
    if code in TOO_LONG and len(str(getattr(error, "filename", ""))) >= 248:
        return f"{text} (Windows accepts paths of at most 259 characters)"
    return text
