"""Draw the pictures in docs/pictures, which show `vit_digits`, the commands and the catalogue.

    python docs/generate_pictures.py                  # all but the catalogue
    python docs/generate_pictures.py overview.svg     # one
    python docs/generate_pictures.py catalogue.png    # a screenshot; needs chromium

All plugins must be installed. `docs/generate_plots.py NAME` draws another network.
"""

from __future__ import annotations

import base64
import itertools
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from html import escape
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import vitzoo
from vitzoo.cli.main import main

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
DIGITS = "docs/examples/digits"
COMMANDS = (
    "vitzoo list 'dinov2/*' --columns name,params,license",
    f"vitzoo predict vit_digits {DIGITS} --top 1",
)
COLUMNS = 66
ATTENTION = "Scans, attention of the class token of vit_digits in its last block, predicted class"
EMBEDDING = "Features of vit_digits for the 1,797 scans of scikit-learn, by t-SNE"
PAPER, LINE, INK, SOFT = "#fbfbfd", "#d0d4dc", "#1f2430", "#5a6272"
DARK, LIGHT = "#1b1f27", "#e6e9ef"
# Ten colours that most people with colour-blindness tell apart; the labels name the digits, too.
COLOURS = (
    "#332288", "#88ccee", "#44aa99", "#117733", "#999933",
    "#ddcc77", "#cc6677", "#882255", "#aa4499", "#777777",
)  # fmt: skip
ROW, CELL = 18, 7.8  # px of a character on the terminal


def terminal(commands: tuple[str, ...]) -> tuple[str, float, float]:
    """Return commands and their output as SVG, with its width and height in px."""
    from rich.text import Text

    on_terminal = runpy.run_path(str(ROOT / "tests" / "helpers" / "terminal.py"))["on_terminal"]
    lines: list[str] = []
    for command in commands:
        lines.append(f'<tspan fill="#7fd1b9">$</tspan> {escape(command, quote=False)}')
        printed = on_terminal(*shlex.split(command)[1:], columns=COLUMNS, VITZOO_OFFLINE="1")
        lines += [
            _styled(line) for line in Text.from_ansi(printed.replace("\r", "").rstrip()).split()
        ]
        lines.append("")
    rows = [
        f'<text x="16" y="{44 + ROW * i}" style="white-space:pre">{line}</text>'
        for i, line in enumerate(lines[:-1])
    ]
    width, height = 32 + CELL * COLUMNS, 26 + ROW * len(lines)
    dots = "".join(f'<circle cx="{16 + 16 * i}" cy="16" r="5" fill="#4a5160"/>' for i in range(3))
    body = f'<rect width="{width}" height="{height}" rx="10" fill="{DARK}"/>{dots}'
    body += f'<g font-family="monospace" font-size="13" fill="{LIGHT}">' + "".join(rows) + "</g>"
    return body, width, height


def _styled(line: Any) -> str:
    """Return a line of rich's text as SVG, with its bold parts."""
    edges = sorted({0, len(line), *(edge for s in line.spans for edge in (s.start, s.end))})
    parts = []
    for start, end in itertools.pairwise(edges):
        words = escape(line.plain[start:end], quote=False)
        bold = any(s.style.bold for s in line.spans if s.start <= start and end <= s.end)
        parts.append(f'<tspan font-weight="bold">{words}</tspan>' if bold else words)
    return "".join(parts)


