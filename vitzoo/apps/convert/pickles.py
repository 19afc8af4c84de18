"""Pickles of PyTorch to safetensors, in a process of its own with limits.

This is the only way in which vitzoo reads a pickle. The process uses torch's weights-only loader,
and imports no class that the pickle names.
It gets no environment variable with a token. Its standard streams are the two files and its answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import BinaryIO

from vitzoo.errors import CheckpointError, printable
from vitzoo.files.platform.processes import (
    SESSION,
    exit_code,
    kill_group,
    ran_out_of_time,
    signal_name,
)
from vitzoo.files.safetensors import MAX_HEADER, read_header
from vitzoo.plugin.importing import search_path

MIB = 1024**2
MEMORY_SLACK = 512 * MIB
MEMORY_FACTOR = 4  # times the size of the file: its bytes, its tensors, and one contiguous copy
OUTPUT_FACTOR = 2  # tied weights are written twice
OUTPUT_SLACK = MAX_HEADER + 16 * MIB
SECONDS, SPEED = 60, 20 * MIB  # of processor time: for any file, and bytes for a further second
WAITING = 4  # times the processor time until the process is killed
LOOK = 0.5  # seconds between two looks at the size of the output
ANSWER = 64 * 1024  # bytes
KEPT = (  # environment variables; the last three are of Windows
    *("PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL"),
    *("SYSTEMROOT", "TEMP", "TMP"),
)
START = (  # what libraries print must not mix with the files
    "import json, os, sys; files = [os.dup(i) for i in range(3)]; "
    "null = os.open(os.devnull, os.O_RDWR); [os.dup2(null, i) for i in range(3)]; "
    "sys.path[:] = json.loads(sys.argv[1])['path']; "
    "from vitzoo.apps.convert.pickle_worker import main; main(*files)"
)


@dataclass(frozen=True)
class Limits:
    """What the process that reads a pickle may use.

    Args:
        memory: bytes beside those of torch itself.
        output: bytes of the written file.
        cpu: seconds of processor time.
    """

    memory: int
    output: int
    cpu: int

    @classmethod
    def of(cls, size: int) -> Limits:
        """Return the limits for a file of this many bytes."""
        return cls(
            memory=MEMORY_FACTOR * size + MEMORY_SLACK,
            output=OUTPUT_FACTOR * size + OUTPUT_SLACK,
            cpu=SECONDS + size // SPEED,
        )


def write_tensors(fd: int, source: str, target: BinaryIO, key: str | None) -> tuple[int, str]:
    """Write the tensors of a pickle to an open file as safetensors, under the keys of the pickle.

    Args:
        fd: descriptor of the pickle.
        source: its name, for messages.
        target: an empty file.
        key: names of the entry with the tensors, separated by dots; None to look for it.

    Returns:
        the number of tensors, and the names of their entry.

    Raises:
        CheckpointError: it is no pickle of tensors, or exceeds a limit.
    """
    limits = Limits.of(os.fstat(fd).st_size)
    request = {"path": search_path(), "key": key, "limits": asdict(limits)}
    code, text = _run(json.dumps(request), limits, fd, target.fileno())
    answer: object = None
    with suppress(ValueError):
        answer = json.loads(text.rpartition("\n")[2])
    if _too_large(target.fileno(), limits):
        answer, problem = None, f"it writes more than {limits.output} bytes"
    elif not isinstance(answer, dict):
        problem = _end(code, limits)
    elif answer.get("memory"):
        problem = f"reading it needs more than {limits.memory // MIB} MiB of memory"
    else:
        problem = str(answer.get("error", ""))
    if problem or not isinstance(answer, dict):
        raise CheckpointError(f"{source} is not converted: {printable(problem, 600)}")
    header = read_header(target.fileno(), source)  # the process is not trusted
    return len(header.tensors), printable(str(answer.get("place", "")), 200)


def _too_large(target: int, limits: Limits) -> bool:
    """Tell whether the output is too large; the process cannot limit itself on Windows."""
    return os.fstat(target).st_size > limits.output


def _run(request: str, limits: Limits, source: int, target: int) -> tuple[int | None, str]:
    """Run the worker; return its exit code, None if it was killed, and what it answered."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603  # this very interpreter
            [sys.executable, "-P", "-c", START, request],
            stdin=source,
            stdout=target,
            stderr=output,
            env={"OMP_NUM_THREADS": "1"} | {n: os.environ[n] for n in KEPT if n in os.environ},
            **SESSION,
        )
        code, end = None, time.monotonic() + WAITING * limits.cpu
        try:
            while code is None and time.monotonic() < end and not _too_large(target, limits):
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(LOOK)
        finally:
            kill_group(process)
            process.wait()
        output.seek(0)
        return code, output.read(ANSWER).decode(errors="replace")


def _end(code: int | None, limits: Limits) -> str:
    """Describe the end of a process that gave no answer."""
    if code is None or ran_out_of_time(code):
        return f"reading it takes more than {limits.cpu} s of processor time"
    if killer := signal_name(code):
        return f"the process that reads it was killed by {killer}"
    return f"the process that reads it ended with exit code {exit_code(code)}"
