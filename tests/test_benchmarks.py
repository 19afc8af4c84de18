"""The harness of the benchmarks on made-up times, and the pages made of their figures."""

from __future__ import annotations

import gc
import json
import os
import runpy
import shutil
import time
from pathlib import Path

import pytest

from helpers import says
from tables import cases

TESTS = Path(__file__).parent
UPDATE = runpy.run_path(str(TESTS / "update_benchmarks.py"))


@pytest.fixture
def harness(monkeypatch):
    """Load the harness for full figures or for a smoke run."""

    def load(mode):
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setenv("VITZOO_BENCH", mode)
        return runpy.run_path(str(TESTS / "benchmarks" / "conftest.py"))

    return load


TURNS = {"vitzoo": [1.0, 2.0, 4.0], "timm": [30.0, 40.0, 100.0], "floor": [0.5, 1.0, 1.0]}


def test_a_figure_is_the_median_of_the_ratios_of_single_turns(harness):
    result = harness("full")["Result"]("create", TURNS)
    assert result.ratio("timm") == 100 / 4
    assert result.interval("timm") == (20, 30)
    assert result.ratio("floor") == 0.5
    result.check("timm", at_least=25)
    with pytest.raises(AssertionError) as caught:
        result.check("floor", at_least=1 / 1.6)
    says(str(caught.value), "create, floor", "0.5", "at least 0.625")
    timm, floor = result.rows()
    assert (timm["medians"], timm["spreads"]) == ([2, 40], [[1, 4], [30, 100]])
    assert (timm["at_least"], timm["value"], timm["held"]) == (25, 25, True)
    assert (floor["at_least"], floor["held"]) == (1 / 1.6, False)  # kept, though the test failed


def test_a_smoke_run_takes_the_better_turn_and_has_room_of_two(harness):
    result = harness("")["Result"]("create", TURNS)
    assert result.ratio("timm") == 30 / 1
    result.check("timm", at_least=60)
    with pytest.raises(AssertionError):
        result.check("timm", at_least=61)


@pytest.mark.parametrize(("mode", "turns"), [("full", 1 + 3), ("", 2)])
def test_sides_take_turns_after_what_is_not_timed(harness, capsys, monkeypatch, mode, turns):
    clock, calls = [0.0], []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def side(name, seconds):
        def run():
            calls.append(name)
            clock[0] += seconds

        return run

    compare = harness(mode)["Comparison"](capsys)
    sides = {"vitzoo": side("vitzoo", 1), "timm": side("timm", 3)}
    result = compare("create", sides, rounds=3, before=side("before", 100))
    assert calls == ["before", "collect", "vitzoo", "before", "collect", "timm"] * turns
    assert result.ratio("timm") == 3
    assert len(result.seconds["timm"]) == (3 if mode else 2)


@pytest.mark.parametrize(
    ("value", "bounds", "held", "passes"),
    [
        (30, {"at_least": 20}, True, True),
        (15, {"at_least": 20}, False, False),
        (3, {"at_most": 2.5}, False, False),
        (2, {"at_most": 2.5}, True, True),
        (2, {}, None, True),
    ],
)
def test_a_figure_that_is_no_time(harness, capsys, value, bounds, held, passes):
    compare = harness("full")["Comparison"](capsys)
    if passes:
        compare.record("memory", "timm", value, **bounds)
    else:
        with pytest.raises(AssertionError, match=f"memory, timm: {value}, expected"):
            compare.record("memory", "timm", value, **bounds)
    (row,) = compare.rows()
    assert (row["value"], row["held"]) == (value, held)


def row(title, side, value, at_least=None, *, test="test_weights.py::test_create[b]", **more):
    held = None if at_least is None else value >= at_least
    return {
        "topic": "Weights of a store",
        "test": test,
        "title": title,
        "ours": "vitzoo",
        "side": side,
        "medians": [0.02, 0.02 * value],
        "spreads": [[0.01, 0.03], [0.015 * value, 2.5 * value]],
        "value": value,
        "interval": [value * 0.9, value * 1.25],
        "at_least": at_least,
        "held": held,
    } | more


@pytest.fixture
def data():
    """The figures of a made-up run: those at the top, a floor and a figure without a time."""
    rows = [row(*key, 40.0, 30) for key in UPDATE["FIVE"]]
    memory = {"title": "memory", "side": "timm", "value": 180.2, "unit": "x less", "at_least": 20}
    more = {
        "at_most": None,
        "held": True,
        "topic": "Memory",
        "test": "test_weights.py::test_memory",
    }
    return {
        "machine": {"processor": "made up", "cores": 2},
        "versions": {"torch": "2.15.0", "timm": "1.0.31", "date": "2026-11-23"},
        "failed": [],
        "rows": [
            *rows,
            row("list", "bare interpreter", 1 / 16, 1 / 13),
            row("cold", "full hash", 1350.0),
            memory | more,
        ],
    }


