"""Processes that compute parts: this one, and others that it starts."""

from __future__ import annotations

import io
import itertools
import pickle
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from types import FunctionType
from typing import Any

from vitzoo.apps.embed.pipeline import Job, Note, Pipeline, Task
from vitzoo.apps.embed.processes import Process, ProcessEnded, channel, portable
from vitzoo.apps.embed.stream_pipeline import StreamPipeline
from vitzoo.apps.embed.work import Work
from vitzoo.apps.predict.arithmetic import apply_settings
from vitzoo.errors import InvalidOption, VitzooError

MODULE = "vitzoo.apps.embed.workers"
NEXT, DONE = "next", "done"  # answers of a process: it takes another part; it has ended
_IMPORTABLE = (
    "define the classes of the model at the top level of a module that is installed or in a folder "
    "of PYTHONPATH, or pass workers=1 (--workers 1)"
)


def compute(job: Job, tasks: Sequence[Task], workers: int, note: Note) -> None:
    """Compute parts in `workers` processes, of which this is one; `note` is told of all work.

    Raises:
        InvalidOption: other processes cannot have the model.
        VitzooError: a process failed or was killed; finished parts stay.
        BaseException: what `note` raises.
    """
    left, telling = deque(tasks), threading.Lock()
    processes: list[Process] = []
    pool = ThreadPoolExecutor(workers, "vitzoo-worker")

    def tell(work: Work) -> None:
        with telling:
            note(work)

    count = min(workers, len(tasks)) - 1
    data = _pickled(job) if count > 0 else b""
    try:
        # after an error, the list has those that are running
        processes.extend(_started(number, count) for number in range(1, count + 1))
        others = [pool.submit(_attend, one, data, _taken(left), tell) for one in processes]
        own = itertools.takewhile(lambda _: not any(map(_failed, others)), _taken(left))
        pipeline_of(job).run(own, tell)
        for other in wait(others, return_when=FIRST_EXCEPTION).done:
            other.result()
    finally:
        left.clear()
        for process in processes:
            process.end()
        pool.shutdown()


def _failed(process: Future[None]) -> bool:
    return process.done() and process.exception() is not None


def pipeline_of(job: Job) -> Pipeline | StreamPipeline:
    """Return what computes parts in this process."""
    return StreamPipeline(job) if job.predictor.asynchronous else Pipeline(job)


def _taken(left: deque[Task]) -> Iterator[Task]:
    """Yield tasks and take them from those that are left; several threads may do so."""
    while left:
        with suppress(IndexError):  # another thread took the last one
            yield left.popleft()


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


def _started(number: int, count: int) -> Process:
    """Start a process, whose unfinished part is lost at its end."""
    try:
        return Process(MODULE, {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    except OSError as error:
        raise VitzooError(
            f"cannot start worker process {number} of {count}: {error}; pass fewer --workers "
            "(workers=), or raise the limits of processes and open files (ulimit -u, ulimit -n)"
        ) from error


def _attend(process: Process, job: bytes, tasks: Iterator[Task], note: Note) -> None:
    """Compute parts in another process, which asks for each of them."""
    first = next(tasks, None)
    if first is None:
        return
    try:
        process.send(job, first)
        while (answer := process.receive()) != DONE:
            if isinstance(answer, Exception):
                raise answer
            if answer == NEXT:
                process.send(next(tasks, None))
            else:
                note(answer)
    except ProcessEnded as error:
        raise VitzooError(
            f"a worker process ended with {error}; run the command again to compute the "
            "missing parts, with fewer --workers if the memory was full"
        ) from error


def main() -> None:
    """Compute the parts that stdin names; answers go to stdout."""
    receive, send = channel()

    def tasks(task: Task | None) -> Iterator[Task]:
        while task is not None:
            yield task
            send(NEXT)
            task = receive()

    with suppress(EOFError):
        data, first = receive(), receive()
        try:
            pipeline = _pipeline(data)
        except Exception as error:  # noqa: BLE001  # the first process raises it
            send(portable(error, f" in a worker process; {_IMPORTABLE}"))
            return
        try:
            pipeline.run(tasks(first), send)
        except Exception as error:  # noqa: BLE001  # likewise; if it has ended, this ends, too
            send(portable(error))
            return
        send(DONE)


def _pipeline(data: bytes) -> Pipeline | StreamPipeline:
    job: Job = pickle.loads(data)  # noqa: S301  # of the first process
    expected = job.fingerprint
    precision, device = expected.versions["float32_matmul_precision"], job.predictor.device
    apply_settings(precision, expected.settings, device)
    found = job.predictor.fingerprint()
    if found.sha256 != expected.sha256:
        here, there = found.to_data(), expected.to_data()
        keys = sorted(k for k in {*here, *there} if here.get(k) != there.get(k))
        raise VitzooError(
            f"a worker process has another fingerprint: {', '.join(keys)} differ; run the command "
            "again when the file of the weights is complete, or pass workers=1 (--workers 1)"
        )
    return pipeline_of(job)
