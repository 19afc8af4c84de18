"""Options that several commands have, and checks of their values before torch is imported."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click

from vitzoo.cli.output import print_tables
from vitzoo.errors import ImageError, InvalidOption, did_you_mean, printable
from vitzoo.settings import DEVICE

PATH = click.Path(path_type=Path)
flag = partial(click.option, is_flag=True)
json_option = flag("--json", "as_json", help="Print JSON.")
table_option = flag("--table", help="Print what a terminal shows, also to a pipe.")
force_option = flag("--force", help="Overwrite the file if it exists.")
weights_option = click.option(
    "--weights", metavar="NAME", help="Name of the weights; the default weights if not given."
)
weights_or_file_option = click.option(
    "--weights",
    help="Name of weights of the variant, or a weights file; the default weights if not given.",
)


def device_name(value: str) -> str:
    """Return the name of a device of torch, which decides whether it is there."""
    if not DEVICE.fullmatch(value):
        raise click.BadParameter(f"expected a device such as cpu, cuda or cuda:1; got {value!r}")
    return value


device_option = click.option(
    "--device", type=device_name, metavar="NAME",
    help="Device to compute on, such as cpu or cuda:1. Default: VITZOO_DEVICE, or a GPU if there "
    "is one.",
)  # fmt: skip


def choose_output(*, table: bool, **others: bool) -> None:
    """Print tables if `table`; refuse it together with another form of output."""
    if not table:
        return
    if other := next((name for name, given in others.items() if given), ""):
        raise InvalidOption(
            f"--table and --{other} name two forms of output; leave one of the two out"
        )
    print_tables()


def check_there(paths: Iterable[str | Path]) -> None:
    """Refuse a path at which nothing is, before Pillow and torch are imported."""
    for path in paths:
        if not os.path.lexists(path):
            raise ImageError(f"there is no file {printable(path)}")


class Choice(click.Choice[str]):
    """A choice of words; the message about another word suggests similar ones."""

    def get_invalid_choice_message(self, value: str, ctx: click.Context | None) -> str:
        """Return the message, which lists all choices."""
        listed = super().get_invalid_choice_message(value, ctx).removesuffix(".")
        return listed + did_you_mean(value, self.choices)


def matched(pattern: str, value: str, expected: str) -> re.Match[str]:
    """Return how a pattern matches the value of an option; refuse another value."""
    found = re.fullmatch(pattern, value, re.ASCII)
    if not found:
        raise click.BadParameter(f"expected {expected}; got {value!r}")
    return found


def _image_size(value: str) -> int | tuple[int, int]:
    """Read a size in px: one number, or HEIGHTxWIDTH."""
    expected = "a number of px or HEIGHTxWIDTH, such as 224x336"
    height, width = matched(r"(\d{1,9})(?:[xX](\d{1,9}))?", value, expected).groups()
    return (int(height), int(width)) if width else int(height)


size_option = click.option(
    "--image-size", metavar="PX", type=_image_size, help="Image size in px, or HEIGHTxWIDTH."
)
