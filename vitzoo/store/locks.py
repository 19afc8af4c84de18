"""Waits that can be ended: of downloads in other threads, and for lock files; torch-free.

Ctrl-C interrupts the main thread only. The other threads look at an event, at least every `SLICE`
seconds while they wait.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from filelock import FileLock, Timeout

from vitzoo.log import log

NOTICE = 2.0  # seconds of waiting after which a line says so
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


@contextmanager
def locked(path: Path, what: object, patience: float) -> Iterator[None]:
    """Hold a lock file; the lock of a killed process is free.

    A wait of more than `NOTICE` seconds is logged once.

    Args:
        path: the lock file, in a folder that exists.
        what: it protects, for the message.
        patience: seconds to wait for another process.

    Raises:
        filelock.Timeout: another process held the lock for all of this time.
        OSError: the lock file cannot be written.
        Stopped: the thread was told to end while it waited.
    """
    # Another thread may release it.
    lock = FileLock(path, mode=0o644, thread_local=False)
    begin, waiting = time.monotonic(), False
    while not lock.is_locked:
        check()
        waited = time.monotonic() - begin
        if waited >= NOTICE and not waiting:
            waiting = True
            log.warning("%s: waiting for another process, which has locked %s", str(what), path)
        try:
            lock.acquire(timeout=min(SLICE, max(0.0, patience - waited)))
        except Timeout:
            if time.monotonic() - begin >= patience:
                raise
        except NotImplementedError as error:  # of older versions of filelock
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), str(path)) from error
    try:
        yield
    finally:
        with suppress(OSError):
            lock.release()
