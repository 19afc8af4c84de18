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
def progress_bar(name: str, *, with_work: bool = False) -> Iterator[Callable[..., None] | None]:
    """Yield a function that shows how many images are done; None if stderr cannot show a bar.

    With `with_work`, the function also takes the work, and shows the rate and the slowest stage.
    """
    from rich import progress
    from rich.console import Console

    from vitzoo.apps.embed.embed import bottleneck

    console = Console(stderr=True)
    if not is_terminal(sys.stderr) or console.is_dumb_terminal:
        yield None
        return
    text, length = progress.TextColumn(name), progress.BarColumn(None if with_work else 40)
    columns = [text, length, progress.MofNCompleteColumn()]
    if with_work:
        text = progress.TextColumn("{task.fields[slowest]}", markup=False)
        columns += [text, progress.TimeRemainingColumn()]
    bar = progress.Progress(*columns, console=console, transient=True)
    task, began = bar.add_task(name, total=None, slowest=""), time.monotonic()

    def show(done: int, total: int, work: Work | None = None) -> None:
        with suppress(*UNWRITABLE):
            rate = f"{done / max(time.monotonic() - began, 1e-3):,.0f}/s"
            slowest = "" if work is None else f"{rate}, waits for {bottleneck(work)}"
            bar.update(task, completed=done, total=total, slowest=slowest)
            bar.start()
            if done == total and not with_work:
                bar.stop()

    try:
        yield show
    finally:
        with suppress(*UNWRITABLE):
            bar.stop()
