"""Images to rows on a GPU, which computes while threads decode the images of the next chunks.

Threads decode the images of a chunk into one buffer. Another thread starts the copy of the buffer,
the network and the copies of its results. The caller waits for the results.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from vitzoo.apps.predict.cores import cores_of_process
from vitzoo.apps.predict.decoding import IN_BUFFER, Decoded, decoded
from vitzoo.apps.predict.device_copies import DeviceCopies
from vitzoo.apps.predict.grids import held_of, in_order
from vitzoo.apps.predict.outputs import Row
from vitzoo.images.decode import UNNAMED_BYTES

if TYPE_CHECKING:
    from vitzoo.apps.predict.predictor import Predictor

TASK = 16  # images that a thread decodes one after the other
TASK_BYTES = 2**22  # of their pixels, about
FILE_BYTES = 2**24  # of their files, if these are in memory already
MAX_AHEAD = 2**27  # bytes of files that wait for a thread
MOST_THREADS = 64  # which may each have a process that decodes
AHEAD = 2  # chunks that are decoded ahead of the network
STARTED = 2  # chunks on the device
T = TypeVar("T")
Decode = Callable[[list[T], np.ndarray | None], list[Decoded]]
"""Decodes some images; with an array (n, ...), their pixels are written into it."""


@dataclass(frozen=True)
class Chunk:
    """Decoded images in a buffer, from which the device copies.

    Args:
        buffer: (n, ...) as `Normalise.stage` returns them.
        images: in order, also those with an error.
        places: of the images without an error in the buffer.
    """

    buffer: Tensor
    images: Sequence[Decoded]
    places: Sequence[int]


@dataclass(frozen=True)
class Started:
    """A chunk that the device computes.

    Args:
        images, places: as in `Chunk`.
        padding: places of copies of the first image.
        results: (n, ...) each.
        wait: returns when `results` are there.
    """

    images: Sequence[Decoded]
    places: Sequence[int] = ()
    padding: Sequence[int] = ()
    results: Mapping[str, Tensor] = field(default_factory=dict)
    wait: Callable[[], object] = tuple


class Stream(Generic[T]):
    """Maps images to rows; it has threads of its own until it is closed.

    Several threads may call `rows`.

    Args:
        predictor: on a device that computes while this process does something else.
        decode: prepares images as `staging`; it raises no error about an image.
        threads: number of threads that decode, at most 64. None: one per core of this process.
        ahead: number of images that are decoded ahead of the network, at least two chunks.

    Attributes:
        waited: seconds in which the network had no decoded images, over all calls.
    """

    def __init__(
        self,
        predictor: Predictor,
        decode: Decode[T],
        *,
        threads: int | None = None,
        ahead: int = 0,
    ) -> None:
        self.waited = 0.0
        self._predictor, self._decode = predictor, decode
        self._computation = predictor.computation
        self._normalise, self._size = predictor.computation.normalise, predictor.chunk
        threads = min(threads or cores_of_process(), MOST_THREADS)
        fit = TASK_BYTES // math.prod(predictor.largest_input)
        self._task = max(1, min(TASK, self._size, fit))
        ahead = max(ahead, 2 * threads * self._task)
        self._ahead = max(AHEAD, -(-ahead // self._size))
        self._copies = DeviceCopies(predictor.device)
        self._pool = ThreadPoolExecutor(threads, "vitzoo-decode")
        # This thread has no autocast and no default device, which the caller's thread may have.
        start = self._copies.enter_thread
        self._compute = ThreadPoolExecutor(1, "vitzoo-compute", initializer=start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._compute.shutdown(cancel_futures=True)

    def rows(
        self, items: Iterable[T], size: Callable[[T], int] | None = None
    ) -> Iterator[list[Row]]:
        """Yield the rows of images in their order.

        Args:
            items: what `decode` takes.
            size: returns how many bytes of an item are in memory until it is decoded.

        Raises:
            InvalidOption: the results depend on the position in a chunk, or a chunk does not fit in
                the memory.
        """
        chunks = self._decoded(items, size)
        if self._predictor.native_size is None:
            return self._computed(itertools.starmap(_chunk, chunks))
        images = (image for _, found in chunks for image in found)
        held = held_of(self._predictor.largest_input, self._size)
        return in_order(images, self._size, held, self._stacked)

    def _computed(self, chunks: Iterable[Chunk]) -> Iterator[list[Row]]:
        """Yield the rows of each chunk; the next chunk is started before its results are read."""
        started: deque[Future[Started]] = deque()
        for chunk in chunks:
            started.append(self._compute.submit(self._start, chunk))
            del chunk
            if len(started) == STARTED:
                yield self._finish(started.popleft().result())
        while started:
            yield self._finish(started.popleft().result())

    def _stacked(self, groups: Iterable[Sequence[Decoded]]) -> Iterator[list[Row]]:
        """Yield the rows of each group of images of one shape, which are not in a buffer."""

        def chunk(images: Sequence[Decoded]) -> Chunk:
            tensors = [image.tensor for image in images if image.tensor is not None]
            shape = tensors[0].shape if tensors else ()
            buffer = self._copies.buffer((self._size, *shape), self._normalise.dtype)
            pixels = buffer.numpy()
            for place, tensor in enumerate(tensors):
                pixels[place] = tensor
            return Chunk(buffer, images, range(len(tensors)))

        return self._computed(map(chunk, groups))

    def _decoded(
        self, items: Iterable[T], size: Callable[[T], int] | None
    ) -> Iterator[tuple[Tensor | None, list[Decoded]]]:
        """Yield as many images as a chunk has, and the buffer with their pixels."""
        waiting: deque[tuple[Tensor | None, list[Future[list[Decoded]]]]] = deque()
        for one in self._submitted(items, size):
            waiting.append(one)
            if len(waiting) > self._ahead:
                yield self._result(*waiting.popleft())
        while waiting:
            yield self._result(*waiting.popleft())

    def _result(
        self, buffer: Tensor | None, futures: Sequence[Future[list[Decoded]]]
    ) -> tuple[Tensor | None, list[Decoded]]:
        before = time.perf_counter()
        images = [image for future in futures for image in future.result()]
        self.waited += time.perf_counter() - before
        return buffer, images

    def _submitted(
        self, items: Iterable[T], size: Callable[[T], int] | None
    ) -> Iterator[tuple[Tensor | None, list[Future[list[Decoded]]]]]:
        """Start the decoding of as many images as a chunk has; yield its buffer and the tasks."""
        source = iter(items)
        undecoded: deque[tuple[int, Future[list[Decoded]]]] = deque()
        held = 0
        while True:
            before = time.perf_counter()
            buffer, views, futures, count = None, None, list[Future[list[Decoded]]](), 0
            for given, task in _tasks(itertools.islice(source, self._size), self._task, size):
                if not futures and self._predictor.native_size is None:
                    shape = self._size, *self._normalise.shape
                    buffer = self._copies.buffer(shape, self._normalise.dtype)
                    views = buffer.numpy()
                part = None if views is None else views[count : count + len(task)]
                count += len(task)
                futures.append(self._pool.submit(self._decode, task, part))
                del task
                undecoded.append((given, futures[-1]))
                held += given
                while undecoded and (held > MAX_AHEAD or undecoded[0][1].done()):
                    done, future = undecoded.popleft()
                    future.exception()  # who takes the result raises it
                    held -= done
            self.waited += time.perf_counter() - before
            if not futures:
                return
            yield buffer, futures

    @torch.inference_mode()
    def _start(self, chunk: Chunk) -> Started:
        """Start the computation of one chunk, and the copy of its results."""
        images, places = chunk.images, chunk.places
        if not places:
            return Started(images)
        used = set(places)
        padding = [place for place in range(len(chunk.buffer)) if place not in used]
        if padding:
            pixels = chunk.buffer.numpy()
            pixels[padding] = pixels[places[0]]
        inputs = self._normalise(self._copies.to_device(chunk.buffer))
        self._computation.try_grid(inputs[places[0]], self._size)
        results = self._computation.with_classes(self._computation.results(inputs))
        return Started(images, places, padding, *self._copies.from_device(results))

    def _finish(self, started: Started) -> list[Row]:
        """Return the rows of one chunk, when it is computed."""
        started.wait()
        if started.padding:  # which checks the promise
            copies = [started.places[0], *started.padding]
            self._computation.check_alike({n: x[copies] for n, x in started.results.items()}, 1)
        return self._computation.rows(started.images, started.places, started.results)


def staging(predictor: Predictor) -> Callable[..., Decoded]:
    """Return what prepares an image as `Predictor.decode`, but for what the device does."""
    resize, stage = predictor.transform.resize, predictor.computation.normalise.stage

    def staged(image: Any, name: str = UNNAMED_BYTES) -> Decoded:
        return decoded(image, name, resize, stage)

    return staged


def one_by_one(decode: Callable[[T], Decoded]) -> Decode[T]:
    """Return what decodes images for a `Stream` in its threads.

    Args:
        decode: prepares an image as `staging`.
    """

    def every(items: list[T], pixels: np.ndarray | None) -> list[Decoded]:
        found: list[Decoded] = []
        items.reverse()
        while items:  # one of them is in memory when it is decoded
            image = decode(items.pop())
            if pixels is not None and image.tensor is not None:
                pixels[len(found)] = image.tensor
                image = Decoded(IN_BUFFER, "", image.width, image.height, image.sha256)
            found.append(image)
        return found

    return every


def _chunk(buffer: Tensor, images: Sequence[Decoded]) -> Chunk:
    places = [place for place, image in enumerate(images) if image.tensor is not None]
    return Chunk(buffer, images, places)


def _tasks(
    items: Iterable[T], most: int, size: Callable[[T], int] | None
) -> Iterator[tuple[int, list[T]]]:
    """Yield what a thread decodes: at most `most` items, and how many bytes of them are held."""
    task: list[T] = []
    held = 0
    for item in items:
        task.append(item)
        held += size(item) if size else 0
        del item
        if len(task) == most or held >= FILE_BYTES:
            yield held, task
            task, held = [], 0
    if task:
        yield held, task
