"""Progress of downloads on stderr: bars on a terminal, otherwise a line per tenth; torch-free."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from vitzoo.text import UNWRITABLE, is_terminal

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
    elif is_terminal(sys.stderr):
        bars = _Bars()
        try:
            yield bars.show
        finally:
            bars.stop()
    else:
        yield lambda name: nullcontext(_quiet(_lines(name)))


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


class _Bars:
    """Bars below each other, which several threads may move."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bars: Any = None

    @contextmanager
    def show(self, name: str) -> Iterator[Note]:
        """Yield the function that moves a new bar, which is removed after the block."""
        task: Any = None

        def note(done: int, total: int) -> None:
            nonlocal task
            if task is None:
                task = self._begun().add_task(name, total=total)
            self._bars.update(task, completed=done, total=total)

        try:
            yield _quiet(note)
        finally:
            if task is not None:
                self._bars.remove_task(task)

    def _begun(self) -> Any:
        """Return the display; rich is imported only if there is something to show."""
        with self._lock:
            if self._bars is None:
                from rich.console import Console
                from rich.progress import (
                    BarColumn,
                    DownloadColumn,
                    Progress,
                    TextColumn,
                    TransferSpeedColumn,
                )

                text = TextColumn("{task.description}", markup=False)
                columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn())
                bars = Progress(*columns, console=Console(stderr=True), transient=True)
                bars.start()
                self._bars = bars
            return self._bars

    def stop(self) -> None:
        """Remove all bars."""
        if self._bars is not None:
            with suppress(*UNWRITABLE):
                self._bars.stop()


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
