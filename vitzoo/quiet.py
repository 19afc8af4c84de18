"""Keeping what plugins print off stdout, which is data."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any


class _Stdout:
    """Stands in for stdout: what a thread writes while it runs a plugin's code goes to stderr."""

    def __init__(self, stream: Any, inside: threading.local) -> None:
        self.__dict__.update(stream=stream, inside=inside)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if getattr(self.inside, "depth", 0) else self.stream, name)


class _Diversion:
    """Counts who runs a plugin's code, so that the last one to leave puts stdout back."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = threading.local()
        self.users = 0
        self.stream: Any = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            if not self.users:
                self.stream, sys.stdout = sys.stdout, _Stdout(sys.stdout, self.inside)
            self.users += 1
        self.inside.depth = getattr(self.inside, "depth", 0) + 1
        try:
            yield
        finally:
            self.inside.depth -= 1
            with self.lock:
                self.users -= 1
                if not self.users:
                    sys.stdout = self.stream  # whatever the plugin has put there


no_output = _Diversion()
