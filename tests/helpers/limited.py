"""Runs code on many arguments in one child process, with limits of time and memory for each call.

The child reports the peak of its resident memory in each call, and the parent ends a child that
takes too long or grows too far. No allocation fails, as it would with RLIMIT_AS: code that turns
every error into one of its own would hide that it asked for too much.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CHILD = r"""
import gc, json, os, sys, traceback
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the code prints is no report

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

def say(*values):
    print(json.dumps(values), file=out, flush=True)

def main():
    import torch, vitzoo
    from vitzoo.errors import VitzooError
    base = status("VmRSS")
    scope = {"__name__": "limited"}
    exec(compile(sys.argv[1], "limited", "exec"), scope)
    gc.freeze()  # to collect all of torch's objects takes longer than most calls
    for argument in json.load(sys.stdin):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # forget the peak so far
        say("start", base)
        try:
            value = scope["read"](argument)
            kind, text = "value", "" if value is None else str(value)
            del value
        except VitzooError as error:
            kind, text = type(error).__name__, str(error)
        except BaseException:
            kind, text = "raised", traceback.format_exc()
        say("end", kind, text.encode("ascii", "backslashreplace").decode(), status("VmHWM") - base)
        gc.collect()
        gc.freeze()  # the next call does not search what is left, such as modules

main()
"""


class Outcome(NamedTuple):
    """What a call did: `value` and the result as text, or the class of the error and its text."""

    kind: str
    text: str
    memory: int  # bytes at the peak, more than after the imports of torch and vitzoo


def run_limited(
    code: str, arguments: Sequence[str], *, memory: int = 2**30, seconds: float = 10
) -> list[Outcome]:
    """Call `read` of some code with each argument, in order, in one child process.

    The outcome of a call is its value or an error of vitzoo.

    Args:
        code: Python that defines `read(argument: str) -> object`; it can import more, such as
            pyarrow, which counts for the first call.
        arguments: one for each call, such as the path of a file.
        memory: bytes that each call may add to a process that has imported torch and vitzoo.
        seconds: of each call.

    Raises:
        AssertionError: a call raised another error, took longer, took more memory, or ended the
            process. The message names the argument.
    """
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONFAULTHANDLER": "1"},
    ) as child:
        try:
            return _Calls(child, arguments, memory, seconds).outcomes()
        finally:
            child.kill()


class _Calls:
    """The calls in a child, and a thread that ends the child when a call is beyond its limits."""

    def __init__(
        self,
        child: subprocess.Popen[str],
        arguments: Sequence[str],
        memory: int,
        seconds: float,
    ) -> None:
        self.child, self.arguments, self.memory = child, arguments, memory
        self.seconds = seconds
        self.base, self.deadline, self.why = 2**60, float("inf"), ""
        self.said: list[str] = []  # to stderr

    def outcomes(self) -> list[Outcome]:
        assert self.child.stdin is not None
        threads = [threading.Thread(target=one) for one in (self._watch, self._listen)]
        for thread in threads:
            thread.start()
        try:
            with contextlib.suppress(BrokenPipeError), self.child.stdin as stdin:
                json.dump(list(self.arguments), stdin)
            return [self._outcome(argument) for argument in self.arguments]
        finally:
            self.child.kill()
            for thread in threads:
                thread.join()

    def _outcome(self, argument: str) -> Outcome:
        _, self.base = self._next(argument)
        self.deadline = time.monotonic() + self.seconds
        _, *values = self._next(argument)
        self.deadline = float("inf")
        outcome = Outcome(*values)
        assert outcome.kind != "raised", f"{argument}: {outcome.text}"
        used = (
            f"{argument}: {outcome.memory / 2**20:.0f} MiB, the most is {self.memory / 2**20} MiB"
        )
        assert outcome.memory <= self.memory, f"{used} ({outcome.kind}: {outcome.text})"
        return outcome

    def _next(self, argument: str) -> list:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            code = self.child.wait()
            end = "".join(self.said)[-3000:]
            raise AssertionError(f"{argument}: {self.why or f'ended with {code}'}\n{end}")
        return json.loads(line)

    def _watch(self) -> None:
        """End the child when it takes too long, or twice the memory that it may take."""
        page = os.sysconf("SC_PAGE_SIZE")
        while (sizes := self._sizes()) and self.child.poll() is None:
            resident = int(sizes.split()[1]) * page
            if time.monotonic() > self.deadline:
                self.why = f"took more than {self.seconds} s"
            elif resident > self.base + 2 * self.memory:
                self.why = f"took more than {2 * self.memory / 2**20} MiB"
            if self.why:
                self.child.kill()
                return
            time.sleep(0.01)

    def _sizes(self) -> str:
        with contextlib.suppress(OSError):  # the child has ended
            return Path(f"/proc/{self.child.pid}/statm").read_text("utf-8")
        return ""

    def _listen(self) -> None:
        assert self.child.stderr is not None
        self.said.extend(self.child.stderr)