PAGE = """\
# Benchmarks

<!-- benchmarks: machine -->
| old | table |
<!-- end -->

<!-- benchmarks: sides -->
<!-- end -->

Text by hand.

<!-- benchmarks: figures -->
<!-- end -->
"""


def test_a_page_shows_times_ratios_promises_and_what_missed_them(data):
    text = UPDATE["filled"](PAGE, data)
    assert UPDATE["filled"](text, data) == text
    assert text.count("\n### ") == 2  # one for each topic
    text = " ".join(text.split())
    assert "| old |" not in text
    says(text, "Text by hand.", "| processor | made up |", "The run held 6 of 7 promises.")
    says(text, "Not held: list (bare interpreter).")
    says(
        text,
        "| `vitzoo list` | 20 ms (10 ms to 30 ms) | timm.list_models() | "
        "800 ms (600 ms to 100 s) | 40x as fast (36 to 50) | at least 30x as fast | yes |",
        "| list | 20 ms (10 ms to 30 ms) | bare interpreter | 1.25 ms (0.938 ms to 156 ms) | "
        "16x as long (12.8 to 17.8) | at most 13x as long | **no** |",
        "1,350x as fast (1,215 to 1,688) | | |",
        "| memory | | timm | | 180x less | at least 20x less | yes |",
    )
    says(text, "| bare interpreter | a new Python process that does nothing")
    assert "vitzoo without the plugins" not in text  # nothing was compared with it


def test_the_page_begins_with_five_figures(data):
    page = "before\n<!-- benchmarks: five -->\n| old |\n<!-- end -->\nafter\n"
    text = UPDATE["filled"](page, data)
    assert text.startswith("before\n<!-- benchmarks: five -->\nAll were measured")
    assert text.endswith("<!-- end -->\nafter\n")
    says(text, "2026-11-23", "2 CPU cores", "torch 2.15.0 and timm 1.0.31")
    assert text.count("| 40 (36 to 50) |") == 5


def test_data_are_the_same_after_writing_and_reading(data):
    text = UPDATE["text_of"](data)
    assert json.loads(text)["rows"][0]["value"] == 40
    assert UPDATE["text_of"](json.loads(text)) == text
    assert text.count("\n") < 40  # a row is a line


SOURCE = """
def helper(compare):
    compare("b", {}).check("timm", at_least=1)

def test_create(compare):
    result = compare("a", {})
    result.check("timm", at_least=2)
    result.check("floor", at_least=0.5)

def test_helped(compare):
    helper(compare)

def test_stated(compare):
    compare("c", {})
"""


@cases(
    ("change", "parts"),
    [
        ({}, ()),
        ({"failed": ["test_a.py::test_create[b]"]}, ("test_create[b] failed",)),
        ({"without": "test_stated"}, ("test_a.py::test_stated has no figure",)),
        ({"without": "test_helped", "five": ("c", "timm")}, ("test_helped has no figure",)),
        (
            {"unchecked": "test_helped"},
            ("test_helped checks 1 promises, of which the data have 0",),
        ),
        ({"unchecked": "test_create"}, ("test_create checks 2 promises",)),
        ({"side": "a riddle"}, ("SIDES", "does not explain 'a riddle'")),
        ({"title": "b"}, ("2 figures have the title and side ('b', 'timm')",)),
        ({"five": ("a", "timm")}, ("FIVE", "names ('a', 'timm'), which was not measured")),
    ],
)
def test_a_run_that_lacks_figures_is_not_published(change, parts, tmp_path, monkeypatch):
    tmp_path.joinpath("test_a.py").write_text(SOURCE)
    wrong = UPDATE["wrong"]
    monkeypatch.setitem(wrong.__globals__, "FOLDER", tmp_path)
    monkeypatch.setitem(wrong.__globals__, "SIDES", {"timm": "", "floor": ""})
    monkeypatch.setitem(wrong.__globals__, "FIVE", {change.get("five", ("b", "timm")): ("", "")})
    rows = [
        row(change.get("title", "first"), "timm", 3.0, 2, test="test_a.py::test_create[b]"),
        row("first", "floor", 3.0, 2, test="test_a.py::test_create[b]"),
        row("b", "timm", 3.0, 2, test="test_a.py::test_helped"),
        row("c", change.get("side", "timm"), 3.0, test="test_a.py::test_stated"),
    ]
    for item in rows:
        if change.get("unchecked", "-") in item["test"]:
            item["held"] = None
    rows = [item for item in rows if change.get("without", "-") not in item["test"]]
    found = list(wrong({"failed": change.get("failed", []), "rows": rows}))
    assert bool(found) is bool(parts), found
    for text in found:
        says(text, *parts)


