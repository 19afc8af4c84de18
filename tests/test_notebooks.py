"""What a notebook shows: tables and figures, with all texts escaped."""

from __future__ import annotations

import copy
import dataclasses
import html.parser
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitzoo
from internals import MOST_ROWS, LinearClassifier, Measurement, Score, html_table

DIGITS = Path(__file__).parents[1] / "docs" / "examples" / "digits"
HOSTILE = "<script>alert('\"&\u202e\x1b[2J</script>"
SHOWN = HOSTILE.replace("\u202e", r"\u202e").replace("\x1b", r"\x1b")


STYLES = [("style", f"text-align: {side}") for side in ("left", "right")]


class Texts(html.parser.HTMLParser):
    """The texts of the cells and lines of an HTML document, whose cells are aligned."""

    def __init__(self, document):
        super().__init__()
        self.texts, self.open = [], []
        self.feed(document)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        assert tag in ("table", "tr", "th", "td", "b", "p")
        assert all(each in STYLES for each in attributes)
        self.open.append(tag)
        if tag not in ("table", "tr"):
            self.texts.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts[-1] += data


def texts(value):
    return Texts(value._repr_html_()).texts


def variant():
    base = vitzoo.describe("vit_digits")
    weights = dataclasses.replace(base.weights[0], name=HOSTILE, license=HOSTILE)
    return dataclasses.replace(base, name=HOSTILE, summary=HOSTILE, weights=(weights,))


def variants():
    found = vitzoo.variants("vit_digits")
    found[:] = [variant()]
    return found


def probe():
    score = Score.of(HOSTILE, np.array([0, 1]), np.array([0, 0]), 2)
    classifier = LinearClassifier(np.zeros((2, 3)), np.zeros(2), 1.0, (), True)
    return vitzoo.Probe(
        HOSTILE, "ab", (HOSTILE, "b"), ("a",), ("b", "c"), np.array([0, 0]), True, {}, score,
        classifier, np.zeros((2, 2)), (), 0, 0, "",
    )  # fmt: skip


def benchmark():
    rows = (
        Measurement(HOSTILE, 8, 12.3, (12, 13), 1.5, (1.4, 1.6), 2**20, 0.9999, 1.0, 2.0),
        Measurement("bf16", error=HOSTILE),
    )
    return vitzoo.Benchmark(HOSTILE, HOSTILE, "x", "cpu", 1, 6, 0.0, {}, rows, (HOSTILE,))


HOSTILE_VALUES = {
    "variants": variants,
    "variant": variant,
    "load report": lambda: vitzoo.LoadReport(HOSTILE, license=HOSTILE, kept=(HOSTILE,)),
    "predictions": lambda: vitzoo.Predictions(
        [
            vitzoo.Prediction(Path(HOSTILE), ((0, HOSTILE, 0.5), (1, HOSTILE, 0.25))),
            vitzoo.Prediction(Path("a.png"), (), HOSTILE),
        ]
    ),
    "probe": probe,
    "benchmark": benchmark,
}
TIMES = {"variants": 3, "variant": 4, "predictions": 4, "probe": 2, "benchmark": 5}


@pytest.mark.parametrize("kind", HOSTILE_VALUES)
def test_every_text_is_escaped(kind):
    value = HOSTILE_VALUES[kind]()
    document = value._repr_html_()
    assert document.isprintable()
    assert "<script" not in document
    assert "".join(texts(value)).count(SHOWN) == TIMES.get(kind, 3)


def test_a_list_of_variants_is_a_list():
    found = vitzoo.variants("vit_b*")
    assert isinstance(found, list)
    assert copy.copy(found) == found
    heading, rows = texts(found)[:6], texts(found)[6:]
    assert heading == ["name", "params", "top1", "px", "license", "summary"]
    assert rows[::6] == [one.name for one in found]
    assert "86.6M" in rows


def test_a_long_table_is_cut():
    shown = Texts(html_table([{"a": i} for i in range(MOST_ROWS + 7)])).texts
    assert (len(shown), shown[-2:]) == (MOST_ROWS + 2, [str(MOST_ROWS - 1), "and 7 more"])
    assert html_table([]) == ""


CELLS = {
    "import vitzoo\nvitzoo.variants('vit_b*')": "vit_b16",
    "vitzoo.describe('vit_digits')": "digits_v1",
    "vitzoo.describe('vit_b16').weights": "augreg_in21k",
    "vitzoo.summary('vit_digits')": "blocks.0.attn",
    "model = vitzoo.create('vit_digits', pretrained=True)\nmodel.load_report": "kept",
    f"vitzoo.predict(model, {str(DIGITS)!r})": "digit_7_scan_0081.png",
    f"vitzoo.Predictor(model)({str(DIGITS / 'digit_7_scan_0081.png')!r})": "pooled 64",
    "found = vitzoo.probe(model, 'scans', embeddings='embeddings')\nfound": "logistic regression",
    "found.figure()": "<Figure size",
    "vitzoo.bench(model, ways=['eager'], batches=[1], rounds=6, seconds=0.1)": "images/s",
    "vitzoo.plot('filters', model)": "Plot('filters', filters 28x7x7x1, variance 28)",
    "vitzoo.plot('filters', model).figure": "<Figure size",
}


BAR = """
import threading, time
from vitzoo.progress import reporting
with reporting("images", None, True, after=0.1) as report:
    time.sleep(0.3)  # a thread shows the bar
    for done in (1, 2):
        thread = threading.Thread(target=report, args=(done, 2, "images"))
        thread.start()
        thread.join()
"""


@pytest.mark.workflows
@pytest.mark.filterwarnings("ignore::DeprecationWarning:(jupyter|nbclient|zmq|tornado|traitlets)")
def test_a_notebook_shows_tables_and_figures(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for number, file in enumerate(sorted(DIGITS.glob("*.png"))[:2]):
        pixels = np.asarray(Image.open(file)).astype(int)
        (tmp_path / "scans" / str(number)).mkdir(parents=True)
        for i in range(5):
            scan = Image.fromarray((pixels - i).clip(0).astype(np.uint8))
            scan.save(tmp_path / "scans" / str(number) / f"{i}.png")
    cells = list(map(nbformat.v4.new_code_cell, (*CELLS, BAR)))
    notebook = nbformat.v4.new_notebook(cells=cells)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    (bar,) = notebook.cells[-1].outputs
    assert (bar.output_type, bar.data["text/plain"][:10]) == ("display_data", "images 2/2")
    for cell, expected in zip(notebook.cells[:-1], CELLS.values(), strict=True):
        (shown,) = [one["data"] for one in cell.outputs if one.output_type == "execute_result"]
        if "plot" in cell.source or "figure" in cell.source:
            assert shown["text/plain"].startswith(expected)
            assert shown["image/png"].startswith("iVBORw0KGgo")
        else:
            assert expected in " ".join(Texts(shown["text/html"]).texts), json.dumps(shown)
