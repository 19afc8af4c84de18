"""Waiting for the answer of another machine for a limited time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

import httpx2

from vitzoo.store.locks import SLICE, check

SHOWN = 200  # characters of a server's text in a message
Result = TypeVar("Result")


def within(seconds: float, call: Callable[[], Result]) -> Result:
    """Return the result of `call`, or stop waiting for it after some seconds.

    The timeouts of a client apply to single reads only. They do not end a DNS lookup that hangs,
    or a response head that arrives byte by byte. So `call` runs in a thread, which is abandoned
    when time is up.

    Raises:
        httpx2.ReadTimeout: time is up.
        httpx2.ConnectError: the shared client was closed, or no thread can be started.
    """
    answer: Future[Result] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001  # handed to the waiting thread
            answer.set_exception(error)

    try:
        threading.Thread(target=run, name="vitzoo-request", daemon=True).start()
        until = time.monotonic() + seconds
        while not answer.done() and (left := until - time.monotonic()) > 0:
            check()
            wait([answer], min(left, SLICE))
        return answer.result(0)
    except RuntimeError as error:  # no new thread, or other users of the shared client closed it
        raise httpx2.ConnectError(str(error)) from error
    except BaseException as error:
        late = isinstance(error, TimeoutError) and not answer.done()
        answer.add_done_callback(_discard)
        if late:
            raise httpx2.ReadTimeout(f"no answer within {seconds:.1f} s") from error
        raise


def _discard(answer: Future[Any]) -> None:
    """Close a response that arrived too late."""
    if answer.exception() is None and isinstance(answer.result(), httpx2.Response):
        answer.result().close()
