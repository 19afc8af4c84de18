"""Draw the pictures in docs/plots with the commands of docs/plotting.md. A test compares them."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from pathlib import Path

from PIL.Image import Dither, open as open_image

from vitzoo.cli.main import main

PAGE = Path(__file__).with_name("plotting.md")
PICTURES = PAGE.with_name("plots")
COLOURS = 256  # a palette keeps the files small


def commands() -> list[list[str]]:
    """Return the arguments of the page's commands."""
    found = re.findall(r"^\$ vitzoo (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line) for line in found]


def write() -> None:
    """Write the pictures that the page shows."""
    os.chdir(PAGE.parents[1])
    shown = set(re.findall(r"\(plots/(.+?)\)", PAGE.read_text(encoding="utf-8")))
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for arguments in commands():
            name = arguments[-1]
            if name in shown and not main([*arguments[:-1], f"{folder}/{name}"]):
                with open_image(f"{folder}/{name}") as image:
                    small = image.convert("RGB").quantize(COLOURS, kmeans=1, dither=Dither.NONE)
                small.save(PICTURES / name, optimize=True)


if __name__ == "__main__":
    write()
