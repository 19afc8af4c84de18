"""Pages whose blocks run: `from pages import outputs`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest

from terminal import lines

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d+\.\d+|\d+")
MEASURED = re.compile(r"^work: .*\n| in [\d.]+ s \([\d,.]+ images/s\)", re.MULTILINE)


def outputs(
    text: str, printed: Callable[[], str], run: Callable[..., tuple[int, str, str]] | None = None
) -> int:
    """Run the blocks of a page in order, and return how many outputs it shows.

    `python` runs here, `console` is a command and what a terminal of 80 columns shows of it, `text`
    is what the block before printed, and `sh` are commands without outputs for `run`. Fractions
    differ between processors, times between machines.
    """
    scope: dict[str, object] = {}
    said, found = "", 0
    for language, block in BLOCK.findall(text):
        expected = block
        if language in ("python", "sh"):
            assert not said, f"the page does not show {said!r}"
        if language == "python":
            exec(compile(block, "the page", "exec"), scope)
            said = printed()
        elif language == "console":
            command, _, expected = block.partition("\n")
            said = "\n".join(lines(*shlex.split(command)[2:], columns=80, TERM="dumb")) + "\n"
        elif language == "sh":
            assert run, "the page has commands"
            for line in block.splitlines():
                code, _, notes = run(*shlex.split(line)[1:])
                assert code == 0, notes
        if language in ("console", "text"):
            said, expected = MEASURED.sub("", said), MEASURED.sub("", expected)
            assert words(said) == words(expected)
            assert numbers(said) == pytest.approx(numbers(expected), abs=0.05)
            said, found = "", found + 1
    assert not said, f"the page does not show {said!r}"
    return found


def words(text: str) -> list[str]:
    """Return the lines of a text without their numbers."""
    return [NUMBER.sub("N", line).rstrip() for line in text.splitlines()]


def numbers(text: str) -> list[float]:
    """Return the numbers in a text."""
    return [float(number) for number in NUMBER.findall(text)]
