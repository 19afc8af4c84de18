"""Other processes of vitzoo: plain interpreters with a pipe in each direction.

They open no socket, do not import the caller's script, and end when this process ends, however it
ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from vitzoo.errors import VitzooError
from vitzoo.files.platform.processes import (
    GROUP,
    exit_code,
    is_closed_pipe,
    kill_group,
    lead_group,
    signal_name,
    widen_pipe,
)
from vitzoo.plugin.importing import search_path

CODE = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from {} import main; main()"
)


class ProcessEnded(Exception):
    """The other process ended; the message says how: `exit code 1` or `signal SIGKILL`."""


class Process:
    """An interpreter that runs the function `main` of a module.

    Args:
        module: import path of the module.
        env: environment variables that are added.
        quiet: whether to hide what it writes to stderr.
        group: whether `end` also ends the processes that it started.
    """

    def __init__(
        self, module: str, env: Mapping[str, str], *, quiet: bool = False, group: bool = False
    ) -> None:
        self._group = group
        self.popen = subprocess.Popen(  # noqa: S603  # this interpreter and a constant
            [sys.executable, "-P", "-c", CODE.format(module)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            env=os.environ | env,
            **(GROUP if group else {}),
        )
        self._path: list[str] | None = search_path()
        stdout: Any = self.popen.stdout
        widen_pipe(stdout.fileno())

    def send(self, *values: object) -> None:
        """Send values; raise ProcessEnded if it cannot read them."""
        stdin: Any = self.popen.stdin
        try:
            if self._path is not None:
                pickle.dump(self._path, stdin)
                self._path = None
            for value in values:
                pickle.dump(value, stdin)
            stdin.flush()
        except OSError as error:
            if not is_closed_pipe(error):
                raise
            raise ProcessEnded(self._how()) from error

    def receive(self) -> Any:
        """Wait for the next value; raise ProcessEnded if there is none."""
        stdout: Any = self.popen.stdout
        try:
            return pickle.load(stdout)  # noqa: S301  # of our process
        except (EOFError, pickle.UnpicklingError) as error:
            raise ProcessEnded(self._how()) from error

    def read_into(self, memory: memoryview) -> None:
        """Wait for bytes that fill a contiguous memory; raise ProcessEnded if there are fewer."""
        stdout: Any = self.popen.stdout
        if stdout.readinto(memory) != memory.nbytes:
            raise ProcessEnded(self._how())

    def end(self) -> None:
        """End the process at once."""
        if self._group and self.popen.poll() is None:
            kill_group(self.popen)
        self.popen.kill()
        self.popen.communicate()

    def _how(self) -> str:
        code = self.popen.wait()
        name = signal_name(code)
        return f"signal {name}" if name else f"exit code {exit_code(code)}"


def channel() -> tuple[Callable[[], Any], Callable[..., None]]:
    """Return the functions that receive and send values in the other process.

    `send` takes a value, and memory, of which it sends the bytes. `receive` raises EOFError when
    there is no more value. The process ends if what it sends is not read.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    lead_group()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with the answers

    def receive() -> Any:
        return pickle.load(sys.stdin.buffer)  # noqa: S301  # of the process that started this

    def send(value: object, *memory: memoryview) -> None:
        try:
            pickle.dump(value, answers)
            for part in memory:
                answers.write(part)
            answers.flush()
        except OSError as error:
            if not is_closed_pipe(error):
                raise
            os._exit(1)  # the first process has ended

    return receive, send


def portable(error: Exception, fix: str = "") -> Exception:
    """Return an error that another process can read; one of a missing class gets a fix."""
    try:
        same: Any = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    except Exception:  # noqa: BLE001  # of another library
        return VitzooError(f"{type(error).__name__}: {error}")
    if isinstance(same, VitzooError | OSError):
        return same
    return VitzooError(f"{same!r}{fix if isinstance(same, ImportError | AttributeError) else ''}")
