"""Decoding in other processes, whose Python code does not slow the thread of the network."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
from filelock import FileLock

from vitzoo.apps.embed.items import Item
from vitzoo.apps.embed.processes import Process, ProcessEnded, channel, portable
from vitzoo.apps.embed.work import Work, timed
from vitzoo.apps.predict.decoding import IN_BUFFER, Decoded, decoded
from vitzoo.errors import VitzooError
from vitzoo.images import decode as decode_module
from vitzoo.images.decode import UNNAMED_BYTES
from vitzoo.images.resize import Resize

MODULE = "vitzoo.apps.embed.decode_processes"
Outline = tuple[str, int, int, str, tuple[int, ...] | None]
"""Error, width, height and sha256 of an image, and the shape of its pixels."""


class DecodeProcesses:
    """Decodes images in one process for each thread that calls it.

    Args:
        resize: reads pixels of 8 bits.
        spent: gets the work on each list of images.
    """

    def __init__(self, resize: Resize, spent: deque[Work]) -> None:
        self._resize, self._spent = resize, spent
        self._thread = threading.local()
        self._every: list[Process] = []
        self._folder = tempfile.TemporaryDirectory(prefix="vitzoo-")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._every:
            process.end()
        self._folder.cleanup()

    def __call__(self, items: Sequence[Item], views: np.ndarray | None) -> list[Decoded]:
        """Decode images as a task of `Stream`.

        Raises:
            VitzooError: a process cannot be started, or was killed.
        """
        try:
            process = self._process()
            process.send([item.load for item in items])
            answer = process.receive()
            if isinstance(answer, Exception):
                raise answer
            work, outlines = answer
            self._spent.append(work)
            if views is not None:
                return _in_buffer(process, outlines, views)
            return [_apart(process, *outline) for outline in outlines]
        except ProcessEnded as error:
            raise VitzooError(
                f"a process that decodes images ended with {error}; run the command again to "
                "compute the missing parts, on fewer CPU cores (taskset) if the memory was full"
            ) from error

    def _process(self) -> Process:
        """Return the process of this thread; start it at its first call."""
        found: Process | None = getattr(self._thread, "process", None)
        if found is None:
            try:
                found = Process(MODULE, {"OMP_NUM_THREADS": "1"})
            except OSError as error:
                raise VitzooError(
                    f"cannot start a process that decodes images: {error}; raise the limits of "
                    "processes and open files (ulimit -u, ulimit -n)"
                ) from error
            self._thread.process = found
            self._every.append(found)
            found.send(self._resize, str(Path(self._folder.name) / "large.lock"))
        return found


def _in_buffer(process: Process, outlines: Sequence[Outline], views: np.ndarray) -> list[Decoded]:
    """Read the pixels of images into their places; those of neighbours at once."""
    stop = 0
    for good, some in itertools.groupby(outlines, lambda one: one[-1] is not None):
        start, stop = stop, stop + len(list(some))
        if good:
            process.read_into(views[start:stop].data.cast("B"))
    kept = (None if one[-1] is None else IN_BUFFER for one in outlines)
    return [Decoded(tensor, *one[:-1]) for tensor, one in zip(kept, outlines, strict=True)]


def _apart(process: Process, *outline: Any) -> Decoded:
    """Read the pixels of an image into memory of its own."""
    *values, shape = outline
    if shape is None:
        return Decoded(None, *values)
    pixels = np.empty(shape, np.uint8)
    process.read_into(pixels.data.cast("B"))
    return Decoded(pixels, *values)


def main() -> None:
    """Decode the images that stdin names; answers and pixels go to stdout."""
    receive, send = channel()
    with suppress(EOFError):
        resize, lock = receive(), receive()
        # One large image is in memory at a time, in all of these processes together.
        decode_module.DECODING_LARGE = FileLock(lock)  # type: ignore[assignment]  # as an RLock
        while True:
            loads = receive()
            try:
                send(*_answer(loads, resize))
            except Exception as error:  # noqa: BLE001  # the first process raises it
                send(portable(error))


def _answer(loads: list[Callable[[], bytes]], resize: Resize) -> Iterator[Any]:
    """Return the work on images and their outlines, and then the pixels of each."""

    def decode(data: bytes) -> Decoded:
        return decoded(data, UNNAMED_BYTES, resize, resize.resized)  # type: ignore[arg-type]

    outlines, pixels, work = list[Outline](), [], Work()
    loads.reverse()
    while loads:  # the file of one of them is in memory when it is decoded
        item = Item("", loads.pop())
        image, spent = timed(item, decode)
        shape = None if image.tensor is None else image.tensor.shape
        pixels += [] if image.tensor is None else [np.ascontiguousarray(image.tensor).data]
        outlines.append((image.error, image.width, image.height, image.sha256, shape))
        work += spent
    yield work, outlines
    yield from pixels
