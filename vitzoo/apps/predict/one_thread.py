"""Computing with one intra-op thread, whatever the other threads of the process do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


class _Count:
    """The threads that compute with one intra-op thread, and torch's number before the first."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.running = 0
        self.before = 1

    def enter(self) -> None:
        with self.lock:
            before = torch.get_num_threads()
            if not self.running:
                self.before = before
            self.running += 1
            torch.set_num_threads(1)
            torch.set_flush_denormal(False)  # this thread's own setting, else that of its maker

    def leave(self) -> None:
        with self.lock:
            self.running -= 1
            if not self.running:
                torch.set_num_threads(self.before)


_COUNT = _Count()


class OneThread(ThreadPoolExecutor):
    """Runs functions in a thread of its own, which has no autocast and no default device."""

    def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self.submit(function, *args, **kwargs).result()


@contextmanager
def one_thread() -> Iterator[OneThread]:
    """Give a function that runs others with one intra-op thread.

    torch keeps its number of threads once for each thread, and once for the process. The functions
    run in a new thread, so that the caller's number stays. The process's number is 1 while at least
    one such thread exists, and then as before.
    """
    with OneThread(1, "vitzoo-compute", _COUNT.enter) as run:
        run(lambda: None)  # starts the thread
        try:
            yield run
        finally:
            run(_COUNT.leave)
