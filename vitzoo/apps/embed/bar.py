"""A bar on stderr that shows how many images are done."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from vitzoo.text import UNWRITABLE, is_terminal

if TYPE_CHECKING:
    from vitzoo.apps.embed.pipeline import Work


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[..., None] | None]:
    """Yield a function that shows how many images are done; None if stderr cannot show a bar.

    The function may also get the work, and then names the stage for which the others wait.
    """
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True)
    if not is_terminal(sys.stderr) or console.is_dumb_terminal:
        yield None
        return
    rate = progress.TextColumn("{task.fields[rate]}", markup=False)
    columns = progress.BarColumn(), progress.MofNCompleteColumn(), rate
    left = progress.TimeRemainingColumn()
    bar = progress.Progress(name, *columns, left, console=console, transient=True)
    task, began = bar.add_task(name, total=None, rate=""), time.monotonic()

    def show(done: int, total: int, work: Work | None = None) -> None:
        rate = f"{done / max(time.monotonic() - began, 1e-3):,.0f}/s"
        rate += f", waits for {work.bottleneck}" if work else ""
        with suppress(*UNWRITABLE):
            bar.update(task, completed=done, total=total, rate=rate)
            bar.start()
            if done == total:
                bar.stop()

    try:
        yield show
    finally:
        with suppress(*UNWRITABLE):
            bar.stop()
