"""macOS and Windows on Linux: the branches of `vitzoo.files.platform`, on fakes of what they call.

The fake of Windows refuses what NTFS refuses. Which files are open and mapped is read from /proc,
so a file counts as open, however it was opened. Only one that was opened with the right to share
its removal can be renamed and removed meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import importlib.util
import os
import stat
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from vitzoo.files import platform
from vitzoo.files.platform import files

OFFSET = 0x1000  # of handles: none is a descriptor
ERRORS = {
    2: errno.ENOENT, 3: errno.ENOENT, 5: errno.EACCES, 6: errno.EBADF, 32: errno.EACCES,
    80: errno.EEXIST,
    123: errno.EINVAL, 183: errno.EEXIST,
}  # fmt: skip
DEVICES = {
    "CON",
    "PRN",
    "AUX",
    "NUL",
    *(f"{kind}{n}" for kind in ("COM", "LPT") for n in range(10)),
}
LACKING = (
    "pread", "preadv", "pwrite", "fchmod", "geteuid", "memfd_create", "copy_file_range", "sysconf",
)  # fmt: skip
REAL = SimpleNamespace(**{name: getattr(os, name) for name in LACKING})
KERNEL = (
    "CreateFileW", "CloseHandle", "ReadFile", "WriteFile", "GetFileInformationByHandleEx",
    "GlobalMemoryStatusEx",
)  # fmt: skip
SYMLINK_TAG = 0xA000_000C


def load(monkeypatch: Any, system: str) -> ModuleType:
    """Read `vitzoo.files.platform.files` as that system does; the functions replace those here."""
    spec = importlib.util.spec_from_file_location(f"files_of_{system}", files.__file__)
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", system)
        spec.loader.exec_module(module)
    sys.modules.pop("vitzoo.files.platform.windows_files", None)
    vars(platform).pop("windows_files", None)
    for name, value in vars(module).items():
        if callable(value) and getattr(files, name, None) is not value and name != "State":
            monkeypatch.setattr(files, name, value, raising=False)
    return module


def error(code: int, path: object = None) -> OSError:
    made = OSError(ERRORS[code], f"error {code} of Windows", path and str(path))
    made.winerror = code
    return made


def descriptors() -> dict[int, str]:
    """Return the paths of the open files of this process."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor of the folder itself
            found[int(entry.name)] = str(entry.readlink())
    return found


def mapped_files() -> set[str]:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {words[5] for line in lines if len(words := line.split(maxsplit=5)) == 6}


def read_only(path: Any) -> bool:
    return not os.lstat(path).st_mode & stat.S_IWUSR


def identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class Windows:
    """NTFS, as far as the code of vitzoo can tell.

    Args:
        monkeypatch: of pytest.

    Attributes:
        changed: what the system says of the time of the last change: a function of an `fstat`.
        tags: reparse tags by path, of files that are no links.
        asked: paths that were opened with the flag for links, then without it.
    """

    def __init__(self, monkeypatch: Any) -> None:
        self.last, self.sharing = 0, dict[int, tuple[int, int]]()
        self.changed = lambda status: status.st_ctime_ns
        self.tags, self.paths = dict[str, int](), dict[int, tuple[str, int]]()
        self.opened = list[tuple[str, int]]()
        self.memory = 2**34
        # Functions take attributes, which `ctypes` sets; methods take none.
        kernel = SimpleNamespace(**{name: partial(getattr(self, f"_{name}")) for name in KERNEL})
        crt = ModuleType("msvcrt")
        crt.open_osfhandle = lambda handle, _flags: handle - OFFSET
        crt.get_osfhandle = lambda fd: fd + OFFSET
        monkeypatch.setitem(sys.modules, "msvcrt", crt)
        monkeypatch.setattr(ctypes, "WinDLL", lambda *_, **__: kernel, raising=False)
        monkeypatch.setattr(ctypes, "get_last_error", lambda: self.last, raising=False)
        monkeypatch.setattr(ctypes, "WinError", error, raising=False)
        for name, value in (("O_BINARY", 0), ("O_NOINHERIT", 0)):
            monkeypatch.setattr(os, name, value, raising=False)
        self.files = load(monkeypatch, "win32")
        monkeypatch.setattr(sys.modules["shutil"], "_use_fd_functions", False)
        self._guard(monkeypatch)
        for name in LACKING:
            monkeypatch.delattr(os, name)

    def _guard(self, monkeypatch: Any) -> None:
        names = ("replace", "rename", "unlink", "fsync", "open")
        self.real = SimpleNamespace(**{name: getattr(os, name) for name in names})
        monkeypatch.setattr(os, "replace", self._replace)
        monkeypatch.setattr(os, "rename", self._rename)
        monkeypatch.setattr(os, "unlink", self._unlink)
        monkeypatch.setattr(os, "remove", self._unlink)
        monkeypatch.setattr(os, "fsync", self._fsync)
        monkeypatch.setattr(os, "open", self._open)
        monkeypatch.setattr(files, "mapped", partial(self._map, files.mapped))

    def _replace(self, source: Any, target: Any) -> None:
        self._check_move(source, target)
        folder = Path(target).is_dir()
        if os.path.lexists(target) and (folder or self._open_in(target) or read_only(target)):
            raise error(5, target)
        self.real.replace(source, target)

    def _rename(self, source: Any, target: Any) -> None:
        self._check_move(source, target)
        if os.path.lexists(target):
            raise error(183, target)
        self.real.rename(source, target)

    def _check_move(self, source: Any, target: Any) -> None:
        self._check_name(target)
        if self._open_in(source) - {os.path.realpath(source)}:
            raise error(5, source)
        if not self._shared(source):
            raise error(32, source)

    def _unlink(self, path: Any, **_: object) -> None:
        if os.path.lexists(path) and not Path(path).is_symlink():
            if not self._shared(path):
                raise error(32, path)
            if os.path.realpath(path) in mapped_files() or read_only(path):
                raise error(5, path)
        self.real.unlink(path)

    def _fsync(self, fd: int) -> None:
        mode = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        if not stat.S_ISREG(os.fstat(fd).st_mode) or mode == os.O_RDONLY:
            raise error(6)
        self.real.fsync(fd)

    def _open(self, path: Any, flags: int, *given: Any, **named: Any) -> int:
        self._check_name(path)
        # O_TMPFILE stands for a file that Windows removes when it is closed.
        if Path(path).is_dir() and flags & os.O_TMPFILE != os.O_TMPFILE:
            raise error(5, path)
        return self.real.open(path, flags, *given, **named)

    def _map(self, function: Any, fd: int) -> Any:
        before, sharing = descriptors().keys(), self.sharing.get(fd)
        data = function(fd)  # it duplicates the descriptor, with what that shares
        self.sharing |= {new: sharing for new in descriptors().keys() - before if sharing}
        return data

    @staticmethod
    def _check_name(path: Any) -> None:
        name = Path(path).name
        if name.partition(".")[0].upper() in DEVICES or set(name) & set('<>:"|?*\\'):
            raise error(123, path)
        if name.endswith((".", " ")):
            raise error(123, path)
        if len(str(Path(path).absolute())) > 259:
            raise error(3, path)

    @staticmethod
    def _open_in(path: Any) -> set[str]:
        """Return the paths of open and mapped files at a path, and below it."""
        place = os.path.realpath(path)
        every = {*descriptors().values(), *mapped_files()}
        return {one for one in every if one == place or one.startswith(f"{place}/")}

    def _shared(self, path: Any) -> bool:
        """Tell whether everyone who has a file open shares its removal."""
        place = os.path.realpath(path)
        fds = [fd for fd, where in descriptors().items() if where == place]
        return all(self.sharing.get(fd) == identity(fd) for fd in fds)

    def _fail(self, code: int, result: int = 0) -> int:
        self.last = code
        return result

    def _CreateFileW(  # noqa: N802
        self, path: str, access: int, share: int, _: None, how: int, flags: int, __: None
    ) -> int:
        nothing = ctypes.c_void_p(-1).value
        self.opened.append((path, flags))
        try:
            self._check_name(path)
            if Path(path).is_dir():
                return self._fail(5, nothing)
            link = flags & 0x0020_0000 and Path(path).is_symlink()
            mode = os.O_RDWR if access & 0x4000_0000 else os.O_RDONLY
            new = {1: os.O_CREAT | os.O_EXCL, 3: 0, 4: os.O_CREAT}[how]
            special = os.O_PATH | 0o400000 if link else mode | new
            fd = self.real.open(path, special, 0o666)
        except OSError as failure:
            if hasattr(failure, "winerror"):
                return self._fail(failure.winerror, nothing)
            codes = {errno.ENOENT: 2, errno.EEXIST: 80}
            return self._fail(codes.get(failure.errno, 5), nothing)
        self.sharing.pop(fd, None)
        if share & 4:
            self.sharing[fd] = identity(fd)
        self.paths[fd] = path, SYMLINK_TAG if link else self.tags.get(path, 0)
        return fd + OFFSET

    def _CloseHandle(self, handle: int) -> int:  # noqa: N802
        os.close(handle - OFFSET)
        return 1

    def _ReadFile(  # noqa: N802
        self, handle: int, buffer: Any, size: int, count: Any, place: Any
    ) -> int:
        position = place._obj[2]
        data = REAL.pread(handle - OFFSET, size, position)
        ctypes.memmove(buffer, data, len(data))
        return self._moved(handle, count, len(data), position)

    def _WriteFile(  # noqa: N802
        self, handle: int, data: bytes, size: int, count: Any, place: Any
    ) -> int:
        position = place._obj[2]
        return self._moved(
            handle, count, REAL.pwrite(handle - OFFSET, data[:size], position), position
        )

    def _moved(self, handle: int, count: Any, done: int, position: int) -> int:
        count._obj.value = done
        os.lseek(handle - OFFSET, position + done, os.SEEK_SET)
        return 1 if done else self._fail(38)

    def _GetFileInformationByHandleEx(  # noqa: N802
        self, handle: int, kind: int, found: Any, size: int
    ) -> int:
        fd, info = handle - OFFSET, found._obj
        assert ctypes.sizeof(info) == size == {0: 40, 9: 8}[kind]
        if kind == 9:
            tag = self.paths[fd][1]
            info[:] = [0x400 if tag else 0x80, tag]
            return 1
        changed = self.changed(os.fstat(fd))
        info[3] = (changed or 0) and changed // 100 + 116_444_736_000_000_000
        return 1 if changed is not None else self._fail(1)

    def _GlobalMemoryStatusEx(self, found: Any) -> int:  # noqa: N802
        assert found._obj[0] == ctypes.sizeof(found._obj) == 64
        found._obj[1] = self.memory
        return 1


def darwin(monkeypatch: Any, sent: list[tuple[int, int]], *, refuses: bool = False) -> ModuleType:
    """Run as on macOS; `sent` gets the descriptors and commands of `fcntl`."""

    def command(fd: int, what: int) -> int:
        sent.append((fd, what))
        if refuses:
            raise OSError(errno.ENOTSUP, "not supported")
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    module = load(monkeypatch, "darwin")
    monkeypatch.setattr(fcntl, "fcntl", command)
    for name in ("memfd_create", "copy_file_range"):
        monkeypatch.delattr(os, name)
    return module
