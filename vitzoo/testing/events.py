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
EXECUTION = (
    "exec",
    "compile",
    "import",
    "open",
    "marshal.loads",
    "pickle.find_class",
    "ctypes.dlopen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    *SOCKETS,
)
_watch = threading.local()
_installed = threading.Event()


@contextmanager
def watched(names: tuple[str, ...]) -> Iterator[list[str]]:
    """Give a list of the events with these names in this thread, each with its first argument."""
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
    if event in getattr(_watch, "names", ()):
        _watch.found.append(f"{event} {args[0] if args else ''}".strip()[:200])
