"""The branches for macOS and Windows, on a kernel32 of the test, and what each system limits."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
from ctypes import c_uint32, c_uint64
from types import SimpleNamespace

import pytest

from helpers import says
from internals import main
from vitzoo.authoring import registry_load
from vitzoo.authoring.registry_load import EntryOptions
from vitzoo.cli.environment import Stream
from vitzoo.files.platform import processes

SYSTEMS = ("linux", "darwin", "win32")


class Limits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION, as winnt.h has it for 64 bits."""

    _fields_ = (
        ("PerProcessUserTimeLimit", ctypes.c_int64),
        ("PerJobUserTimeLimit", ctypes.c_int64),
        ("LimitFlags", c_uint32),
        ("MinimumWorkingSetSize", c_uint64),
        ("MaximumWorkingSetSize", c_uint64),
        ("ActiveProcessLimit", c_uint32),
        ("Affinity", c_uint64),
        ("PriorityClass", c_uint32),
        ("SchedulingClass", c_uint32),
        ("IoInfo", c_uint64 * 6),
        ("ProcessMemoryLimit", c_uint64),
        ("JobMemoryLimit", c_uint64),
        ("PeakProcessMemoryUsed", c_uint64),
        ("PeakJobMemoryUsed", c_uint64),
    )


class Counters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS, as psapi.h has it for 64 bits."""

    _fields_ = (
        ("cb", c_uint32),
        ("PageFaultCount", c_uint32),
        *((name, c_uint64) for name in ("PeakWorkingSetSize", "WorkingSetSize")),
        *((name, c_uint64) for name in ("PeakPaged", "Paged", "PeakNonPaged", "NonPaged")),
        *((name, c_uint64) for name in ("PagefileUsage", "PeakPagefileUsage")),
    )


class Kernel32:
    """Notes the calls; `refuses` is the name of a function that fails."""

    def __init__(self, refuses=""):
        self.refuses, self.limits, self.assigned = refuses, None, None
        self.CreateJobObjectW = lambda *_: 7  # an object with attributes, as those of ctypes

    def SetInformationJobObject(self, job, kind, data, size):  # noqa: N802
        assert (job.value, kind, size) == (7, 9, ctypes.sizeof(Limits))
        self.limits = Limits.from_buffer_copy(data)
        return self.refuses != "SetInformationJobObject"

    def AssignProcessToJobObject(self, job, process):  # noqa: N802
        assert process.value == ctypes.c_void_p(-1).value  # this process
        self.assigned = job.value
        return self.refuses != "AssignProcessToJobObject"

    def K32GetProcessMemoryInfo(self, process, counters, size):  # noqa: N802
        assert process.value == ctypes.c_void_p(-1).value
        assert size == ctypes.sizeof(Counters)
        Counters.from_buffer(counters).PagefileUsage = 5000
        return True

    def GetLastError(self):  # noqa: N802
        return 5


@pytest.fixture
def on(monkeypatch):
    """Return a function that pretends another system; on Windows it returns a kernel32."""

    def pretend(system):
        kernel32 = Kernel32()
        monkeypatch.setattr(processes, "sys", SimpleNamespace(platform=system))
        monkeypatch.setattr(processes, "_kernel32", lambda: kernel32)
        return kernel32

    return pretend


# Windows


def test_a_job_has_the_limits_of_a_process(on):
    kernel32 = on("win32")
    processes.limit(memory=10**10, seconds=60, output=1)
    limits = kernel32.limits
    assert kernel32.assigned == 7
    assert limits.LimitFlags == 0x2000 | 0x400 | 0x100 | 0x2  # as winnt.h names them
    assert limits.ProcessMemoryLimit == 10**10 + 5000  # beside what the process has
    assert limits.PerProcessUserTimeLimit == 60 * 10**7  # in 100 ns
    set_ = {name for name, *_ in Limits._fields_ if name != "IoInfo" and getattr(limits, name)}
    assert set_ == {"LimitFlags", "ProcessMemoryLimit", "PerProcessUserTimeLimit"}


def test_a_job_without_limits_ends_what_the_process_has_started(on):
    kernel32 = on("win32")
    processes.lead_group()
    assert (kernel32.assigned, kernel32.limits.LimitFlags) == (7, 0x2000 | 0x400)
    assert kernel32.limits.ProcessMemoryLimit == kernel32.limits.PerProcessUserTimeLimit == 0


@pytest.mark.parametrize("name", ["SetInformationJobObject", "AssignProcessToJobObject"])
def test_limits_that_windows_refuses_are_an_error(name):
    with pytest.raises(OSError, match=r"refuses a job .error 5."):
        processes.enter_job(Kernel32(name), memory=1, seconds=1)


def test_a_process_is_killed_with_its_job(on, monkeypatch):
    on("win32")
    monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("Windows has no groups"))
    killed = []
    processes.kill_group(SimpleNamespace(pid=1, kill=lambda: killed.append(1)))
    assert killed == [1]


def test_the_end_of_a_process(on):
    assert processes.signal_name(-9) == "SIGKILL"
    assert processes.signal_name(-63) == "63"  # a signal without a name
    assert (processes.signal_name(3), processes.exit_code(3)) == ("", "3")
    assert processes.exit_code(0xC0000005) == "0xc0000005"  # an access violation
    assert [c for c in (0, 1, 1816, 0xC0000044, -signal.SIGXCPU) if processes.ran_out_of_time(c)] \
        == [-signal.SIGXCPU]  # fmt: skip
    on("win32")
    assert [c for c in (0, 1, 1816, 0xC0000044) if processes.ran_out_of_time(c)] \
        == [1816, 0xC0000044]  # fmt: skip


def test_a_crash_is_told_from_an_end_by_another_process(on):
    crashes = [-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS]
    others = [0, 1, 3, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGXCPU]
    assert [code for code in crashes + others if processes.crashed(code)] == crashes
    on("win32")
    crashes = [3, 0xC0000005, 0xC0000374]  # abort(), an access violation, a damaged heap
    assert [code for code in [0, 1, 15, *crashes] if processes.crashed(code)] == crashes


class Closed:
    """A pipe of Windows whose reader has ended."""

    encoding = "utf-8"

    def write(self, _):
        raise OSError(errno.EINVAL, "Invalid argument")

    flush = write


def test_a_closed_pipe_of_windows_ends_a_command_quietly(on, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["list", "-q", "vit_b16"]) == 1
    says(capsys.readouterr().err, "cannot write to stdout", "Invalid argument")
    on("win32")
    monkeypatch.setattr(sys, "stdout", Closed())
    assert main(["list", "-q", "vit_b16"]) == 0
    assert capsys.readouterr().err == ""
    assert Stream(Closed()).write("dropped") == 7


AS_ON_WINDOWS = """
import os, sys
os.linesep = "\\r\\n"
sys.stdout.reconfigure(encoding="cp1252", newline="\\r\\n")
from vitzoo.cli import main, output
main.echo = lambda _: output.echo("\\u4e00\\n{}")
sys.exit(main.main())
"""


def test_what_is_no_terminal_gets_the_same_bytes_on_windows():
    done = subprocess.run([sys.executable, "-c", AS_ON_WINDOWS], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\u4e00\n{}\n".encode(), b"")


# macOS

LIMITED = """
import resource, sys
from types import SimpleNamespace
from vitzoo.files.platform import processes
processes.sys = SimpleNamespace(platform=sys.argv[1])
processes.limit(memory=2**30, seconds=77, output=10**6)
kinds = "RLIMIT_AS", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_CORE"
print([resource.getrlimit(getattr(resource, kind))[0] for kind in kinds])
"""


def test_macos_limits_time_and_output_but_no_memory():
    def limits(system):
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, system], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        memory, *others = eval(done.stdout)
        assert others == [77, 10**6, 0]
        return memory

    assert 2**30 < limits("linux") < 2**32
    assert limits("darwin") not in range(2**40)


@pytest.mark.skipif(sys.platform == "win32", reason="has no getrusage")
@pytest.mark.parametrize("system", SYSTEMS)
def test_macos_watches_the_memory_of_a_process(on, monkeypatch, system):
    """A thread looks at the peak, 100 bytes at first, until it has grown by more than 5."""
    import resource

    peaks, ended, threads = iter([100, 100, 105, 106]), [], []
    monkeypatch.setattr(
        resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=next(peaks, None))
    )
    monkeypatch.setattr(os, "_exit", ended.append)
    monkeypatch.setattr(processes, "WATCH", 0)
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: (threads.append(self), start(self)))
    on(system)
    processes.watch_memory(5, 77)
    for thread in threads:
        thread.join()
    assert [thread.daemon for thread in threads] == [True] * (system == "darwin")
    assert ended == [77] * (system == "darwin")
    assert [*peaks] == ([] if system == "darwin" else [100, 100, 105, 106])


@pytest.mark.parametrize("system", SYSTEMS[1:])
def test_cores_are_those_of_the_machine(on, monkeypatch, system):
    on(system)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert processes.affinity() == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)  # as Python may say
    assert processes.affinity() == 1


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_file_without_a_name_gets_a_path(on, monkeypatch, tmp_path, system):
    """A link to the descriptor on Linux, and a copy where there are no such links."""
    on(system)
    source = tmp_path / "source"
    source.write_bytes(b"weights")
    fd = os.open(source, os.O_RDONLY)
    source.unlink()
    monkeypatch.setattr(registry_load, "obtain", lambda *_: (fd, ""))
    stated = EntryOptions("MIT", "us", sha256="0" * 64)
    with registry_load._downloaded("a/b:main", "https://h.example/net.safetensors", stated) as path:
        assert (path.suffix, path.read_bytes()) == (".safetensors", b"weights")
        assert path.is_symlink() == (system == "linux")
    assert not path.exists()
