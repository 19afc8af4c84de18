"""Processes that compute parts: this one, and others that it starts."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from types import FunctionType
from typing import Any

from vitzoo.apps.embed.pipeline import Job, Pipeline, Task, Work
from vitzoo.apps.embed.processes import Process, ProcessEnded, channel
from vitzoo.apps.predict.arithmetic import apply_settings
from vitzoo.errors import InvalidOption, VitzooError

MODULE = "vitzoo.apps.embed.workers"
Note = Callable[[Work], object]
_IMPORTABLE = (
    "define the classes of the model at the top level of a module that is installed or in a folder "
    "of PYTHONPATH, or pass workers=1 (--workers 1)"
)


def compute(job: Job, tasks: Sequence[Task], workers: int, note: Note) -> None:
    """Compute parts in `workers` processes, of which this is one; `note` is told of all work.

    Raises:
        InvalidOption: other processes cannot have the model.
        VitzooError: a process failed or was killed; finished parts stay.
    """
    shared = _Shared(tasks, note)
    processes: list[_Process] = []
    pool = ThreadPoolExecutor(workers, "vitzoo-worker")
    try:
        _start(processes, min(workers, len(tasks)) - 1, job)
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


def _start(processes: list[_Process], count: int, job: Job) -> None:
    """Start processes; after an error the list has those that are running."""
    data = _pickled(job) if count > 0 else b""
    for number in range(1, count + 1):
        try:
            processes.append(_Process(data))
        except OSError as error:
            raise VitzooError(
                f"cannot start worker process {number} of {count}: {error}; pass fewer --workers "
                "(workers=), or raise the limits of processes and open files (ulimit -u, ulimit -n)"
            ) from error


def _pickled(job: Job) -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file).dump(job)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise InvalidOption(
            f"the model cannot be copied to worker processes: {error}; {_IMPORTABLE}"
        ) from error
    return file.getvalue()


class _Pickler(pickle.Pickler):
    """Refuses what the caller's script defines, because another process does not import it."""

    def persistent_id(self, value: Any) -> None:
        """Check a value that is to be pickled."""
        if isinstance(value, type | FunctionType) and value.__module__ == "__main__":
            raise pickle.PicklingError(
                f"the script or notebook (__main__) defines {value.__qualname__}, and they do not "
                "import that"
            )


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


class _Process(Process):
    """An interpreter that computes parts; an unfinished part is lost at its end."""

    def __init__(self, job: bytes) -> None:
        super().__init__(MODULE, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
        self._first: tuple[bytes, ...] = (job,)

    def run(self, task: Task, note: Note) -> None:
        """Compute one part in the other process."""
        try:
            first, self._first = self._first, ()
            self.send(*first, task)
            while (answer := self.receive()) is not None:
                if isinstance(answer, Exception):
                    raise answer
                note(answer)
        except ProcessEnded as error:
            raise VitzooError(
                f"a worker process ended with {error}; run the command again to compute the "
                "missing parts, with fewer --workers if the memory was full"
            ) from error


def main() -> None:
    """Compute the parts that stdin names, until it ends; answers go to stdout."""
    receive, send = channel()
    pipeline: Pipeline | None = None
    problem: Exception | None = None
    try:
        pipeline = _started(pickle.loads(receive()))  # noqa: S301  # of the first process
    except Exception as error:  # noqa: BLE001  # the first process raises it
        fix = (
            f" in a worker process; {_IMPORTABLE}"
            if isinstance(error, ImportError | AttributeError)
            else ""
        )
        problem = _portable(error, fix)
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
    expected = job.fingerprint
    apply_settings(expected.versions["float32_matmul_precision"], expected.settings)
    found = job.predictor.fingerprint().sha256
    if found != expected.sha256:
        raise VitzooError(
            f"a worker process has another model: its fingerprint is {found}, expected "
            f"{expected.sha256}; run the command again when the file of the weights is complete"
        )
    return Pipeline(job)


def _portable(error: Exception, fix: str = "") -> Exception:
    """Return an error that another process can read; one of another library gets a fix."""
    try:
        same: Any = pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    except Exception:  # noqa: BLE001  # of another library
        return VitzooError(f"{type(error).__name__}: {error}")
    return same if isinstance(same, VitzooError | OSError) else VitzooError(repr(error) + fix)
