"""Which tests a system cannot run: what they use of POSIX, from the code that they reach.

On Linux every test runs, and this module does nothing. Elsewhere, a test is deselected if its
function, a fixture or a helper in this repository uses what the system lacks. The end of the report
says how many tests that are, and why. `@pytest.mark.needs("names")` states what code does not show.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

import pytest

SYSTEM = sys.platform
LEFT = pytest.StashKey[Any]()  # the numbers of tests that were left out, by feature
ROOT = Path(__file__).parents[2]
MOST = 200  # longer collections are data
FAKES = "from other_systems import"  # in files that run other systems on fakes, made of POSIX calls
POSIX, LINUX = ("linux", "darwin"), ("linux",)
MODULES = ("os", "signal", "socket", "resource")


class Feature(NamedTuple):
    """What some systems lack.

    Args:
        systems: that have it.
        what: for the report.
        names: pattern of the modules, functions and constants that stand for it.
        texts: pattern of further texts in code that stand for it.
    """

    systems: tuple[str, ...]
    what: str
    names: str = "(?!)"
    texts: str = "(?!)"


FEATURES = {
    "fork": Feature(POSIX, "os.fork", "fork|waitpid"),
    "signals": Feature(
        POSIX,
        "signals, groups of processes",
        "SIG(ALRM|KILL|STOP|CONT|USR1|BUS|INT)|setitimer|alarm|send_signal|setsid|killpg"
        "|start_new_session",
        r"\bos\.kill\b",
    ),
    "terminals": Feature(POSIX, "pseudo-terminals", "fcntl|pty|openpty|termios"),
    "pipes": Feature(POSIX, "named pipes and sockets in folders", "mkfifo|AF_UNIX"),
    "owners": Feature(POSIX, "owners and permissions of files", "geteuid|getuid|chown|st_mode"),
    "descriptors": Feature(
        POSIX, "removing and replacing what is in use", "pread|preadv|O_NOFOLLOW"
    ),
    "shell": Feature(POSIX, "a POSIX shell", texts=r"^(ba|z|fi)?sh$|#!/bin/sh|/usr/bin/"),
    "symlinks": Feature(POSIX, "symbolic links, which the user may not make", "symlink(_to)?"),
    "limits": Feature(LINUX, "limits and counters of a process", "resource|setrlimit|getrusage"),
    "proc": Feature(LINUX, "/proc", texts="/proc/"),
    "devices": Feature(LINUX, "/dev", texts="/dev/(full|null|stdin|zero)"),
    "cores": Feature(
        LINUX, "sched_getaffinity, copy_file_range", "sched_getaffinity|copy_file_range"
    ),
    "names": Feature(LINUX, "file names of any bytes and characters"),
}


@functools.cache
def lacking(system: str) -> frozenset[str]:
    """Return the features that a system lacks."""
    found = {name for name, feature in FEATURES.items() if system not in feature.systems}
    return frozenset(found - {"symlinks"} if _can_link() else found)


def _can_link() -> bool:
    """Return whether this user may make symbolic links."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            Path(folder, "link").symlink_to("target")
        except OSError:  # Windows, without the developer mode
            return False
    return True


def needs(item: pytest.Item) -> set[str]:
    """Return the features that a test needs."""
    if not isinstance(item, pytest.Function):
        return set()
    found = {name for mark in item.iter_markers("needs") for name in mark.args}
    if unknown := found - FEATURES.keys():
        raise pytest.UsageError(f"{item.nodeid} needs {unknown}, expected {list(FEATURES)}")
    fixtures = item._fixtureinfo.name2fixturedefs.values()
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    methods = [v for k, v in vars(item.cls or object).items() if not k.startswith(("_", "test"))]
    reached = (item.obj, *methods, *(defined[-1].func for defined in fixtures), *values)
    seen: set[int] = set()
    return found.union(*(_used(thing, seen) for thing in reached))


