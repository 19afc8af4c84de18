"""Only `vitzoo/files/platform` knows on which system it runs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tables import cases

ROOT = Path(__file__).parents[1]
PACKAGES = [ROOT / "vitzoo", *(ROOT / "plugins").glob("*/vitzoo_*")]
PLATFORM = ROOT / "vitzoo" / "files" / "platform"
MODULES = {  # of some systems only, or of other meaning on each
    "_winapi", "ctypes", "fcntl", "grp", "mmap", "msvcrt", "nt", "posix", "pty", "pwd", "resource",
    "select", "termios", "tty", "winreg",
}  # fmt: skip
NAMES = {
    "os": {
        "name", "uname", "copy_file_range", "fchmod", "fchown", "chown", "lchown", "fdatasync",
        "fork", "forkpty", "fsync", "fstatvfs", "statvfs", "getegid", "geteuid", "getgid",
        "getuid", "getpgid", "getpgrp", "getloadavg", "getpriority", "killpg", "memfd_create",
        "MFD_CLOEXEC", "mkfifo", "nice", "openpty", "posix_fadvise", "posix_fallocate",
        "posix_spawn", "pread", "preadv", "pwrite", "pwritev", "sched_getaffinity",
        "sched_setaffinity", "sendfile", "setpgid", "setpgrp", "setpriority", "setsid", "splice",
        "startfile", "sync", "sysconf", "wait3", "wait4", "waitid", "O_BINARY", "O_CLOEXEC",
        "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NOINHERIT", "O_NONBLOCK", "O_PATH", "O_TMPFILE",
    },
    "platform": {"mac_ver", "node", "platform", "release", "system", "uname", "win32_ver"},
    "sys": {"getwindowsversion", "platform"},
    "signal": {
        "CTRL_BREAK_EVENT", "CTRL_C_EVENT", "SIGALRM", "SIGBREAK", "SIGHUP", "SIGKILL", "SIGPIPE",
        "SIGQUIT", "SIGSTOP", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGXFSZ", "alarm", "pause",
        "pthread_sigmask", "setitimer",
    },
}  # fmt: skip
FIELDS = {
    "st_blocks", "st_ctime", "st_ctime_ns", "st_file_attributes", "st_gid", "st_reparse_tag",
    "st_uid",
}  # fmt: skip
KEYWORDS = {
    "creationflags", "dir_fd", "pass_fds", "preexec_fn", "process_group",
    "start_new_session", "startupinfo",
}  # fmt: skip
FOLDERS = ("/proc", "/sys/", "/dev/")


def system_names(source: str) -> list[str]:
    """Return the names in a module that differ between systems."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import():
                found += [one.name for one in node.names if one.name.split(".")[0] in MODULES]
            case ast.ImportFrom(module=str(module), level=0):
                names = {one.name for one in node.names}
                found += [module] if module.split(".")[0] in MODULES else []
                found += [f"{module}.{name}" for name in names & NAMES.get(module, set())]
            case ast.Attribute(value=ast.Name(id=module), attr=name) if name in NAMES.get(
                module, ()
            ):
                found.append(f"{module}.{name}")
            case ast.Attribute(attr=name) if name in FIELDS:
                found.append(name)
            case ast.keyword(arg=str(name)) if name in KEYWORDS:
                found.append(name)
            case ast.Constant(value=str(text)) if text.startswith(FOLDERS):
                found.append(text)
    return sorted(found)


@cases(
    ("line", "found"),
    [
        ("import os, fcntl", ["fcntl"]),
        ("from ctypes import wintypes", ["ctypes"]),
        ("from os import fsync, path", ["os.fsync"]),
        ("os.pread(fd, 1, 0)", ["os.pread"]),
        ("os.open(path, os.O_RDONLY, dir_fd=3)", ["dir_fd"]),
        ("if sys.platform == 'linux': pass", ["sys.platform"]),
        ("os.fstat(fd).st_ctime_ns", ["st_ctime_ns"]),
        ("Path('/proc/self/fd')", ["/proc/self/fd"]),
        ("system.pread(fd, 1, 0); os.path.join(a)", []),
        ("from vitzoo.files.platform import files", []),
    ],
)
def test_the_search_finds_names_of_one_system(line, found):
    assert system_names(line) == found


@pytest.mark.slow
def test_only_the_platform_folder_knows_the_system():
    files = [file for package in PACKAGES for file in package.rglob("*.py")]
    assert len(files) > 100
    found = {
        str(file.relative_to(ROOT)): names
        for file in files
        if not file.is_relative_to(PLATFORM) and (names := system_names(file.read_text("utf-8")))
    }
    assert found == {}
    assert system_names((PLATFORM / "files.py").read_text("utf-8"))
