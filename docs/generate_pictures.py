"""Draw the pictures in docs/pictures: the registry's accuracies, `vit_digits`, the catalogue.

    python docs/generate_pictures.py                  # all drawings
    python docs/generate_pictures.py accuracy.svg     # one
    python docs/generate_pictures.py finetune.png     # of the run on docs/finetune.md; a minute
    python docs/generate_pictures.py catalogue.png    # a screenshot; needs chromium

All plugins must be installed. `docs/generate_plots.py NAME` draws another network.
"""

from __future__ import annotations

import base64
import math
import os
import re
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
from PIL.PngImagePlugin import PngInfo

import vitzoo
from vitzoo.cli.main import main

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
DIGITS = "docs/examples/digits"
ATTENTION = "Scans, attention of the class token of vit_digits in its last block, predicted class"
EMBEDDING = "Features of vit_digits for the 1,797 scans of scikit-learn, by t-SNE"
PAPER, LINE, INK, SOFT = "#fbfbfd", "#d0d4dc", "#1f2430", "#5a6272"
# Ten colours that most people with colour-blindness tell apart; the labels name the digits, too.
COLOURS = (
    "#332288", "#88ccee", "#44aa99", "#117733", "#999933",
    "#ddcc77", "#cc6677", "#882255", "#aa4499", "#777777",
)  # fmt: skip
MEASURED = "ImageNet-1k validation"  # of all 50,000 images, by timm, for every point of the chart
TRAINED = {  # `pretraining` of weights: its colour and name in the chart
    "supervised": ("#88ccee", "trained on labels"),
    "self-supervised": ("#aa4499", "on masked images, then on labels"),
    "image-text": ("#999933", "on images and texts, then on labels"),
}
CHART = (820.0, 400.0)  # px of the area of the points
MILLIONS = (5, 10, 20, 50, 100, 200, 500, 1000)


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


def classifiers() -> list[tuple[int, float, str, str]]:
    """Return parameters, accuracy, name and pretraining of weights with an accuracy on ImageNet."""
    return [
        (variant.params, weights.top1, variant.name, weights.pretraining)
        for variant in vitzoo.variants()
        for weights in variant.weights
        if weights.top1 and weights.evaluation == MEASURED
    ]


def best_of(points: list[tuple[int, float, str, str]]) -> list[tuple[int, float, str, str]]:
    """Return the points that no network with as few parameters exceeds: the Pareto line."""
    best: list[tuple[int, float, str, str]] = []
    for point in sorted(points, key=lambda p: (p[0], -p[1])):
        if not best or point[1] > best[-1][1]:
            best.append(point)
    return best


def accuracy() -> str:
    """Return accuracy against parameters of the registered classifiers; the best are named."""
    points, (width, height) = classifiers(), CHART
    best, low, high = best_of(points), math.floor(min(p[1] for p in points)), 91
    left, right = math.log(MILLIONS[0] * 0.95e6), math.log(MILLIONS[-1] * 1.1e6)

    def place(params: float, top1: float) -> tuple[float, float]:
        x = (math.log(params) - left) / (right - left) * width
        return round(x, 1), round((high - top1) / (high - low) * height, 1)

    body = []
    for percent in range(low - low % 5 + 5, high, 5):
        y = place(1e7, percent)[1]
        body += [
            f'<path d="M0 {y:g}H{width:g}" stroke="{LINE}"/>',
            f'<text x="-8" y="{y + 4:g}" text-anchor="end" fill="{SOFT}">{percent}</text>',
        ]
    for millions in MILLIONS:
        x, text = place(millions * 1e6, low)[0], f"{millions}M" if millions < 1000 else "1B"
        body.append(
            f'<text x="{x:g}" y="{height + 20:g}" text-anchor="middle" fill="{SOFT}">{text}</text>'
        )
    for i, (colour, kind) in enumerate(TRAINED.values()):
        y = height - 62 + 20 * i
        body += [
            f'<circle cx="{width - 240:g}" cy="{y - 4:g}" r="5" fill="{colour}"/>',
            f'<text x="{width - 228:g}" y="{y:g}" fill="{INK}">{kind}</text>',
        ]
    for params, top1, _, kind in points:
        x, y = place(params, top1)
        body.append(f'<circle cx="{x:g}" cy="{y:g}" r="4.5" fill="{TRAINED[kind][0]}"/>')
    line = "L".join("{:g} {:g}".format(*place(*point[:2])) for point in best)
    body.append(f'<path d="M{line}" fill="none" stroke="{INK}" stroke-width="1.3"/>')
    above = math.inf  # the lowest place that a name may have, from the top
    for params, top1, name, kind in best:
        x, y = place(params, top1)
        body.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="4.5" stroke="{INK}" stroke-width="1.3" '
            f'fill="{TRAINED[kind][0]}"/>'
        )
        if x < width / 6:  # no room on the left
            body.append(f'<text x="{x + 8:g}" y="{y + 18:g}" fill="{INK}">{name}</text>')
            continue
        above = min(y - 4, above - 16)
        style = f'text-anchor="end" fill="{INK}" stroke="{PAPER}" stroke-width="4"'
        body += [
            f'<path d="M{x:g} {y:g}L{x - 12:g} {above - 4:g}" stroke="{INK}" stroke-width=".8"/>',
            f'<text x="{x - 14:g}" y="{above:g}" {style} paint-order="stroke">{name}</text>',
        ]
    said = (
        f"ImageNet top-1 accuracy in %, against parameters: {len(points)} sets of weights of "
        f"{len({p[2] for p in points})} networks; the best of each size are named"
    )
    body.append(f'<text x="-30" y="{height + 46:g}" fill="{SOFT}">{said}</text>')
    drawn = f'<g font-size="13">{"".join(body)}</g>'
    return sheet(said, width + 80, height + 90, at(56, 24, drawn))


def attention_picture() -> str:
    """Return the digits with attention alone."""
    body, width, height = attention(64)
    return sheet(ATTENTION, width + 40, height + 40, at(20, 20, body))


def embedding_picture() -> str:
    """Return the points alone."""
    return sheet(EMBEDDING, 680, 440, at(20, 20, embedding(640, 400)))


PICTURE = {
    "accuracy.svg": accuracy,
    "attention.svg": attention_picture,
    "embedding.svg": embedding_picture,
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
            shown = PngInfo()
            shown.add_text("shown", counted())
            image.convert("RGB").quantize(48).save(out, optimize=True, pnginfo=shown)


def finetune(out: Path) -> None:
    """Write the curves of the run on docs/finetune.md, with the colours of a palette."""
    page = (ROOT / "docs" / "finetune.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (command,) = re.findall(r"^\$ vitzoo (finetune .+)$", page, re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603  # of the page
        main(shlex.split(command))
        with Image.open("tuned/curves.png") as image:
            image.convert("RGB").quantize(48).save(out, optimize=True)
        os.chdir(ROOT)


def counted() -> str:
    """Return what the catalogue says at its top, which a test compares with the registry."""
    networks = vitzoo.variants()
    weights = sum(len(network.weights) for network in networks)
    return f"{len(networks)} networks and {weights} sets of weights"


FILES = {"catalogue.png": catalogue, "finetune.png": finetune}

if __name__ == "__main__":
    os.chdir(ROOT)
    PICTURES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or PICTURE:
        if name in FILES:
            FILES[name](PICTURES / name)
        else:
            PICTURES.joinpath(name).write_text(PICTURE[name](), encoding="utf-8")
