"""Progress of a download on stderr: a bar on a terminal, otherwise a line per tenth; torch-free."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from vitzoo.report import UNWRITABLE, is_terminal

Note = Callable[[int, int], Any]


@contextmanager
def progress(name: str, *, silent: bool = False) -> Iterator[Note | None]:
    """Yield a function of (bytes so far, bytes in all) that shows a download.

    Nothing is shown before the first bytes arrive, or after stderr could not be written.

    Args:
        name: of the download.
        silent: yield None instead.
    """
    if silent:
        yield None
    elif is_terminal(sys.stderr):
        with _bar(name) as note:
            yield _quiet(note)
    else:
        yield _quiet(_lines(name))


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


@contextmanager
def _bar(name: str) -> Iterator[Note]:
    bars: Any = None

    def note(done: int, total: int) -> None:
        nonlocal bars
        if bars is None:  # rich is imported only if there is something to show
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
            bars.add_task(name, total=total)
            bars.start()
        bars.update(bars.task_ids[0], completed=done, total=total)

    try:
        yield note
    finally:
        if bars is not None:
            with suppress(*UNWRITABLE):
                bars.stop()


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
