"""Variables of the environment that hold until a command has ended."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial

import click

from vitzoo.plugin.switches import NOT, STRICT


def set_for_command(name: str, value: str) -> None:
    """Set a variable until the command that is running has ended."""
    before = os.environ.get(name)
    os.environ[name] = value
    undo = (
        partial(os.environ.pop, name, None)
        if before is None
        else partial(os.environ.__setitem__, name, before)
    )
    click.get_current_context().call_on_close(undo)


def show_trouble() -> None:
    """Look at plugins that cannot be used, in place of failing because of them."""
    set_for_command(STRICT, "")


def without_plugins(names: Iterable[str] = ()) -> None:
    """Read no plugin until the command has ended, but those that `names` lie in."""
    show_trouble()
    if all("/" not in name or name.startswith("hf://") for name in names):
        set_for_command(NOT, "*")
