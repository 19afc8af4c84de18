"""Running the code of plugins: its output goes to stderr, its errors get a line."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitzoo.errors import VitzooError


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
HERE = f"{Path(__file__).parents[1]}/"  # vitzoo's own lines are not to blame
MAX_TEXT = 1000  # characters of what somebody's code says about its failure


def reason_of(error: BaseException, package: str) -> str:
    """Say what went wrong, and where: in the package's own line, if there is one.

    Args:
        error: what the code raised.
        package: top-level name of the package that is to blame.
    """
    if isinstance(error, VitzooError):
        return str(error)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    trace, own, deepest = error.__traceback__, "", ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(("<frozen ", HERE)) and file != importlib.__file__:
            deepest = f" ({file}:{trace.tb_lineno})"
            if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] == package:
                own = deepest
        trace = trace.tb_next
    return f"{type(error).__name__}: {text_of(error)}{own or deepest}"


def text_of(value: object) -> str:
    """Write an object, whatever its own code does, shortened and printable."""
    try:
        text = " ".join(str(value).split())
    except Exception:  # noqa: BLE001
        return f"an unprintable {type(value).__name__}"
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."


def raised_at(error: BaseException) -> str:
    """Return `file:line` of the innermost code outside vitzoo that an error came through."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        ours = Path(file).is_relative_to(Path(__file__).parents[1])
        if not ours and not file.startswith("<"):
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
