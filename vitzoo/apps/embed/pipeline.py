"""From inputs to one file: images are read and decoded in threads while the network computes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from operator import add
from pathlib import Path
from typing import NamedTuple

from vitzoo.apps.embed.items import Item, Piece
from vitzoo.apps.embed.part_file import Form, write_part
from vitzoo.apps.predict.decoding import Decoded
from vitzoo.apps.predict.fingerprint import Fingerprint
from vitzoo.apps.predict.outputs import Row
from vitzoo.apps.predict.predictor import Predictor
from vitzoo.errors import ImageError

MAX_AHEAD = 2**27  # bytes of images that wait for a thread


class Work(NamedTuple):
    """Images done since the last message, and the seconds of work on them, over all threads."""

    images: int = 0
    read: float = 0.0
    decode: float = 0.0
    model: float = 0.0
    wait: float = 0.0

    def __add__(self, other: Work) -> Work:  # type: ignore[override]
        return Work(*map(add, self, other))

    @property
    def bottleneck(self) -> str:
        """The stage for which the others wait: `read`, `decode` or `model`."""
        if self.model >= self.wait:
            return "model"
        return "read" if self.read > self.decode else "decode"


@dataclass(frozen=True)
class Job:
    """What is the same for all parts; it can be pickled.

    Args:
        predictor: the model.
        fingerprint: of the predictor, with the settings of torch.
        form: columns and metadata of the files.
        read_ahead: number of images that are read and decoded ahead of the network.
        threads: number of threads that read and decode.
    """

    predictor: Predictor
    fingerprint: Fingerprint
    form: Form
    read_ahead: int
    threads: int


@dataclass(frozen=True)
class Task:
    """One part: where its file goes, and its inputs."""

    path: Path
    pieces: Sequence[Piece]


class Pipeline:
    """Computes parts one after the other."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._chunk = job.predictor.chunk
        self._pool = ThreadPoolExecutor(job.threads, "vitzoo-decode")

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)

    def write(self, task: Task, note: Callable[[Work], object]) -> None:
        """Compute one part and write its file; `note` is called after each forward pass."""
        rows = self._rows(task.pieces, note)
        write_part(task.path, self.job.form, sum(map(len, task.pieces)), rows)

    def _rows(
        self, pieces: Sequence[Piece], note: Callable[[Work], object]
    ) -> Iterator[tuple[str, Row]]:
        keys = deque[str]()
        work = Work()  # since the last note

        def groups() -> Iterator[list[Decoded]]:
            """Yield the images of one forward pass each."""
            nonlocal work
            images: list[Decoded] = []
            ready, before = 0, time.perf_counter()
            for key, image, spent in self._decoded(i for piece in pieces for i in piece.items()):
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
    start = time.perf_counter()
    try:
        data = item.load()
    except ImageError as error:
        return Decoded(None, str(error)), Work(read=time.perf_counter() - start)
    middle = time.perf_counter()
    image = predictor.decode(data)
    return image, Work(read=middle - start, decode=time.perf_counter() - middle)
