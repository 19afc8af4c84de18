"""What systems do with processes: their cores, locks, groups and limits, and how they end.

On Linux and macOS, a process that leads a group is killed with the group, and limits itself. On
Windows, a process enters a job, which has the limits. When the process ends, the job ends, too, and
with it what the process has started.
"""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

if sys.platform == "linux":
    import fcntl

PROCESS = Path("/proc/self")  # here Linux describes this process; other systems have no such folder
# Options of Popen for a process that leads a group; Windows ignores them, see `lead_group`
SESSION: dict[str, Any] = {"start_new_session": True}  # without the terminal
GROUP: dict[str, Any] = {"process_group": 0}
SETPIPE_SZ, PIPE_BYTES = 1031, 2**20  # a command of Linux, and its usual limit
OFD_SETLK = 37  # a command of Linux; a Python that was built for an old glibc has no name for it
LIMITS, LIMITS_FORM = 9, "qqIQQIQII48xQ24x"  # JOBOBJECT_EXTENDED_LIMIT_INFORMATION
KILL_ON_CLOSE, NO_DIALOG, TIME, MEMORY = 0x2000, 0x400, 0x2, 0x100  # its flags
COUNTERS, COMMITTED = "II8Q", 8  # PROCESS_MEMORY_COUNTERS, and the place of PagefileUsage in it
TICKS = 10**7  # of Windows' times in a second
QUOTA = (1816, 0xC0000044)  # ERROR_NOT_ENOUGH_QUOTA and STATUS_QUOTA_EXCEEDED of Windows
CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGTRAP")  # not sent by others
ABORT, EXCEPTION = 3, 0xC000_0000  # exit codes of Windows: that of abort(), the least of a crash
WATCH = 0.01  # seconds between two looks at the memory of this process


def affinity() -> int:
    """Return the number of cores that this process may use, or of the machine if none is stated."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:  # noqa: RET505  # for mypy
        return os.cpu_count() or 1


def lock_byte(fd: int, number: int) -> bool | None:
    """Lock a byte of an open file until the file is closed; False if another open file has it.

    None: the system has no such locks. Those of macOS belong to the process, not to the open file.
    """
    if sys.platform == "linux":
        try:
            lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
            fcntl.fcntl(fd, OFD_SETLK, lock)
        except (BlockingIOError, PermissionError):  # a system may say either
            return False
        return True
    else:  # noqa: RET505
        return None


def widen_pipe(fd: int) -> None:
    """Let a pipe hold as much as the system allows each user, which few reads then empty."""
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl.fcntl(fd, SETPIPE_SZ, PIPE_BYTES)


def linked(path: Path, fd: int) -> bool:
    """Make a link to an open file, which may have no name; False if there are no such links."""
    if sys.platform == "linux":
        path.symlink_to(PROCESS / "fd" / str(fd))
        return True
    else:  # noqa: RET505
        return False


def lead_group() -> None:
    """Let what this process starts end with it; Linux and macOS do so when they start it."""
    if sys.platform == "win32":
        enter_job(_kernel32())


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process that leads a group, and what it has started."""
    if sys.platform == "win32":
        process.kill()
    else:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def limit(memory: int, seconds: int = 0, output: int = 0) -> None:
    """Limit this process as far as the system can, and let it write no core dump.

    Args:
        memory: bytes beside those that it has now; macOS has no such limit.
        seconds: of processor time; 0 for any number.
        output: bytes of a file that it writes; 0 for any number. Windows has no such limit.
    """
    if sys.platform == "win32":
        kernel32 = _kernel32()
        enter_job(kernel32, memory=committed(kernel32) + memory, seconds=seconds)
    else:
        import resource

        values = {resource.RLIMIT_CORE: 0}
        values |= {resource.RLIMIT_CPU: seconds} if seconds else {}
        values |= {resource.RLIMIT_FSIZE: output} if output else {}
        if sys.platform == "linux":
            pages = int((PROCESS / "statm").read_text(encoding="utf-8").split()[0])
            values[resource.RLIMIT_AS] = pages * resource.getpagesize() + memory
        for kind, value in values.items():
            hard = resource.getrlimit(kind)[1]
            least = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (least, hard))


def watch_memory(memory: int, code: int) -> None:
    """Let a thread end this process with an exit code when its resident size grows by more.

    It is for macOS, which has no limit of memory; on other systems it does nothing.
    """
    if sys.platform == "darwin":
        import resource

        def peak() -> int:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes

        watch = threading.Thread(target=_end_beyond, args=(peak, peak() + memory, code))
        watch.daemon = True
        watch.start()


def _end_beyond(peak: Callable[[], int], most: int, code: int) -> None:
    while peak() <= most:
        time.sleep(WATCH)
    os._exit(code)


def crashed(code: int) -> bool:
    """Tell whether a process with this code crashed, and was not ended by another process."""
    if sys.platform == "win32":
        return code == ABORT or code >= EXCEPTION
    else:  # noqa: RET505
        return signal_name(code) in CRASHES


def ran_out_of_time(code: int) -> bool:
    """Tell whether a process has ended because it reached the seconds of `limit`."""
    if sys.platform == "win32":
        return code in QUOTA
    else:  # noqa: RET505
        return code == -signal.SIGXCPU


def signal_name(code: int) -> str:
    """Return the name of the signal that killed a process with this code, empty if none did."""
    names = {one.value: one.name for one in signal.Signals}
    return names.get(-code, str(-code)) if code < 0 else ""


def exit_code(code: int) -> str:
    """Write an exit code; one of a crash on Windows is known by its hexadecimal digits."""
    return str(code) if code < 2**31 else f"{code:#x}"


def is_closed_pipe(error: BaseException) -> bool:
    """Tell whether writing failed because the reader has closed the pipe."""
    if isinstance(error, BrokenPipeError):
        return True
    windows = sys.platform == "win32"
    return windows and isinstance(error, OSError) and error.errno == errno.EINVAL


def enter_job(kernel32: Any, *, memory: int = 0, seconds: int = 0) -> None:
    """Put this process into a new job of Windows, which ends with it.

    Args:
        kernel32: the library of Windows.
        memory: bytes that the process may commit; 0 for any number.
        seconds: of processor time in user mode; 0 for any number.

    Raises:
        OSError: Windows refuses it.
    """
    from ctypes import c_void_p

    flags = KILL_ON_CLOSE | NO_DIALOG | (memory and MEMORY) | (seconds and TIME)
    limits = struct.pack(LIMITS_FORM, seconds * TICKS, 0, flags, *[0] * 6, memory)
    kernel32.CreateJobObjectW.restype = c_void_p
    job = c_void_p(kernel32.CreateJobObjectW(None, None))  # open until this process ends
    this = c_void_p(-1)
    if not (
        kernel32.SetInformationJobObject(job, LIMITS, limits, len(limits))
        and kernel32.AssignProcessToJobObject(job, this)
    ):
        raise OSError(f"Windows refuses a job (error {kernel32.GetLastError()})")


def committed(kernel32: Any) -> int:
    """Return the bytes that this process has committed on Windows."""
    from ctypes import c_void_p, create_string_buffer

    size = struct.calcsize(COUNTERS)
    counters = create_string_buffer(size)
    kernel32.K32GetProcessMemoryInfo(c_void_p(-1), counters, size)
    return int(struct.unpack(COUNTERS, counters.raw)[COMMITTED])


def _kernel32() -> Any:
    if sys.platform == "win32":
        import ctypes

        return ctypes.WinDLL("kernel32")
    raise OSError("only Windows has kernel32")
