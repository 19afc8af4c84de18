"""How a download shows on stderr: a bar on a terminal, else a line for every tenth; torch-free."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Note = Callable[[int, int], Any]


@contextmanager
def progress(name: str, *, silent: bool = False) -> Iterator[Note | None]:
    """Yield a function of (bytes so far, bytes in all) that shows a download.

    Nothing shows before the first bytes come.

    Args:
        name: of what is downloaded.
        silent: show nothing.
    """
    if silent:
        yield None
    elif sys.stderr.isatty():
        with _Bar(name) as bar:
            yield bar.note
    else:
        yield _lines(name)


class _Bar:
    """A bar of rich, which is imported when there is something to show."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bars: Any = None
        self.task: Any = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.bars is not None:
            self.bars.stop()

    def note(self, done: int, total: int) -> None:
        """Move the bar."""
        if self.bars is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

            columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self.bars = Progress(*columns, console=Console(stderr=True), transient=True)
            self.bars.start()
            self.task = self.bars.add_task(self.name, total=total)
        self.bars.update(self.task, completed=done, total=total)


def _lines(name: str) -> Note:
    shown = -1

    def note(done: int, total: int) -> None:
        nonlocal shown
        tenth = 10 * done // max(total, 1)
        if tenth > shown:
            shown = tenth
            print(f"{name}: {10 * tenth} % of {total} bytes", file=sys.stderr)  # noqa: T201  # stderr is where progress goes

    return note
