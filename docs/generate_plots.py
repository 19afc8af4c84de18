"""Draw the pictures in docs/plots with the commands of docs/plotting.md. A test compares them.

    python docs/generate_plots.py                  # docs/plots
    python docs/generate_plots.py dinov2/vit_s14   # docs/pictures

With the name of a network, or another name that `vitzoo plot` takes, its attention and its patch
tokens over the two photographs of scikit-learn are drawn. Its weights are fetched.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from PIL.Image import Dither, open as open_image

from vitzoo.cli.main import main

PAGE = Path(__file__).with_name("plotting.md")
PICTURES = PAGE.with_name("plots")
OTHERS = PAGE.with_name("pictures")
COLOURS = 256  # a palette keeps the files small


def commands() -> list[list[str]]:
    """Return the arguments of the page's commands."""
    found = re.findall(r"^\$ vitzoo (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [shlex.split(line) for line in found]


def write() -> None:
    """Write the pictures that the page shows."""
    shown = set(re.findall(r"\(plots/(.+?)\)", PAGE.read_text(encoding="utf-8")))
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for arguments in commands():
            name = arguments[-1]
            if name in shown and not main([*arguments[:-1], f"{folder}/{name}"]):
                keep(Path(folder, name), PICTURES / name)


def keep(drawn: Path, out: Path) -> None:
    """Write a picture with a palette."""
    with open_image(drawn) as image:
        small = image.convert("RGB").quantize(COLOURS, kmeans=1, dither=Dither.NONE)
    small.save(out, optimize=True)


def write_photographs(network: str) -> int:
    """Draw a network over the photographs of scikit-learn; return the exit code of the command."""
    from sklearn import datasets

    folder = Path(datasets.__file__).parent / "images"
    photographs = [str(folder / name) for name in ("china.jpg", "flower.jpg")]
    OTHERS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as drawn:
        for kind in ("rollout", "tokens"):
            out = Path(drawn, f"{kind}.png")
            if code := main(["plot", kind, network, *photographs, "--out", str(out)]):
                return code
            keep(out, OTHERS / f"{network.replace('/', '_').replace(':', '_')}_{kind}.png")
    return 0


if __name__ == "__main__":
    os.chdir(PAGE.parents[1])
    if sys.argv[1:]:
        sys.exit(write_photographs(sys.argv[1]))
    write()
