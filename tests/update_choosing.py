"""Fills the outputs of the commands in docs/choosing.md.

    python tests/update_choosing.py

Each block `console` has one command, `$ vitzoo ...`, which may continue on further lines after a
backslash, and its output on a terminal of 120 columns.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("helpers")))
from terminal import lines

PAGE = Path(__file__).parents[1] / "docs" / "choosing.md"
COMMAND = re.compile(r"(```console\n\$ vitzoo ((?:.*\\\n)*.*)\n)(?:(?!```).*\n)*```", re.MULTILINE)
BY_HAND = "python tests/update_choosing.py"


def filled(page: str) -> str:
    """Return the page with the outputs of its commands, without notes."""

    def block(match: re.Match[str]) -> str:
        arguments = shlex.split(match[2].replace("\\\n", ""))
        found = [line.rstrip() for line in lines(*arguments, columns=120)]
        data = [line for line in found if not line.startswith("vitzoo: ")]
        return match[1] + "".join(f"{line}\n" for line in data) + "```"

    return COMMAND.sub(block, page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
