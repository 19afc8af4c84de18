"""From inputs to one file: images are read and decoded in threads while the network computes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from vitzoo.apps.embed.items import Item, Piece
from vitzoo.apps.embed.part_file import Form, claimed, write_part
from vitzoo.apps.embed.work import Work, timed
from vitzoo.apps.predict.decoding import Decoded
from vitzoo.apps.predict.fingerprint import Fingerprint
from vitzoo.apps.predict.outputs import Row
from vitzoo.apps.predict.predictor import Predictor
from vitzoo.apps.predict.stream import MAX_AHEAD

Note = Callable[[Work], object]


@dataclass(frozen=True)
class Job:
    """What is the same for all parts; it can be pickled.

    Args:
        predictor: the model.
        fingerprint: of the predictor, with the settings of torch.
        form: columns and metadata of the files.
        read_ahead: number of images that are read and decoded ahead of the network.
        threads: number of threads that read and decode.
        processes: whether each thread lets a process decode.
    """

    predictor: Predictor
    fingerprint: Fingerprint
    form: Form
    read_ahead: int
    threads: int
    processes: bool = False


@dataclass(frozen=True)
class Task:
    """One part: where its file goes, and its inputs."""

    path: Path
    pieces: Sequence[Piece]

    @property
    def count(self) -> int:
        """Number of inputs."""
        return sum(map(len, self.pieces))

    def items(self) -> Iterator[Item]:
        """Yield the images in order."""
        return (item for piece in self.pieces for item in piece.items())


class Pipeline:
    """Computes parts one after the other."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._chunk = job.predictor.chunk

    def run(self, tasks: Iterable[Task], note: Note) -> None:
        """Compute parts and write their files; `note` is called after each forward pass.

        A part that another process writes now, or has written, is left out.
        """
        with ThreadPoolExecutor(self.job.threads, "vitzoo-decode") as self._pool:
            try:
                for task in tasks:
                    with claimed(task.path, task.count) as free:
                        if free:
                            rows = self._rows(task, note)
                            write_part(task.path, self.job.form, rows)
            finally:
                self._pool.shutdown(cancel_futures=True)

    def _rows(self, task: Task, note: Note) -> Iterator[tuple[str, Row]]:
        keys = deque[str]()
        work = Work()  # since the last note

        def groups() -> Iterator[list[Decoded]]:
            """Yield the images of one forward pass each."""
            nonlocal work
            images: list[Decoded] = []
            ready, before = 0, time.perf_counter()
            for key, image, spent in self._decoded(task.items()):
                keys.append(key)
                images.append(image)
                work += spent
                ready += image.tensor is not None
                if ready == self._chunk:
                    work += Work(wait=time.perf_counter() - before)
                    yield images
                    images, ready, before = [], 0, time.perf_counter()
            work += Work(wait=time.perf_counter() - before)
            if images:
                yield images

        began = time.perf_counter()
        for rows in self.job.predictor.rows_of(groups()):
            model = time.perf_counter() - began - work.wait
            note(work + Work(images=len(rows), model=model))
            yield from ((keys.popleft(), row) for row in rows)
            began, work = time.perf_counter(), Work()

    def _decoded(self, items: Iterable[Item]) -> Iterator[tuple[str, Decoded, Work]]:
        """Read and decode ahead; yield in order."""
        ahead: deque[tuple[str, int, Future[tuple[Decoded, Work]]]] = deque()
        held = 0
        for item in items:
            held += item.size
            future = self._pool.submit(_decode, self.job.predictor, item)
            ahead.append((item.key, item.size, future))
            del item
            while ahead and (len(ahead) > self.job.read_ahead or held > MAX_AHEAD):
                key, size, future = ahead.popleft()
                held -= size
                yield (key, *future.result())
        for key, _, future in ahead:
            yield (key, *future.result())


def _decode(predictor: Predictor, item: Item) -> tuple[Decoded, Work]:
    return timed(item, predictor.decode)
