"""docs/pictures: small files with a background of their own, which show today's commands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
PICTURES = sorted((ROOT / "docs" / "pictures").iterdir())
DRAWN = [path for path in PICTURES if path.suffix == ".svg"]
EMBEDDED = re.compile(r'href="data:[^"]*"')
NUMBER = re.compile(r"\d+\.\d+|\d*\.\d+|\d+")


def test_pictures_are_small_and_each_is_shown():
    sizes = {path.name: path.stat().st_size for path in PICTURES}
    assert max(sizes.values()) < 100_000, sizes
    assert sum(sizes.values()) < 500_000, sizes
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert [name for name in sizes if f"pictures/{name})" not in text] == []


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.name)
def test_a_drawing_has_a_title_and_a_background_and_loads_nothing(path):
    """It is shown on light and on dark pages, which draw no background for it."""
    root = ET.parse(path).getroot()  # a file of this repository
    title, paper = list(root)[:2]
    assert title.tag.endswith("title")
    assert paper.tag.endswith("rect")
    assert paper.get("fill") == "#fbfbfd"
    width, height = (float(root.get(side)) for side in ("width", "height"))
    assert (float(paper.get("width")), float(paper.get("height"))) == (width - 1, height - 1)
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|url\((?!#)|@import", text)


def test_the_chart_is_that_of_the_registry():
    tool = runpy.run_path(str(ROOT / "docs" / "generate_pictures.py"))
    drawn = tool["PICTURES"].joinpath("accuracy.svg").read_text(encoding="utf-8")
    assert drawn == tool["accuracy"](), "run python docs/generate_pictures.py accuracy.svg"
    best = [name for _, _, name, _ in tool["best_of"](tool["classifiers"]())]
    assert re.findall(r"<text[^>]*>([a-z]\w+(?:/\w+)?)</text>", drawn) == best
    points = [(1, 70.0, "a", ""), (2, 69.0, "b", ""), (2, 71.0, "c", ""), (3, 71.0, "d", "")]
    assert [point[2] for point in tool["best_of"](points)] == ["a", "c"]


@pytest.mark.docs
def test_the_drawings_are_those_of_today(monkeypatch):
    monkeypatch.chdir(ROOT)
    tool = runpy.run_path(str(ROOT / "docs" / "generate_pictures.py"))
    kept, drawn = plain(tool["PICTURES"] / "attention.svg"), tool["PICTURE"]["attention.svg"]()
    advice = "run python docs/generate_pictures.py"
    drawn = EMBEDDED.sub("", drawn)
    assert NUMBER.sub("N", kept) == NUMBER.sub("N", drawn), advice
    numbers = [[float(number) for number in NUMBER.findall(text)] for text in (kept, drawn)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.11), advice


@pytest.mark.docs
def test_the_screenshot_of_the_catalogue_shows_the_numbers_of_the_registry():
    counted = runpy.run_path(str(ROOT / "docs" / "generate_pictures.py"))["counted"]
    with Image.open(ROOT / "docs" / "pictures" / "catalogue.png") as image:
        advice = "run python docs/generate_pictures.py catalogue.png"
        assert image.info["shown"] == counted(), advice


def plain(path: Path) -> str:
    """Return a drawing without the images in it, which versions of zlib compress differently."""
    return EMBEDDED.sub("", path.read_text(encoding="utf-8"))
