"""Import and test everything that plugins contribute, each plugin in a separate process.

A plugin that hangs, exits, prints or crashes does not affect the process that checks it. After the
time limit, the plugin's process is killed with all processes that it started.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

from vitzoo.authoring.plugin_state import called, place, with_commands
from vitzoo.errors import UnknownName, did_you_mean
from vitzoo.files.platform.processes import SESSION, exit_code, kill_group, signal_name
from vitzoo.plugin.host import PluginHost
from vitzoo.plugin.importing import search_path
from vitzoo.plugin.info import CORE, OFF, PluginInfo, install_command
from vitzoo.plugin.package_files import module_file
from vitzoo.plugin.switches import STRICT
from vitzoo.text import listed

GRACE = 1.0  # seconds in which a process that is out of time prints its traceback
TAIL = 64 * 1024  # bytes; the end of its output that is kept
ENDING = "ending the process"  # the worker's last step
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])['path']; "
    "from vitzoo.authoring.plugin_check_worker import main; main()"
)
FRAME = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)


@dataclass(frozen=True)
class Checked:
    """The result for one plugin; `contributions` is None if the plugin could not be read.

    Each problem has `namespace`, `what` (the contribution, or the step that failed), `cause` and
    `location`. `untested` says what was left out, and why.
    """

    namespace: str
    distribution: str
    version: str
    state: Literal["ok", "problems", "disabled"] = "disabled"
    contributions: int | None = None
    seconds: float = 0.0
    problems: tuple[Mapping[str, str], ...] = ()
    untested: tuple[str, ...] = ()

    def __str__(self) -> str:
        plugin = f"{self.namespace} ({self.distribution} {self.version})".replace(" )", ")")
        if self.state == "disabled":
            return f"{plugin}: disabled, not checked"
        count = "" if self.contributions is None else f"{self.contributions} contributions, "
        found = {0: "ok", 1: "1 problem"}.get(len(self.problems), f"{len(self.problems)} problems")
        lines = [f"{plugin}: {count}{found} ({self.seconds:.1f} s)"]
        return "\n".join([*lines, *(f"  not tested: {what}" for what in self.untested)])


def check(names: Sequence[str] = (), *, timeout: float) -> Iterator[Checked]:
    """Import and test everything that plugins contribute, one plugin after another.

    Args:
        names: namespaces, commands or distributions; if empty, all plugins except the core.
        timeout: seconds for one plugin.
    """
    for info in _chosen(names):
        result = Checked(info.namespace, info.distribution, info.version)
        begin = time.monotonic()
        if info.state not in OFF:
            result = _check(info, result, timeout)
        elif info.state != "disabled" or names:
            problem = _problem(info, "the plugin", info.trouble, place(info))
            result = replace(result, state="problems", problems=(problem,))
        yield replace(result, seconds=round(time.monotonic() - begin, 1))


def _problem(info: PluginInfo, what: str, cause: str, location: str) -> Mapping[str, str]:
    return {"namespace": info.namespace, "what": what, "cause": cause, "location": location}


def _chosen(names: Sequence[str]) -> list[PluginInfo]:
    host = PluginHost()
    infos = with_commands(host)
    if not names:
        return [info for key, info in infos.items() if key != CORE]
    found: dict[str, PluginInfo] = {}
    for name in names:
        hits = called(host, infos, name)
        if not hits:
            known = {key.removeprefix("vitzoo ") for key in infos}
            known |= {info.distribution for info in infos.values() if info.entry_point}
            near = did_you_mean(name, known) or f"; installed: {', '.join(infos)}"
            install = install_command(name)
            raise UnknownName(f"no plugin {name!r} is installed{install and '; '}{install or near}")
        found |= hits
    return list(found.values())


def _check(info: PluginInfo, result: Checked, timeout: float) -> Checked:
    """Check a plugin in a new process."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vitzoo-check-") as folder:
        file = Path(folder, "notes.jsonl")
        request = {"namespace": info.namespace, "path": search_path(), "timeout": timeout}
        code, output = _run(json.dumps(request | {"notes": str(file)}), timeout + GRACE)
        notes = _read(file)
    late = code is None or time.monotonic() - begin >= timeout
    last = {key: value for note in notes for key, value in note.items()}
    step = last.get("step", "starting the process")
    problems = [_problem(info, **note["problem"]) for note in notes if "problem" in note]
    if late or code or step != ENDING:
        killed = f"the check took longer than {timeout:g} s and was killed"
        where = _frame(output, info) or last.get("location") or place(info)
        problems.append(_problem(info, step, killed if late else _end(code, output), where))
    untested: dict[str, list[str]] = {}
    for one in (note["untested"] for note in notes if "untested" in note):
        untested.setdefault(one["why"], []).append(one["what"])
    return replace(
        result,
        state="problems" if problems else "ok",
        contributions=last.get("contributions"),
        problems=tuple(problems),
        untested=tuple(f"{listed(names, 3)}: {why}" for why, names in untested.items()),
    )


def _run(request: str, timeout: float) -> tuple[int | None, str]:
    """Run the worker in its own process group; return its exit code and the end of its output.

    The exit code is None after a timeout. In the end the whole group is killed.
    """
    unwanted = (STRICT, "VITZOO_REGISTRY")
    process = subprocess.Popen(  # noqa: S603  # this very interpreter
        [sys.executable, "-P", "-X", "faulthandler", "-c", START, request],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"OMP_NUM_THREADS": "1"}  # threads slow such small networks down
        | {name: value for name, value in os.environ.items() if name not in unwanted},
        **SESSION,
    )
    tail = bytearray()
    reader = threading.Thread(target=_keep_tail, args=(process.stdout, tail), daemon=True)
    reader.start()
    code = None
    try:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout)
    finally:
        kill_group(process)
        process.wait()
        reader.join(GRACE)
    return code, tail.decode(errors="replace")


def _keep_tail(stream: IO[bytes], tail: bytearray) -> None:
    """Read a stream to its end and keep the last bytes."""
    with stream, suppress(OSError, ValueError):
        while chunk := os.read(stream.fileno(), TAIL):
            tail += chunk
            del tail[:-TAIL]


def _read(file: Path) -> list[dict[str, Any]]:
    """Read the worker's notes; the last line of a killed process may be incomplete."""
    lines = file.read_text("utf-8", errors="replace").splitlines() if file.exists() else []
    notes: list[dict[str, Any]] = []
    with suppress(ValueError):
        notes.extend(json.loads(line) for line in lines)
    return notes


def _end(code: int | None, output: str) -> str:
    """Describe the end of a process that did not finish its work."""
    if killer := signal_name(code or 0):
        return f"the process was killed by {killer}"
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
    return f"the process ended with exit code {exit_code(code or 0)}" + (
        f": {last}" if last else ""
    )


def _frame(output: str, info: PluginInfo) -> str:
    """Return `file:line` of the innermost frame in a printed traceback, one of the plugin first."""
    frames = [(Path(file), f"{file}:{line}") for file, line in FRAME.findall(output)]
    top = module_file(info.entry_point.partition(":")[0].partition(".")[0])
    library = Path(sysconfig.get_path("stdlib"))
    own = [at for file, at in frames if top and file.is_relative_to(top.parent)]
    others = [at for file, at in frames if not file.is_relative_to(library) and file.is_absolute()]
    return next(iter([*own, *others]), "")
