"""Progress on stderr: bars on a terminal, and otherwise lines for downloads alone; torch-free."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

from vitzoo.errors import printable
from vitzoo.text import UNWRITABLE, is_terminal

AFTER = 2.0  # seconds of work without a bar
REFRESHED = 4  # times a second, which takes 0.5 % of a core: `bench` measures beside it
UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
Note = Callable[[int, int], Any]
Show = Callable[[str], AbstractContextManager[Note | None]]
"""Shows the download of a name while a block runs."""


@contextmanager
def progress(name: str) -> Iterator[Note | None]:
    """Yield a function of (bytes so far, bytes in all) that shows a download.

    Nothing is shown before the first bytes arrive, or after stderr could not be written.
    """
    with each_progress() as show, show(name) as note:
        yield note


@contextmanager
def each_progress(*, silent: bool = False) -> Iterator[Show]:
    """Yield what `progress` is for one download, for several at the same time: a bar for each.

    If `silent` is true, nothing is shown.
    """
    if silent:
        yield lambda _: nullcontext()
    elif _has_bars():
        yield lambda name: bar(name, after=0, in_bytes=True)
    else:
        yield lambda name: nullcontext(_quiet(_lines(name)))


@contextmanager
def bar(
    name: str, *, after: float | None = None, in_bytes: bool = False
) -> Iterator[Callable[..., None]]:
    """Show a bar on a terminal while a block runs.

    Yield a function of (done, total) and perhaps a text, which moves the bar. Before its first
    call, the bar shows only that the work goes on. Several threads may call it.

    Args:
        name: before the bar.
        after: seconds until the bar appears, two if None; with 0, the first move shows it.
        in_bytes: whether bytes are counted.
    """
    if not _has_bars():
        yield lambda *_: None
        return
    after = AFTER if after is None else after
    one = _Bar(name, in_bytes, waits=after > 0)
    timer = threading.Timer(after, one.begin)
    timer.daemon = True
    if after:
        timer.start()
    try:
        yield one.move
    finally:
        timer.cancel()
        one.end()


def _has_bars() -> bool:
    return is_terminal(sys.stderr) and os.environ.get("TERM") not in ("dumb", "unknown")


def _quiet(show: Note) -> Note:
    works = True

    def note(done: int, total: int) -> None:
        nonlocal works
        if works:
            try:
                show(done, total)
            except UNWRITABLE:
                works = False

    return note


class _Display:
    """The bars of this process, below each other; rich is imported when there is one to show."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._shown: Any = None

    def add(self, name: str) -> Any:
        """Show a new bar, and return its number."""
        if self._shown is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            text = partial(TextColumn, markup=False)
            columns = (
                text("{task.description}"),
                BarColumn(),
                text("{task.fields[numbers]}"),
                TimeRemainingColumn(),
            )
            console = Console(stderr=True)
            shown = Progress(
                *columns, console=console, transient=True, refresh_per_second=REFRESHED
            )
            shown.start()
            self._shown = shown
        return self._shown.add_task(printable(name), total=None, numbers="")

    def update(self, number: Any, done: int, total: int, text: str) -> None:
        """Move a bar."""
        self._shown.update(number, completed=done, total=total, numbers=text)

    def remove(self, number: Any) -> None:
        """Remove a bar, and with the last one the display."""
        self._shown.remove_task(number)
        if not self._shown.tasks:
            shown, self._shown = self._shown, None
            shown.stop()


_DISPLAY = _Display()


class _Bar:
    """One bar of the display.

    Args:
        name: before the bar.
        in_bytes: whether bytes are counted.
        waits: whether only `begin` shows it, and not the first `move`.
    """

    def __init__(self, name: str, in_bytes: bool, *, waits: bool) -> None:
        self._name, self._in_bytes, self._waits = name, in_bytes, waits
        self._began = time.monotonic()
        self._number: Any = None
        self._over = False

    def begin(self) -> None:
        """Show the bar, if its block has not ended."""
        with _DISPLAY.lock, suppress(*UNWRITABLE):
            if self._number is None and not self._over:
                self._number = _DISPLAY.add(self._name)

    def move(self, done: int, total: int, text: str = "") -> None:
        """Show that a part is done; a text may follow the numbers."""
        if not self._waits:
            self.begin()
        with _DISPLAY.lock, suppress(*UNWRITABLE):
            if self._number is not None:
                _DISPLAY.update(self._number, done, total, self._numbers(done, total) + text)

    def end(self) -> None:
        """Remove the bar."""
        with _DISPLAY.lock, suppress(*UNWRITABLE):
            self._over = True
            if self._number is not None:
                _DISPLAY.remove(self._number)

    def _numbers(self, done: int, total: int) -> str:
        rate = done / max(time.monotonic() - self._began, 1e-3)
        if not self._in_bytes:
            return f"{done:,}/{total:,}" + (f" {rate:,.0f}/s" if rate >= 1 else "")
        size, unit = next((u for u in UNITS if total >= u[0]), (1, "B"))
        return f"{done / size:.1f}/{total / size:.1f} {unit} {rate / 10**6:,.1f} MB/s"


def _lines(name: str) -> Note:
    shown = -1

    def note(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth > shown:
            shown = tenth
            sys.stderr.write(f"{name}: {10 * tenth} % of {total} bytes\n")
            sys.stderr.flush()

    return note
