"""Pickles of PyTorch to safetensors, in a process of its own with limits.

This is the only way in which vitzoo reads a pickle. The process uses torch's weights-only loader.
It gets no environment variable with a token, and only the descriptors of the two files.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from vitzoo.errors import CheckpointError, printable
from vitzoo.files.safetensors import MAX_HEADER, read_header
from vitzoo.plugin.importing import search_path

MIB = 1024**2
MEMORY_SLACK = 512 * MIB
MEMORY_FACTOR = 4  # times the size of the file: its bytes, its tensors, and one contiguous copy
OUTPUT_FACTOR = 2  # tied weights are written twice
OUTPUT_SLACK = MAX_HEADER + 16 * MIB
SECONDS, SPEED = 60, 20 * MIB  # of processor time: for any file, and bytes for a further second
WAITING = 4  # times the processor time until the process is killed
ANSWER = 64 * 1024  # bytes
KEPT = ("PATH", "LD_LIBRARY_PATH", "TMPDIR", "LANG", "LC_ALL")  # environment variables
START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1])['path']; "
    "from vitzoo.apps.convert.pickle_worker import main; main()"
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
    request = {"path": search_path(), "source": fd, "target": target.fileno(), "key": key}
    code, text = _run(json.dumps(request | {"limits": asdict(limits)}), limits, fd, target.fileno())
    answer: object = None
    with suppress(ValueError):
        answer = json.loads(text)
    if not isinstance(answer, dict):
        problem = _end(code, limits)
    elif answer.get("memory"):
        problem = f"reading it needs more than {limits.memory // MIB} MiB of memory"
    else:
        problem = str(answer.get("error", ""))
    if problem or not isinstance(answer, dict):
        raise CheckpointError(f"{source} is not converted: {printable(problem, 600)}")
    with Path(target.name).open("rb") as written:  # the process is not trusted
        header = read_header(written.fileno(), source)
    return len(header.tensors), printable(str(answer.get("place", "")), 200)


def _run(request: str, limits: Limits, *files: int) -> tuple[int | None, str]:
    """Run the worker; return its exit code, None after the time limit, and what it printed."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603  # this very interpreter
            [sys.executable, "-P", "-c", START, request],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={"OMP_NUM_THREADS": "1"} | {n: os.environ[n] for n in KEPT if n in os.environ},
            pass_fds=files,
            start_new_session=True,
        )
        code = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(WAITING * limits.cpu)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return code, os.pread(output.fileno(), ANSWER, 0).decode(errors="replace")


def _end(code: int | None, limits: Limits) -> str:
    """Describe the end of a process that gave no answer."""
    if code in (None, -signal.SIGXCPU):
        return f"reading it takes more than {limits.cpu} s of processor time"
    if code is not None and code < 0:
        return f"the process that reads it was killed by {signal.Signals(-code).name}"
    return f"the process that reads it ended with exit code {code}"
