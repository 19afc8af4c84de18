"""From inputs to files on a GPU: one stream of images over all parts; a thread writes the files."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from operator import attrgetter
from queue import Full, Queue
from typing import Self

from vitzoo.apps.embed.decode_processes import DecodeProcesses
from vitzoo.apps.embed.items import Item
from vitzoo.apps.embed.part_file import Form, claimed, write_part
from vitzoo.apps.embed.pipeline import Job, Note, Task
from vitzoo.apps.embed.work import Work, timed
from vitzoo.apps.predict.decoding import Decoded
from vitzoo.apps.predict.outputs import Row
from vitzoo.apps.predict.stream import Stream, one_by_one, staging

WAITING = 2  # chunks of rows that wait for the thread that writes
PATIENCE = 0.2  # seconds after which it is asked whether it failed
Rows = list[tuple[str, Row]]


class StreamPipeline:
    """Computes parts; the images of a part are decoded while an earlier one is computed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._staged = staging(job.predictor)
        self._spent = deque[Work]()  # of images, since the last note

    def run(self, tasks: Iterable[Task], note: Note) -> None:
        """Compute parts and write their files; `note` is called after each forward pass.

        A part that another process writes now, or has written, is left out.
        """
        job, keys = self.job, deque[str]()
        resize = job.predictor.transform.resize
        with ExitStack() as held:
            decode = one_by_one(self._decode)
            if job.processes and resize.of_8_bits:
                decode = held.enter_context(DecodeProcesses(resize, self._spent))
            writer = held.enter_context(Writer(job.form))
            stream = Stream(job.predictor, decode, threads=job.threads, ahead=job.read_ahead)
            held.enter_context(stream)
            began, waited = time.perf_counter(), 0.0
            for rows in stream.rows(self._items(tasks, keys, writer), attrgetter("size")):
                wait, waited = stream.waited - waited, stream.waited
                work = Work(len(rows), wait=wait, model=time.perf_counter() - began - wait)
                while self._spent:
                    work += self._spent.popleft()
                note(work)
                writer.put([(keys.popleft(), row) for row in rows])
                began = time.perf_counter()

    def _items(self, tasks: Iterable[Task], keys: deque[str], writer: Writer) -> Iterator[Item]:
        """Yield the images of the parts that no other process writes."""
        for task in tasks:
            if writer.begin(task):
                for item in task.items():
                    keys.append(item.key)
                    yield item
                    del item  # its bytes may be large

    def _decode(self, item: Item) -> Decoded:
        image, work = timed(item, self._staged)
        self._spent.append(work)
        return image


class Writer:
    """Writes the rows of parts in a thread of its own, in the order in which the parts began.

    Args:
        form: of all parts.
    """

    def __init__(self, form: Form) -> None:
        self._form = form
        self._parts: Queue[tuple[Task, ExitStack] | None] = Queue()
        self._rows: Queue[Rows | None] = Queue(WAITING)
        self._pool = ThreadPoolExecutor(1, "vitzoo-write")
        self._done = self._pool.submit(self._write)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait until all parts are written; after an error, those of which all rows are here."""
        self._parts.put(None)
        try:
            if kind is None:
                self._done.result()
            else:
                with suppress(Exception):  # the error of the block is raised
                    self.put(None)
        finally:
            self._pool.shutdown()
            while not self._parts.empty():
                if part := self._parts.get():
                    part[1].close()

    def begin(self, task: Task) -> bool:
        """Take a part; return False if another process writes it now, or has written it."""
        with ExitStack() as held:
            if not held.enter_context(claimed(task.path, task.count)):
                return False
            self._parts.put((task, held.pop_all()))
        return True

    def put(self, rows: Rows | None) -> None:
        """Pass on the next rows, None after the last; wait while `WAITING` others are not written.

        Raises:
            VitzooError: a part could not be written.
        """
        while True:
            if self._done.done():
                self._done.result()
            with suppress(Full):
                self._rows.put(rows, timeout=PATIENCE)
                return

    def _write(self) -> None:
        rows = itertools.chain.from_iterable(iter(self._rows.get, None))
        with suppress(_Ended):
            while part := self._parts.get():
                task, held = part
                with held:
                    write_part(task.path, self._form, _first(rows, task.count))


class _Ended(Exception):
    """There are no more rows, because the computation failed."""


def _first(rows: Iterator[tuple[str, Row]], count: int) -> Iterator[tuple[str, Row]]:
    for _ in range(count):
        if (row := next(rows, None)) is None:
            raise _Ended
        yield row
