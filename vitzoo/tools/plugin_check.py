"""Importing everything that plugins bring, each plugin in a process of its own.

A plugin that hangs, exits, prints or takes its process down hurts nobody: it is one more row. When
its time is over, the process and all that it started are killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitzoo.errors import UnknownName, did_you_mean
from vitzoo.plugin.host import PluginHost
from vitzoo.plugin.info import CORE, OFF, PluginInfo
from vitzoo.plugin.package_files import module_file
from vitzoo.plugin.switches import STRICT
from vitzoo.tools.plugin_why import called, place

TIMEOUT = 60.0  # seconds for one plugin
GRACE = 1.0  # seconds in which a process that is out of time says where it hangs
TAIL = 64 * 1024  # bytes of what it printed that are kept
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])['path']; "
    "from vitzoo.tools.plugin_check_worker import main; main()"
)
FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a plugin.

    Args:
        namespace: of the plugin.
        what: contribution, or what was being done.
        cause: what is wrong, and where it is known what to do.
        location: `file:line`, or file.
    """

    namespace: str
    what: str
    cause: str
    location: str


@dataclass(frozen=True)
class Checked:
    """What became of one plugin.

    Args:
        namespace, distribution, version: which.
        state: `ok`, `problems`, or `disabled`: switched off, and so not looked at.
        contributions: how many it has, None where it could not be read.
        seconds: it took.
        problems: none if it is ok.
    """

    namespace: str
    distribution: str
    version: str
    state: Literal["ok", "problems", "disabled"]
    contributions: int | None = None
    seconds: float = 0.0
    problems: tuple[Problem, ...] = ()


@dataclass
class _Seen:
    """What a process has noted, and how it ended."""

    step: str = "starting"
    location: str = ""
    contributions: int | None = None
    problems: list[dict[str, str]] = field(default_factory=list)


def check(names: Iterable[str] = (), *, timeout: float = TIMEOUT) -> Iterator[Checked]:
    """Import and build everything that plugins bring, one plugin after another.

    Args:
        names: namespaces or distributions; every plugin but the core if none is given.
        timeout: seconds for one plugin.

    Raises:
        UnknownName: no such plugin is installed.
    """
    names = list(names)
    for info in _chosen(names):
        if info.state == "disabled" and not names:
            yield Checked(info.namespace, info.distribution, info.version, "disabled")
        elif info.state in OFF:
            problem = Problem(info.namespace, "the plugin", info.trouble, place(info))
            yield _checked(info, (problem,), None, 0.0)
        else:
            yield _probed(info, timeout)


def _chosen(names: list[str]) -> list[PluginInfo]:
    infos = PluginHost().infos
    if not names:
        return [info for key, info in infos.items() if key != CORE]
    found: dict[str, PluginInfo] = {}
    for name in names:
        hits = called(infos, name)
        if not hits:
            known = {*infos, *(info.distribution for info in infos.values() if info.entry_point)}
            near = did_you_mean(name, known) or f"; installed: {', '.join(infos)}"
            raise UnknownName(f"no plugin {name!r} is installed{near}")
        found |= hits
    return list(found.values())


def _probed(info: PluginInfo, timeout: float) -> Checked:
    namespace, begin = info.namespace, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vitzoo-check-") as folder:
        notes = Path(folder, "notes.jsonl")
        asked = {"namespace": namespace, "path": sys.path, "notes": str(notes), "timeout": timeout}
        with _started(json.dumps(asked)) as (process, said):
            ended = _wait(process, begin + timeout + GRACE)
        seen = _read(notes)
    seconds = time.monotonic() - begin
    problems = [Problem(namespace, **row) for row in seen.problems]
    bad_end = _bad_end(seen, process.returncode, ended and seconds < timeout, timeout, said())
    if bad_end:
        where = _frame(said(), info) or seen.location or place(info)
        problems.append(Problem(namespace, seen.step, bad_end, where))
    return _checked(info, tuple(problems), seen.contributions, seconds)


def _checked(
    info: PluginInfo,
    problems: tuple[Problem, ...],
    contributions: int | None,
    seconds: float,
) -> Checked:
    return Checked(
        info.namespace,
        info.distribution,
        info.version,
        "problems" if problems else "ok",
        contributions,
        round(seconds, 1),
        problems,
    )


@contextmanager
def _started(
    asked: str,
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """Start a process in a group of its own, and kill the group in the end."""
    unwanted = (STRICT, "VITZOO_REGISTRY")
    process = subprocess.Popen(  # noqa: S603  # this very interpreter
        [sys.executable, "-P", "-X", "faulthandler", "-c", START, asked],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"OMP_NUM_THREADS": "1"}  # networks this small lose time to threads
        | {name: value for name, value in os.environ.items() if name not in unwanted},
        start_new_session=True,
    )
    tail = bytearray()
    reader = threading.Thread(target=_keep_tail, args=(process.stdout, tail), daemon=True)
    reader.start()
    try:
        yield process, lambda: tail.decode(errors="replace")
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join(GRACE)


def _keep_tail(stream: Any, tail: bytearray) -> None:
    """Read all that is printed, keep the end."""
    with stream, suppress(OSError, ValueError):
        while chunk := os.read(stream.fileno(), TAIL):
            tail += chunk
            del tail[:-TAIL]


def _wait(process: subprocess.Popen[bytes], until: float) -> bool:
    """Wait for a process and leave it unreaped, so that its group cannot be another's yet."""
    while time.monotonic() < until:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return True
        time.sleep(0.02)
    return False


def _read(notes: Path) -> _Seen:
    seen = _Seen()
    with suppress(OSError):
        for line in notes.read_text("utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                note = json.loads(line)
                seen.step = note.get("step", seen.step)
                seen.location = note.get("location", seen.location)
                seen.contributions = note.get("contributions", seen.contributions)
                seen.problems += [note["problem"]] if "problem" in note else []
    return seen


def _bad_end(seen: _Seen, code: int, in_time: bool, timeout: float, said: str) -> str:
    """Say how a process ended that did not end as it should, empty if it did."""
    from vitzoo.tools.plugin_check_worker import ENDING

    if not in_time:
        return f"took longer than {timeout:g} s and was killed"
    if code == 0 and seen.step == ENDING:
        return ""
    if code < 0:
        return f"its process was killed by {signal.Signals(-code).name}"
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")
    return f"its process ended by itself with exit code {code}" + (f": {last}" if last else "")


def _frame(said: str, info: PluginInfo) -> str:
    """Return `file:line` of what ran at the end, in the plugin where there is such a frame."""
    frames = [(Path(file), f"{file}:{line}") for file, line in FRAME.findall(said)]
    top = module_file(info.entry_point.partition(":")[0].partition(".")[0])
    library = Path(sysconfig.get_path("stdlib"))
    own = [at for file, at in frames if top and file.is_relative_to(top.parent)]
    others = [at for file, at in frames if not file.is_relative_to(library) and file.is_absolute()]
    return next(iter([*own, *others]), "")