def attention(side: float) -> tuple[str, float, float]:
    """Return ten digits, and the attention of the class token in the last block over each."""
    import torch

    model = vitzoo.create("vit_digits", pretrained=True).eval()
    files = sorted((ROOT / DIGITS).glob("*.png"))
    scans = torch.stack([vitzoo.transform(model)(file) for file in files])
    with torch.inference_mode():
        maps = model.attention_maps(scans, [-1])
        (found,) = maps.values()  # (b, heads, 1 + n, 1 + n)
        labels = model(scans).argmax(1).tolist()
    weights = found.mean(1)[:, 0, 1:]
    weights = weights / weights.amax(1, keepdim=True)
    body, gap, rows = [], 10.0, 2
    for i, (file, label) in enumerate(zip(files, labels, strict=True)):
        x, y = (i % 5) * (2 * side + 2.2 * gap), (i // 5) * (side + 30)
        data = base64.b64encode(_png(file)).decode()
        body += [
            f'<image x="{x + dx:g}" y="{y:g}" width="{side:g}" height="{side:g}" '
            f'href="data:image/png;base64,{data}"/>'
            for dx in (0, side + 4)
        ]
        step = side / 4
        for j, weight in enumerate(weights[i].tolist()):
            body.append(
                f'<rect x="{x + side + 4 + step * (j % 4):g}" y="{y + step * (j // 4):g}" '
                f'width="{step:g}" height="{step:g}" fill="#ffb000" opacity="{0.75 * weight:.2f}"/>'
            )
        body.append(
            f'<text x="{x + side + 2:g}" y="{y + side + 17:g}" text-anchor="middle" '
            f'font-size="13" fill="{INK}">{label}</text>'
        )
    return "".join(body), 5 * (2 * side + 2.2 * gap) - 1.8 * gap, rows * (side + 30) - 8


def _png(file: Path) -> bytes:
    """Return a scan, enlarged without smoothing, as a PNG."""
    with Image.open(file) as image:
        large = image.convert("L").resize((56, 56), Image.Resampling.NEAREST)
    data = BytesIO()
    large.quantize(16).save(data, "png", optimize=True)
    return data.getvalue()


@cache
def points() -> tuple[Any, Any]:
    """Return the digits of scikit-learn, and (1797, 2) places of their features by t-SNE."""
    from sklearn.datasets import load_digits
    from sklearn.manifold import TSNE

    digits = load_digits()
    scans = [np.rint(scan * (255 / 16)).astype(np.uint8) for scan in digits.images]
    rows = vitzoo.Predictor("vit_digits")(scans)
    features = np.stack([row.outputs["pooled"] for row in rows])
    return digits.target, TSNE(init="pca", random_state=0).fit_transform(features)


def embedding(width: float, height: float) -> str:
    """Return a point for each digit of scikit-learn."""
    targets, places = points()
    low, high = places.min(0), places.max(0)
    places = (places - low) / (high - low) * (width - 16, height - 16) + 8
    body = []
    for digit, colour in enumerate(COLOURS):
        dots = "".join(f"M{x:.0f} {y:.0f}h0" for x, y in places[targets == digit])
        body.append(
            f'<path d="{dots}" stroke="{colour}" stroke-width="3.2" stroke-linecap="round" '
            'opacity=".75"/>'
        )
    for digit in range(10):
        x, y = np.median(places[targets == digit], axis=0)
        body.append(
            f'<text x="{x:.0f}" y="{y + 6:.0f}" text-anchor="middle" font-size="18" '
            f'font-weight="bold" fill="{INK}" stroke="{PAPER}" stroke-width="4" '
            f'paint-order="stroke">{digit}</text>'
        )
    return "".join(body)


def sheet(title: str, width: float, height: float, body: str) -> str:
    """Return an SVG file with a background of its own, which is readable on light and dark."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="sans-serif">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="12" '
        f'fill="{PAPER}" stroke="{LINE}"/>\n{body}\n</svg>\n'
    )


def at(x: float, y: float, body: str) -> str:
    """Return a part of a picture at a place."""
    return f'<g transform="translate({x:g} {y:g})">{body}</g>\n'


def caption(x: float, y: float, text: str) -> str:
    """Return a line below a part of a picture."""
    return f'<text x="{x:g}" y="{y:g}" font-size="13" fill="{SOFT}">{escape(text)}</text>\n'


def attention_picture() -> str:
    """Return the digits with attention alone."""
    body, width, height = attention(64)
    return sheet(ATTENTION, width + 40, height + 40, at(20, 20, body))


def embedding_picture() -> str:
    """Return the points alone."""
    return sheet(EMBEDDING, 680, 440, at(20, 20, embedding(640, 400)))


def overview() -> str:
    """Return commands, attention and points in one wide picture."""
    screen, wide, high = terminal(COMMANDS)
    maps, maps_wide, maps_high = attention(50)
    right, low = wide + 44, maps_high + 66
    rest = high - low - 4
    body = at(20, 20, screen) + at(right, 20, maps) + caption(right, maps_high + 40, ATTENTION)
    body += at(right, low, embedding(maps_wide, rest)) + caption(right, high + 18, EMBEDDING)
    return sheet("vitzoo", right + maps_wide + 20, high + 40, body)


PICTURE = {
    "attention.svg": attention_picture,
    "embedding.svg": embedding_picture,
    "overview.svg": overview,
}


def catalogue(out: Path) -> None:
    """Write a screenshot of the page of `vitzoo site`, with the colours of a palette."""
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("chromium is missing; install it (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        main(["site", f"{folder}/site"])
        options = ("headless=new", "no-sandbox", "disable-gpu", "hide-scrollbars")
        options += (f"user-data-dir={folder}/profile", "window-size=1280,800")
        options += ("virtual-time-budget=4000", f"screenshot={folder}/page.png")
        command = [browser, *(f"--{option}" for option in options)]
        page = f"file://{folder}/site/index.html"
        subprocess.run([*command, page], check=True)  # noqa: S603  # no text of users
        with Image.open(f"{folder}/page.png") as image:
            image.convert("RGB").quantize(48).save(out, optimize=True)


if __name__ == "__main__":
    os.chdir(ROOT)
    PICTURES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURE:
        if name == "catalogue.png":
            catalogue(PICTURES / name)
        else:
            PICTURES.joinpath(name).write_text(PICTURE[name](), encoding="utf-8")
