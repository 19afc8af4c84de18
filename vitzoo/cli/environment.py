"""Set environment variables for the duration of one command."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click

from vitzoo.plugin.switches import NOT, STRICT


def set_for_command(name: str, value: str) -> None:
    """Set a variable until the running command has ended."""
    before = os.environ.get(name)

    def restore() -> None:
        del os.environ[name]
        os.environ.update({} if before is None else {name: before})

    os.environ[name] = value
    click.get_current_context().call_on_close(restore)


def without_plugins(names: Iterable[str] = ()) -> None:
    """Read no plugin until the command has ended, except the plugins that `names` belong to."""
    set_for_command(STRICT, "")
    if all("/" not in name or name.startswith("hf://") for name in names):
        set_for_command(NOT, "*")
