"""Bars on a terminal and in a notebook, lines of downloads in pipes, and calls of `on_progress`."""

import re
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest

from helpers import says
from terminal import on_screen
from vitzoo import progress
from vitzoo.progress import bar, each_download, one_download, reporting

CODE = """
from vitzoo.progress import one_download
with one_download("net:main") as note:
    for done in range(0, 1001, 50):
        note(done, 1000)
"""


def test_a_line_for_every_tenth(capsys):
    with one_download("net:main") as note:
        for done in range(0, 1001, 10):
            note(done, 1000)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 11
    for i, line in enumerate(lines):
        says(line, "net:main: ", f"{10 * i} %", "1000 bytes")


def test_no_progress_where_silent(capsys):
    with each_download(silent=True) as show, show("net:main") as note:
        assert note is None
    assert capsys.readouterr().err == ""


SEVERAL = """
import sys, threading
from vitzoo.progress import each_download
with each_download() as show, show("net:main") as main, show("net:other") as other:
    threads = [threading.Thread(target=note, args=(done, 1000)) for note, done in
               ((main, 250), (other, 500))]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print("between", file=sys.stderr)
    with show("net:third") as third:
        third(1000, 1000)
    main(1000, 1000)
"""


def test_a_bar_on_a_terminal():
    screen = on_screen(CODE)
    assert "net:main" in screen
    assert "━" in screen
    assert "% of" not in screen


def test_a_bar_for_each_of_several_downloads():
    """They are below each other, and other lines are above them."""
    screen = on_screen(SEVERAL)
    both = r"net:(main|other) [^\n]*━[^\n]*\n[^\n]*net:(main|other) [^\n]*━"
    assert {"main", "other"} in [set(found) for found in re.findall(both, screen)]
    assert re.search(r"between[^\n]*\n[^\n]*net:(main|other)", screen)
    assert "net:third" in screen
    assert "% of" not in screen


