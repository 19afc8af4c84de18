"""Processes that compute parts: this one, and others that it starts."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any

from vitzoo.errors import VitzooError
from vitzoo.inference.arithmetic import apply_settings
from vitzoo.inference.embedding.pipeline import Job, Pipeline, Task, Work
from vitzoo.inference.embedding.processes import Process, ProcessEnded, channel

MODULE = "vitzoo.inference.embedding.workers"
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
        self._process = Process(MODULE, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
        self._first: tuple[Job, ...] = (job,)

    def run(self, task: Task, note: Note) -> None:
        """Compute one part in the other process."""
        try:
            first, self._first = self._first, ()
            self._process.send(*first, task)
            while (answer := self._process.receive()) is not None:
                if isinstance(answer, Exception):
                    raise answer
                note(answer)
        except ProcessEnded as error:
            raise VitzooError(
                f"a worker process ended with {error}; run the command again to compute the "
                "missing parts, with fewer --workers if the memory was full"
            ) from error

    def end(self) -> None:
        """End the process; an unfinished part is lost."""
        self._process.end()


def main() -> None:
    """Compute the parts that stdin names, until it ends; answers go to stdout."""
    receive, send = channel()
    pipeline: Pipeline | None = None
    problem: Exception | None = None
    try:
        pipeline = _started(receive())
    except Exception as error:  # noqa: BLE001  # the first process raises it
        problem = _portable(error)
    while True:
        try:
            task: Task = receive()
        except EOFError:
            return
        try:
            if pipeline is not None:
                pipeline.write(task, send)
            send(problem)
        except Exception as error:  # noqa: BLE001  # the first process raises it
            send(_portable(error))


def _started(job: Job) -> Pipeline:
    apply_settings(job.precision, job.settings)
    found = job.predictor.fingerprint().sha256
    if found != job.fingerprint:
        raise VitzooError(
            f"a worker process has another model: its fingerprint is {found}, expected "
            f"{job.fingerprint}; run the command again when the file of the weights is complete"
        )
    return Pipeline(job)


def _portable(error: Exception) -> Exception:
    """Return an error that another process can read."""
    try:
        same: Any = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    except Exception:  # noqa: BLE001  # of another library
        return VitzooError(f"{type(error).__name__}: {error}")
    return same if isinstance(same, VitzooError | OSError) else VitzooError(repr(error))