def _used(thing: Any, seen: set[int]) -> set[str]:
    """Return the features that a function uses, a class, a text, or what a collection contains."""
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if id(thing) in seen:
        return set()
    seen.add(id(thing))
    found, inner = set[str](), list[Any]()
    match thing:
        case str():
            found = {*_in_text(thing)}
        case list() | tuple() | set() | frozenset() if len(thing) < MOST:
            inner = list(thing)
        case dict() if len(thing) < MOST:
            inner = list(thing.values())
        case functools.partial():
            inner = [thing.func, thing.args, thing.keywords]
        case staticmethod() | classmethod() | MethodType():
            inner = [thing.__func__]
        case property():
            inner = [thing.fget]
        case type() if _is_ours(getattr(inspect.getmodule(thing), "__file__", None) or ""):
            inner = list(vars(thing).values())
        case FunctionType() if _is_ours(thing.__code__.co_filename):
            found, inner = _in_function(thing)
    return found.union(*(_used(one, seen) for one in inner))


def _is_ours(file: str) -> bool:
    """Return whether a file is of the tests."""
    path = Path(file)
    inside = path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else ("",)
    return inside[0] == "tests" or inside[-1] == "conftest.py" or "tests" in inside[2:3]


@functools.cache
def _in_function(function: FunctionType) -> tuple[set[str], list[Any]]:
    """Return the features that the code of a function uses, and what else it reaches."""
    names, texts = set[str](), list[str]()
    for code in _codes(function.__code__):
        names |= {*code.co_names}
        for constant in code.co_consts:
            words = constant if type(constant) is tuple else (constant,)
            texts += [word for word in words if isinstance(word, str) and word != function.__doc__]
    names |= {*texts}  # keywords of calls
    found = {name for name, feature in FEATURES.items() if any(map(_pattern(feature), names))}
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    return found, [*texts, *used, *inspect.getclosurevars(function).nonlocals.values()]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _pattern(feature: Feature) -> Callable[[str], object]:
    return re.compile(feature.names).fullmatch


@functools.cache
def _in_text(text: str) -> frozenset[str]:
    """Return the features that code in a text uses, or the name of a program."""
    found = set()
    for name, feature in FEATURES.items():
        used = rf"\b(?:{'|'.join(MODULES)})\.(?:{feature.names})\b|\bimport (?:{feature.names})\b"
        if re.search(f"{feature.texts}|{used}", text):
            found.add(name)
    return frozenset(found)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker; refuse a Windows whose text is not UTF-8, which the tests write."""
    config.addinivalue_line(
        "markers", f"needs(*features): of {', '.join(FEATURES)}; see systems.py"
    )
    if sys.platform == "win32" and not sys.flags.utf8_mode:
        raise pytest.UsageError("the tests read and write UTF-8; set PYTHONUTF8=1")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Import no file on fakes of other systems where the calls do not exist that they replace."""
    if SYSTEM in LINUX or collection_path.suffix != ".py":
        return None
    return FAKES in collection_path.read_text("utf-8") or None


@pytest.hookimpl(trylast=True)  # after -m deselects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that need what this system lacks."""
    if not (lacks := lacking(SYSTEM)):
        return
    missing = [
        needs(item) & lacks if isinstance(item, pytest.Function) else set() for item in items
    ]
    if left := [item for item, without in zip(items, missing, strict=True) if without]:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item, without in zip(items, missing, strict=True) if not without]
    config.stash[LEFT] = Counter(name for without in missing for name in without) | {"": len(left)}


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Pass the numbers from a worker of xdist to the first process."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = session.config.stash.get(LEFT, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the numbers of a worker, which are those of every worker."""
    node.config.stash[LEFT] = getattr(node, "workeroutput", {}).get("left")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many tests were left out, and why."""
    if left := config.stash.get(LEFT, None):
        why = ", ".join(f"{FEATURES[name].what} ({n})" for name, n in left.items() if name)
        terminalreporter.section("what this system lacks")
        terminalreporter.line(f"{left['']} tests were left out: they need {why}")
        terminalreporter.line("Files that fake other systems were left out as well")
