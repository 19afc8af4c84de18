"""Progress: bars on a terminal and in a notebook, and otherwise lines for downloads; torch-free."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from importlib import import_module
from typing import Any

from vitzoo.display import escaped_html
from vitzoo.errors import printable
from vitzoo.text import UNWRITABLE, is_terminal

AFTER = 2.0  # seconds of work without a bar
REFRESHED = 4  # times a second, which takes 0.5 % of a core: `bench` measures beside it
UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
Note = Callable[[int, int], Any]
Show = Callable[[str], AbstractContextManager[Note | None]]
"""Shows the download of a name while a block runs."""
OnProgress = Callable[[int, int, str], object]
"""What users pass as `on_progress`: it gets what is done, of how much, and a text."""


@contextmanager
def reporting(
    name: str,
    on_progress: OnProgress | None,
    progress: bool,
    *,
    after: float | None = None,
    in_bytes: bool = False,
) -> Iterator[OnProgress]:
    """Yield the function with which a public function reports what it has done.

    It moves a bar, and calls `on_progress`, one call at a time. An error of `on_progress` ends the
    block, whatever the block catches, and is raised as it is.

    Args:
        name: before the bar; a text that is the name again is not shown.
        on_progress: what the caller of the public function passed.
        progress: whether there is a bar.
        after, in_bytes: as for `bar`.
    """
    alone = threading.Lock()
    shown = bar(name, after=after, in_bytes=in_bytes) if progress else nullcontext(_nothing)
    with shown as move:

        def report(done: int, total: int, text: str) -> None:
            move(done, total, "" if text == name else text)
            if on_progress is None:
                return
            with alone:
                try:
                    on_progress(done, total, text)
                except Exception as error:
                    raise _Raised(error) from error

        try:
            yield report
        except _Raised as raised:
            raise raised.error from raised.error.__cause__  # which it keeps


def by_steps(report: OnProgress, names: Sequence[str]) -> Callable[[str], None]:
    """Return a function that reports the beginning of a step by its name; "" is the end of all."""

    def begin(name: str) -> None:
        report(names.index(name) if name else len(names), len(names), name)

    return begin


class _Raised(BaseException):
    """`on_progress` raised an error: an OSError perhaps, for which no file is to blame."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


@contextmanager
def one_download(name: str) -> Iterator[Note | None]:
    """Yield a function of (bytes so far, bytes in all) that shows a download.

    Nothing is shown before the first bytes arrive, or after stderr could not be written.
    """
    with each_download() as show, show(name) as note:
        yield note


@contextmanager
def each_download(*, silent: bool = False) -> Iterator[Show]:
    """Yield what `one_download` is for one download, for several at the same time.

    If `silent` is true, nothing is shown.
    """
    if silent or not _is_first():
        yield lambda _: nullcontext()
    elif _display():
        yield lambda name: bar(name, after=0, in_bytes=True)
    else:
        yield lambda name: nullcontext(_quiet(_lines(name)))


@contextmanager
def bar(
    name: str, *, after: float | None = None, in_bytes: bool = False
) -> Iterator[Callable[..., None]]:
    """Show a bar on a terminal or in a notebook while a block runs; only in process 0 of torchrun.

    Yield a function of (done, total) and perhaps a text, which moves the bar. Before its first
    call, the bar shows only that the work goes on. Several threads may call it.

    Args:
        name: before the bar.
        after: seconds until the bar appears, two if None; with 0, the first move shows it.
        in_bytes: whether bytes are counted.
    """
    display = _display()
    if display is None or not _is_first():
        yield _nothing
        return
    after = AFTER if after is None else after
    one = _Bar(display, name, in_bytes, waits=after > 0)
    timer = threading.Timer(after, one.begin)
    timer.daemon = True
    if after:
        timer.start()
    try:
        yield one.move
    finally:
        timer.cancel()
        one.end()


def _nothing(*_: object) -> None:
    """Show nothing."""


def _is_first() -> bool:
    """Tell whether this is process 0 of those that torchrun started, or the only one."""
    return os.environ.get("RANK") in (None, "", "0")