def test_lines_of_several_downloads_name_each(capsys):
    with each_download() as show, show("net:main") as main, show("net:other") as other:
        for note, total in ((main, 10), (other, 20), (main, 10)):
            note(total // 2, total)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    says(lines[0], "net:main: ", "50 %", "10 bytes")
    says(lines[1], "net:other: ", "50 %", "20 bytes")


WORK = """
import time
from vitzoo.progress import bar
with bar("quick", after=9) as move:
    move(1, 2)
with bar("bro\\x1b[2Jken\\n", after=0.1):
    time.sleep(0.5)
with bar("net", after=0.1, in_bytes=True) as one, bar("images", after=0.1) as two:
    time.sleep(0.5)
    one(10**6, 4 * 10**6)
    two(3, 1500, "waits for torch")
    time.sleep(0.5)
"""


@pytest.mark.slow
def test_work_that_takes_long_shows_a_bar_until_it_is_done():
    screen = on_screen(WORK)
    assert "quick" not in screen
    assert r"bro\x1b[2Jken\n" in screen
    assert re.search(r"net [^\n]*1.0/4.0 MB [\d.]+ MB/s", screen)
    assert re.search(r"images [^\n]*3/1,500[^\n]*, waits for torch", screen)
    assert screen.rstrip("\r").endswith("\x1b[2K\x1b[?25h")  # the line is erased


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_there_is_no_bar_in_a_pipe_and_on_a_dumb_terminal(monkeypatch, capsys, term):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("vitzoo.progress.is_terminal", lambda _: term == "dumb")
    with bar("net", after=0) as move:
        move(1, 2)
    assert capsys.readouterr() == ("", "")


class Notebook:
    """IPython in a notebook: the outputs of each cell, by their names, in every state."""

    def __init__(self, monkeypatch):
        self.shown = {}
        self.shell = SimpleNamespace(kernel=object(), execution_count=1)
        ipython = ModuleType("IPython")
        ipython.get_ipython = lambda: self.shell
        displays = ModuleType("IPython.display")
        displays.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", displays)
        monkeypatch.setattr(progress, "REFRESHED", 10**9)
        monkeypatch.setattr(progress, "_NOTEBOOK", progress._Notebook())

    def display(self, data, *, raw, display_id, update):
        assert raw
        assert update is (display_id in self.shown)
        assert data["text/html"].isprintable()
        self.shown.setdefault(display_id, []).append((data["text/html"], data["text/plain"]))

    @property
    def outputs(self):
        return list(self.shown.values())


@pytest.fixture
def notebook(monkeypatch):
    return Notebook(monkeypatch)


def test_a_download_in_a_notebook_is_one_bar(notebook, capsys):
    with one_download("net<b>:main") as note:
        for done in range(0, 10**6 + 1, 10**5):
            note(done, 10**6)
    (states,) = notebook.outputs
    html, plain = states[-2]
    assert '<progress value="1000000" max="1000000">' in html
    assert "net&lt;b&gt;:main 1.0/1.0 MB" in html
    says(plain, "net<b>:main 1.0/1.0 MB")
    assert "<progress" not in states[-1][0]  # the line stays
    says(states[-1][1], "net<b>:main 1.0/1.0 MB")
    assert capsys.readouterr() == ("", "")


def test_the_bars_of_a_cell_share_one_output(notebook):
    with each_download() as show, show("net:main") as main, show("net:other") as other:
        main(1, 4)
        other(2, 4)
    with one_download("net:third") as third:
        third(4, 4)
    (states,) = notebook.outputs
    assert any("net:main" in html and "net:other" in html for html, _ in states)
    says(states[-1][1], "net:third 4.0/4.0 B")
    notebook.shell.execution_count = 2
    with one_download("net:main") as note:
        note(1, 1)
    assert len(notebook.outputs) == 2


def test_a_thread_may_move_a_bar_after_its_block(notebook):
    with bar("data", after=0) as move:
        move(1, 2)
    (states,) = notebook.outputs
    before = list(states)
    move(2, 2)
    assert (notebook.outputs, states) == ([states], before)


def test_work_without_numbers_leaves_nothing_in_a_notebook(notebook):
    with bar("export", after=0.01):
        time.sleep(0.2)
    (states,) = notebook.outputs
    assert "<progress></progress> export" in states[0][0]
    assert states[-1] == ("<div></div>", "")


@pytest.mark.parametrize("rank", [None, "0", "1"])
def test_one_process_of_torchrun_shows_bars(notebook, monkeypatch, rank):
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with one_download("net:main") as note, bar("images", after=0) as move:
        move(1, 2)
        if note:
            note(1, 2)
    assert len(notebook.outputs) == (rank != "1")


def test_a_function_reports_to_a_bar_and_to_its_caller(notebook):
    seen = []
    with reporting("images", lambda *report: seen.append(report), True, after=0) as report:
        report(1, 2, "waits for model")
        report(2, 2, "images")
    assert seen == [(1, 2, "waits for model"), (2, 2, "images")]
    (states,) = notebook.outputs
    assert any("images 1/2 " in plain and ", waits for model" in plain for _, plain in states)
    assert re.fullmatch(r"images 2/2( [\d,]+/s)?", states[-1][1])
    with reporting("images", None, False, after=0) as report:
        report(1, 2, "")
    assert len(notebook.outputs) == 1


def test_an_error_of_the_caller_passes_what_the_block_catches():
    cause = ValueError("its cause")

    def refuse(*_):
        raise BrokenPipeError("closed") from cause

    def catch():
        with reporting("images", refuse, False) as report:
            try:
                report(1, 2, "")
            except Exception:  # noqa: BLE001  # as a block that explains errors of files
                pytest.fail("it was caught")

    with pytest.raises(BrokenPipeError, match="closed") as caught:
        catch()
    assert caught.value.__cause__ is cause