def test_a_missed_promise_is_published(tmp_path, monkeypatch):
    wrong = UPDATE["wrong"]
    monkeypatch.setitem(wrong.__globals__, "FOLDER", tmp_path)
    monkeypatch.setitem(wrong.__globals__, "FIVE", {})
    test = "test_a.py::test_create"
    data = {"failed": [test], "rows": [row("list", "timm", 1.0, 2, test=test)]}
    assert list(wrong(data)) == []


def test_a_busy_machine_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(os, "getloadavg", lambda: (1.31, 0.0, 0.0))
    monkeypatch.setitem(UPDATE["main"].__globals__, "measured", pytest.fail)
    with pytest.raises(SystemExit) as caught:
        UPDATE["main"]()
    assert caught.value.code == 2
    says(capsys.readouterr().err, "1.31", "at most 0.3", "--anyway")


MEASURED = '''\
"""Sums of numbers.

More.
"""
import time

import pytest

@pytest.mark.benchmark
def test_sums(compare):
    sides = {"vitzoo": lambda: time.sleep(0.01), "timm": lambda: None}
    result = compare("sum", sides, rounds=3)
    result.check("timm", at_least=1)

@pytest.mark.benchmark
def test_memory(compare):
    compare.record("memory", "timm", 30, at_least=20)
'''


@pytest.mark.slow
def test_one_command_measures_and_writes_data_and_pages(tmp_path, monkeypatch, capfd):
    folder, page, data = (tmp_path / name for name in ("benchmarks", "page.md", "data.json"))
    folder.mkdir()
    shutil.copy(TESTS / "benchmarks" / "conftest.py", folder)
    folder.joinpath("test_sum.py").write_text(MEASURED)
    page.write_text(PAGE)
    for name, value in {"FOLDER": folder, "PAGES": (page,), "DATA": data, "FIVE": {}}.items():
        monkeypatch.setitem(UPDATE["main"].__globals__, name, value)
    assert UPDATE["main"]("--anyway") == 1  # a promise is missed
    says(capfd.readouterr().err, "missed: sum, timm")
    first = page.read_text()
    said = " ".join(first.split())
    says(
        said, "### Sums of numbers |", "**no**", "| memory | | timm | | 30x | at least 20x | yes |"
    )
    says(said, f"| cores | {len(os.sched_getaffinity(0))} |", "| torch |", "commit")
    page.write_text(PAGE)
    assert UPDATE["main"]("--pages") == 1
    assert page.read_text() == first
    more = MEASURED.replace('"sum"', '"more"').replace('"memory"', '"more memory"')
    folder.joinpath("test_more.py").write_text(more.replace("Sums", "More sums"))
    before = json.loads(data.read_text())
    for _ in range(2):  # the second run replaces the figures of the first
        assert UPDATE["main"]("--anyway", "--only", "test_more.py") == 1
        after = json.loads(data.read_text())
        assert after["rows"][:2] == before["rows"]
        found = [row["test"] for row in after["rows"][2:]]
        assert found == ["test_more.py::test_sums", "test_more.py::test_memory"]
        assert after["failed"] == [*before["failed"], "test_more.py::test_sums"]
    first = page.read_text()
    folder.joinpath("test_more.py").unlink()
    folder.joinpath("test_sum.py").write_text(MEASURED.replace("compare.record", "compare.keep"))
    with pytest.raises(SystemExit, match="test_memory failed, and not for a missed promise"):
        UPDATE["main"]("--anyway")
    assert page.read_text() == first


@pytest.fixture(scope="module")
def published():
    return json.loads(UPDATE["DATA"].read_text(encoding="utf-8"))


@pytest.mark.docs
def test_the_pages_are_made_of_the_data(published):
    pages = [page.read_text(encoding="utf-8") for page in UPDATE["PAGES"]]
    found = [name for text in pages for _, name, _ in UPDATE["BLOCK"].findall(text)]
    assert sorted(found) == sorted(UPDATE["BLOCKS"])
    for text in pages:
        assert text == UPDATE["filled"](text, published), UPDATE["BY_HAND"] + " --pages"


@pytest.mark.docs
def test_the_data_have_a_figure_for_each_promise(published):
    assert list(UPDATE["wrong"](published)) == [], UPDATE["BY_HAND"]
