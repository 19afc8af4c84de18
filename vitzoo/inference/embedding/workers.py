"""Processes that compute parts: this one, and others that it starts.

The others are plain interpreters with a pipe in each direction, so that they open no socket and do
not import the caller's script. They end when this process ends, however it ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from typing import IO, Any

import torch

from vitzoo.errors import VitzooError
from vitzoo.inference.embedding.pipeline import Job, Pipeline, Task, Work

CODE = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from vitzoo.inference.embedding.workers import main; main()"
)
Note = Callable[[Work], object]


def compute(job: Job, tasks: Sequence[Task], workers: int, note: Note) -> None:
    """Compute parts in `workers` processes, of which this is one; `note` is told of all work.

    Raises:
        VitzooError: a process failed or was killed; finished parts stay.
    """
    shared = _Shared(tasks, note)
    processes = [_Process(job) for _ in range(min(workers, len(tasks)) - 1)]
    pool = ThreadPoolExecutor(max(1, len(processes)), "vitzoo-worker")
    try:
        others = [pool.submit(_attend, process, shared) for process in processes]
        with closing(Pipeline(job)) as own:
            for task in shared:
                own.write(task, shared.tell)
                if any(other.done() and other.exception() for other in others):
                    break
        for other in wait(others, return_when=FIRST_EXCEPTION).done:
            other.result()
    finally:
        shared.stopped.set()
        for process in processes:
            process.end()
        pool.shutdown()


class _Shared:
    """The tasks that are left, and the listener; for several threads."""

    def __init__(self, tasks: Iterable[Task], note: Note) -> None:
        self.stopped = threading.Event()
        self._tasks, self._note, self._lock = iter(tasks), note, threading.Lock()

    def __iter__(self) -> Iterator[Task]:
        while not self.stopped.is_set():
            with self._lock:
                task = next(self._tasks, None)
            if task is None:
                return
            yield task

    def tell(self, work: Work) -> None:
        with self._lock:
            self._note(work)


def _attend(process: _Process, shared: _Shared) -> None:
    for task in shared:
        process.run(task, shared.tell)


class _Process:
    """An interpreter that computes parts."""

    def __init__(self, job: Job) -> None:
        self.popen = subprocess.Popen(  # noqa: S603  # this interpreter and a constant
            [sys.executable, "-c", CODE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
        )
        self._job: bytes | None = pickle.dumps(job)

    def run(self, task: Task, note: Note) -> None:
        """Compute one part in the other process."""
        stdin: Any = self.popen.stdin
        stdout: Any = self.popen.stdout
        try:
            if self._job is not None:
                pickle.dump(sys.path, stdin)
                stdin.write(self._job)
                self._job = None
            pickle.dump(task, stdin)
            stdin.flush()
            while (answer := pickle.load(stdout)) is not None:  # noqa: S301  # of our process
                if isinstance(answer, Exception):
                    raise answer
                note(answer)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            raise VitzooError(
                f"a worker process ended with {self._end()}; run the command again to compute the "
                "missing parts, with fewer --workers if the memory was full"
            ) from error

    def end(self) -> None:
        """End the process; an unfinished part is lost."""
        self.popen.kill()
        self.popen.communicate()

    def _end(self) -> str:
        code = self.popen.wait()
        if code >= 0:
            return f"exit code {code}"
        with_name = {one.value: one.name for one in signal.Signals}
        return f"signal {with_name.get(-code, -code)}"


def main() -> None:
    """Compute the parts that stdin names, until it ends; answers go to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    tasks = sys.stdin.buffer
    pipeline: Pipeline | None = None
    problem: Exception | None = None
    try:
        pipeline = _started(pickle.load(tasks))  # noqa: S301  # of the process that started this
    except Exception as error:  # noqa: BLE001  # the first process raises it
        problem = _portable(error)

    def note(work: Work) -> None:
        try:
            _answer(answers, work)
        except BrokenPipeError:  # the first process has ended
            os._exit(1)

    while True:
        try:
            task: Task = pickle.load(tasks)  # noqa: S301  # as above
        except EOFError:
            return
        try:
            if pipeline is not None:
                pipeline.write(task, note)
            _answer(answers, problem)
        except Exception as error:  # noqa: BLE001  # the first process raises it
            _answer(answers, _portable(error))


def _started(job: Job) -> Pipeline:
    torch.set_float32_matmul_precision(job.precision)
    found = job.predictor.fingerprint().sha256
    if found != job.fingerprint:
        raise VitzooError(
            f"a worker process has another model: its fingerprint is {found}, expected "
            f"{job.fingerprint}; run the command again when the file of the weights is complete"
        )
    return Pipeline(job)


def _answer(answers: IO[bytes], value: object) -> None:
    pickle.dump(value, answers)
    answers.flush()


def _portable(error: Exception) -> Exception:
    """Return an error that another process can read."""
    try:
        same: Any = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    except Exception:  # noqa: BLE001  # of another library
        return VitzooError(f"{type(error).__name__}: {error}")
    return same if isinstance(same, VitzooError | OSError) else VitzooError(repr(error))
