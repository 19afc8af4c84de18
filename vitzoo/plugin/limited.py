"""Another process that reads an untrusted file with limits, without the tokens of this one.

Its standard streams are the file that it reads, the file that it writes, and its answer. It gets no
environment variable that may have a token.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import IO, Any

from vitzoo.errors import ExitCode, InvalidOption, VitzooError
from vitzoo.files.platform.processes import (
    SESSION,
    exit_code,
    kill_group,
    limit,
    ran_out_of_time,
    signal_name,
)
from vitzoo.plugin.importing import import_module, search_path

MIB = 1024**2
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
    "from vitzoo.plugin.limited import main; main(*files)"
)
OUT_OF_MEMORY = ("allocate memory", "bad_alloc", "Cannot allocate", "not enough memory")


def run_limited(
    function: str,
    *arguments: object,
    source: int | IO[bytes],
    target: IO[bytes],
    memory: int,
    seconds: int,
    output: int,
) -> Any:
    """Call a function in another process that has limits; return its result.

    macOS has no limit of memory. The process is killed after four times the seconds.

    Args:
        function: `package.module:function`. It takes the open source, the open target and the
            arguments, and returns what JSON can hold, at most 64 KiB.
        arguments: what JSON can hold, at most 64 KiB.
        source: file that the function reads, or its descriptor.
        target: empty file that it writes; what it has is not trusted.
        memory: bytes beside those of the module of the function.
        seconds: of processor time.
        output: bytes of the written file.

    Raises:
        InvalidOption: the function raised it.
        VitzooError: the function raised another error, or the process reached a limit.
    """
    limits = {"memory": memory, "seconds": seconds, "output": output}
    request = {"function": function, "arguments": arguments, "limits": limits}
    fd = source if isinstance(source, int) else source.fileno()
    code, text = _run(json.dumps({"path": search_path()} | request), limits, fd, target.fileno())
    answer: Any = None
    with suppress(ValueError, RecursionError):
        answer = json.loads(text.rpartition("\n")[2])
    large = isinstance(answer, dict) and answer.get("large")
    if large or _size(target.fileno()) > output:
        raise VitzooError(f"it writes more than {output} bytes")
    if not isinstance(answer, dict):
        raise VitzooError(_end(code, seconds))
    if answer.get("memory"):
        raise VitzooError(f"reading it needs more than {memory // MIB} MiB of memory")
    if problem := str(answer.get("error", "")):
        kind = InvalidOption if answer.get("code") == ExitCode.USAGE else VitzooError
        raise kind(problem)
    return answer.get("result")


def _size(target: int) -> int:
    """Return the bytes of the output, which the process cannot limit itself on Windows."""
    return os.fstat(target).st_size


def _run(request: str, limits: dict[str, int], source: int, target: int) -> tuple[int | None, str]:
    """Run the process; return its exit code, None if it was killed, and what it answered."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(  # noqa: S603  # this very interpreter
            [sys.executable, "-P", "-c", START, request],
            stdin=source,
            stdout=target,
            stderr=output,
            env={"OMP_NUM_THREADS": "1"} | {n: os.environ[n] for n in KEPT if n in os.environ},
            **SESSION,
        )
        code, end = None, time.monotonic() + WAITING * limits["seconds"]
        try:
            while code is None and time.monotonic() < end and _size(target) <= limits["output"]:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(LOOK)
        finally:
            kill_group(process)
            process.wait()
        output.seek(0)
        return code, output.read(ANSWER).decode(errors="replace")


def _end(code: int | None, seconds: int) -> str:
    """Describe the end of a process that gave no answer."""
    if code is None or ran_out_of_time(code):
        return f"reading it takes more than {seconds} s of processor time"
    if killer := signal_name(code):
        return f"the process that reads it was killed by {killer}"
    return f"the process that reads it ended with exit code {exit_code(code)}"


def main(source: int, target: int, answers: int) -> None:
    """Call the function of the request; answer with a JSON object: `result`, or `error`.

    Args:
        source: descriptor of the file that is read.
        target: of the file that is written.
        answers: of the file for the answer.
    """
    request = json.loads(sys.argv[1])
    module, _, name = request["function"].partition(":")
    limits = request["limits"]
    answer: dict[str, Any]
    try:
        function = getattr(import_module(module), name)
        limit(limits["memory"], limits["seconds"], limits["output"])
        with os.fdopen(source, "rb") as file, os.fdopen(target, "wb") as written:
            file.seek(0)
            written.seek(0)
            written.truncate()  # what Python printed when it started
            answer = {"result": function(file, written, *request["arguments"])}
    except VitzooError as error:
        answer = {"error": str(error), "code": error.exit_code}
    except MemoryError:
        answer = {"error": "", "memory": True}
    except Exception as error:  # noqa: BLE001  # of libraries that read the file
        text = f"{type(error).__name__}: {error}"
        answer = {"error": text, "memory": any(part in text for part in OUT_OF_MEMORY)}
        answer["large"] = getattr(error, "errno", 0) == errno.EFBIG
    os.write(answers, json.dumps(answer).encode())
    os._exit(0)  # within its limits, a library may not end in order