def _display() -> _Terminal | _Notebook | None:
    """Return where bars are shown."""
    if _shell() is not None:
        return _NOTEBOOK
    works = is_terminal(sys.stderr) and os.environ.get("TERM") not in ("dumb", "unknown")
    return _TERMINAL if works else None


def _shell() -> Any:
    """Return IPython's shell if this process computes the cells of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", _nothing)()
    return shell if hasattr(shell, "kernel") else None


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


class _Terminal:
    """The bars of this process, below each other; rich is imported when there is one to show."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._shown: Any = None

    def add(self, name: str) -> Any:
        """Show a new bar, and return its number."""
        if self._shown is None:
            from rich import console, progress

            text = partial(progress.TextColumn, markup=False)
            columns = (
                text("{task.description}"),
                progress.BarColumn(),
                text("{task.fields[numbers]}"),
                progress.TimeRemainingColumn(),
            )
            stderr = console.Console(stderr=True)
            shown = progress.Progress(
                *columns, console=stderr, transient=True, refresh_per_second=REFRESHED
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


class _Notebook:
    """The bars of a cell, in one output of it; the line of the last one stays."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._bars: dict[int, tuple[str, int, int, str]] = {}
        self._count = 0
        self._cell: object = None
        self._output = ""
        self._shown = 0.0

    def add(self, name: str) -> int:
        """Show a new bar, and return its number."""
        cell = _shell().execution_count
        is_new, self._cell = cell != self._cell or not self._output, cell
        self._count += 1
        self._bars[self._count] = (name, 0, 0, "")
        if is_new:
            self._output = f"vitzoo-{os.urandom(8).hex()}"
        self._show(update=not is_new)
        return self._count

    def update(self, number: int, done: int, total: int, text: str) -> None:
        """Move a bar."""
        self._bars[number] = (self._bars[number][0], done, total, text)
        if time.monotonic() - self._shown >= 1 / REFRESHED:
            self._show()

    def remove(self, number: int) -> None:
        """Remove a bar, but not the numbers of the last one."""
        name, _, _, text = self._bars.pop(number)
        self._show(f"{name} {text}" if text else "")

    def _show(self, last: str = "", *, update: bool = True) -> None:
        lines, plain = [], []
        for name, done, total, text in self._bars.values():
            moved = f' value="{done}" max="{total}"' if total else ""
            plain.append(printable(f"{name} {text}"))
            lines.append(f"<div><progress{moved}></progress> {escaped_html(plain[-1])}</div>")
        if not plain:
            plain = [printable(last)]
            lines = [f"<div>{escaped_html(plain[0])}</div>"]
        data = {"text/html": "".join(lines), "text/plain": "\n".join(plain)}
        import_module("IPython.display").display(
            data, raw=True, display_id=self._output, update=update
        )
        self._shown = time.monotonic()


_TERMINAL, _NOTEBOOK = _Terminal(), _Notebook()


class _Bar:
    """One bar of a display.

    Args:
        display: where it is shown.
        name: before the bar.
        in_bytes: whether bytes are counted.
        waits: whether only `begin` shows it, and not the first `move`.
    """

    def __init__(
        self, display: _Terminal | _Notebook, name: str, in_bytes: bool, *, waits: bool
    ) -> None:
        self._display, self._name, self._in_bytes, self._waits = display, name, in_bytes, waits
        self._context = copy_context()  # from which ipykernel knows the cell, also in a thread
        self._began = time.monotonic()
        self._number: Any = None
        self._over = False

    def begin(self) -> None:
        """Show the bar, if its block has not ended."""
        with self._display.lock, suppress(*UNWRITABLE):
            if self._number is None and not self._over:
                self._number = self._context.run(self._display.add, self._name)

    def move(self, done: int, total: int, text: str = "") -> None:
        """Show that a part is done; a text may follow the numbers."""
        if not self._waits:
            self.begin()
        with self._display.lock, suppress(*UNWRITABLE):
            if self._number is not None:
                shown = self._numbers(done, total) + (text and f", {text}")
                self._context.run(self._display.update, self._number, done, total, shown)

    def end(self) -> None:
        """Remove the bar; a thread that moves it later shows nothing."""
        with self._display.lock, suppress(*UNWRITABLE):
            number, self._number, self._over = self._number, None, True
            if number is not None:
                self._context.run(self._display.remove, number)

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
