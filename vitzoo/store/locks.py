"""Lock files that keep processes apart; torch-free."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from vitzoo.log import log
from vitzoo.store.stop import SLICE, check

NOTICE = 2.0  # seconds of waiting after which a line says so


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
    lock, begin, waiting = FileLock(path, mode=0o644), time.monotonic(), False
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
    try:
        yield
    finally:
        with suppress(OSError):
            lock.release()
