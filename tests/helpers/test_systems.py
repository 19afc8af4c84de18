"""The tests that a system cannot run are left out, and the report says how many and why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import systems

ROOT = Path(__file__).parents[2]
MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "pty", "tty")
NAMES = (
    *("fork", "mkfifo", "geteuid", "getuid", "chown", "killpg", "setsid", "pread", "pwrite"),
    *("sched_getaffinity", "SIGALRM", "SIGKILL", "SIGSTOP", "SIGCONT", "SIGUSR1", "setitimer"),
)
AS_WINDOWS = """\
import builtins, sys, types

class Without(types.ModuleType):
    def __init__(self, module):
        super().__init__(module.__name__)
        self.module = module
    def __getattr__(self, name):
        if name in GONE:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self.module, name)

real = builtins.__import__

def import_for_tests(name, globals=None, locals=None, fromlist=(), level=0):
    systems = sys.modules.get("systems")
    if not systems or name not in {"os", "signal", *POSIX}:
        return real(name, globals, locals, fromlist, level)
    if not systems._is_ours(str((globals or {}).get("__file__"))):
        return real(name, globals, locals, fromlist, level)
    if name in POSIX:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return Without(real(name))

builtins.__import__ = import_for_tests

def pytest_configure():
    sys.modules["systems"].SYSTEM = "win32"
"""
TESTS = """\
import os
import signal
import subprocess
import sys
import pytest

KINDS = {"pipe": lambda path: os.mkfifo(path), "folder": os.mkdir}
CODE = "import fcntl"

@pytest.fixture
def lines():
    return os.openpty()

def limit(most):
    import resource
    return resource.RLIMIT_AS

def through(most):
    return limit(most)

def test_anywhere(tmp_path):
    '''It needs no os.fork.'''
    print("the fork of a road", tmp_path)

def test_fork():
    os.fork()

def test_inner():
    def one():
        signal.setitimer(0, 1)
    one()

def test_helper():
    through(1)

def test_fixture(lines):
    pass

def test_code():
    subprocess.run([sys.executable, "-c", CODE])

def test_proc():
    open("/proc/self/status")

def test_keyword():
    subprocess.Popen([sys.executable], start_new_session=True)

@pytest.mark.parametrize("make", [lambda path: os.mkfifo(path), os.mkdir], ids=["pipe", "folder"])
def test_parameter(make, tmp_path):
    pass

def test_table():
    KINDS["pipe"]

@pytest.mark.needs("names")
def test_stated():
    pass

class TestClass:
    def test_method(self):
        self.helper()
    def helper(self):
        os.geteuid()
"""
FAKES = f"""\
import sys
sys.path.insert(0, "tests")
{systems.FAKES} windows

def test_fake():
    pass
"""


@pytest.fixture
def collect(tmp_path):
    """Collect tests as on a system; return the names that stay, and the end of the report."""

    def collect(system: str, *options: str, text: str = TESTS):
        folder = tmp_path / "tests"
        folder.mkdir(exist_ok=True)
        folder.joinpath("test_it.py").write_text(text, "utf-8")
        folder.joinpath("test_fakes.py").write_text(FAKES, "utf-8")
        folder.joinpath("other_systems.py").write_text("windows = None\n", "utf-8")
        tmp_path.joinpath("set_system.py").write_text(
            "from pathlib import Path\nimport systems\n"
            f"systems.SYSTEM, systems.ROOT = {system!r}, Path({str(tmp_path)!r})",
            "utf-8",
        )
        path = os.pathsep.join([str(tmp_path), str(ROOT / "tests/helpers")])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "systems", "-p", "set_system"]
        done = subprocess.run(
            [*command, *("-p", "no:cacheprovider"), *(options or ("--collect-only",)), "tests"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )
        names = [line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line]
        return names, done.stdout + done.stderr

    return collect


@pytest.mark.slow
def test_what_a_test_reaches_decides_where_it_runs(collect):
    names, report = collect("win32")
    assert names == ["test_anywhere", "test_parameter[folder]"]
    assert "11 tests were left out: they need" in report
    assert "os.fork (1)" in report
    names, report = collect("darwin")
    stay = {"test_fork", "test_inner", "test_fixture", "test_code", "test_keyword", "test_method"}
    assert {*names} == stay | {
        *("test_anywhere", "test_parameter[pipe]", "test_parameter[folder]", "test_table")
    }
    assert "3 tests were left out" in report


@pytest.mark.slow
def test_on_linux_every_test_runs(collect):
    names, report = collect("linux")
    assert len(names) == 14
    assert "test_fake" in names
    assert "left out" not in report


@pytest.mark.slow
def test_several_processes_report_the_same_numbers(collect):
    report = collect("win32", "-n", "2")[1]
    assert "11 tests were left out" in report
    assert "2 passed" in report


@pytest.mark.slow
def test_a_feature_that_does_not_exist_is_named(collect):
    text = 'import pytest\n@pytest.mark.needs("wings")\ndef test_it():\n    pass\n'
    assert "needs {'wings'}, expected ['fork'," in collect("win32", text=text)[1]


@pytest.mark.parametrize("allowed", [True, False])
def test_symbolic_links_depend_on_the_user(monkeypatch, allowed):
    systems.lacking.cache_clear()
    monkeypatch.setattr(systems, "_can_link", lambda: allowed)
    assert ("symlinks" in systems.lacking("win32")) is not allowed
    systems.lacking.cache_clear()
    assert systems.lacking("linux") == set()


@pytest.mark.long
@pytest.mark.install
def test_the_files_that_use_posix_are_collected_without_its_modules(tmp_path):
    lists = f"GONE, POSIX = {set(NAMES)}, {set(MODULES)}\n"
    tmp_path.joinpath("as_windows.py").write_text(lists + AS_WINDOWS, "utf-8")
    word = re.compile(rf"\b({'|'.join((*NAMES, *MODULES))})\b")
    helpers = [p.stem for p in ROOT.glob("tests/helpers/*.py") if word.search(p.read_text("utf-8"))]
    word = re.compile(rf"{word.pattern}|^from ({'|'.join(helpers)}) import", re.MULTILINE)
    tests = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("plugins/**/test_*.py")]
    texts = {str(file): file.read_text("utf-8") for file in tests}
    files = [f for f, text in texts.items() if word.search(text) and systems.FAKES not in text]
    assert len(files) > 40
    path = os.pathsep.join([str(tmp_path), str(ROOT / "tests/helpers")])
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", ""]
    done = subprocess.run(
        [*command, "-p", "as_windows", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert "tests were left out: they need" in done.stdout
    stay = {line.partition("[")[0] for line in done.stdout.splitlines()}
    file = "tests/plugin/test_importing.py::test_"
    assert f"{file}an_exception_of_a_signal_handler_is_not_kept" not in stay
    assert f"{file}an_import_error_of_a_module_is_kept" in stay
