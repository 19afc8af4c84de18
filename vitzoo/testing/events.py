"""Recording of sockets that code opens, and of code and files that it runs or opens.

Python reports such events to audit hooks. An audit hook cannot be removed, so one is installed,
which does nothing unless a thread is being watched.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SOCKETS = ("socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.bind")
CODE = ("exec", "compile", "import", "marshal.", "pickle.", "ctypes.")
EXECUTION = (*CODE, "open", "os.", "subprocess.", *SOCKETS)
_watch = threading.local()
_installed = threading.Event()


@contextmanager
def watched(names: tuple[str, ...]) -> Iterator[list[str]]:
    """Give a list of the events in this thread whose names begin with one of these.

    Each event has its first argument.
    """
    if not _installed.is_set():
        _installed.set()
        sys.addaudithook(_note)
    found: list[str] = []
    _watch.names, _watch.found = names, found
    try:
        yield found
    finally:
        _watch.names = ()


def _note(event: str, args: tuple[Any, ...]) -> None:
    if event.startswith(getattr(_watch, "names", ())):
        _watch.found.append(f"{event} {args[0] if args else ''}".strip()[:200])
