"""Ending downloads that run in other threads; torch-free.

Ctrl-C interrupts the main thread only. The other threads look at an event, at least every `SLICE`
seconds while they wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

SLICE = 0.2  # seconds
_event: ContextVar[threading.Event | None] = ContextVar("event", default=None)


class Stopped(BaseException):
    """The download was told to end; its partial file is kept."""


@contextmanager
def ended_by(event: threading.Event) -> Iterator[None]:
    """Let `check` and `pause` raise `Stopped` in this thread once the event is set."""
    token = _event.set(event)
    try:
        yield
    finally:
        _event.reset(token)


def check() -> None:
    """Raise `Stopped` if this thread was told to end."""
    event = _event.get()
    if event is not None and event.is_set():
        raise Stopped


def pause(seconds: float) -> None:
    """Sleep; raise `Stopped` as soon as this thread is told to end."""
    event = _event.get()
    if event is None:
        time.sleep(seconds)
    elif event.wait(seconds):
        raise Stopped
