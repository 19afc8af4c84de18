"""Downloads show lines or bars on stderr; other work that takes long, bars on a terminal."""

import re

import pytest

from helpers import says
from terminal import on_screen
from vitzoo.progress import bar, each_progress, progress

CODE = """
from vitzoo.progress import progress
with progress("net:main") as note:
    for done in range(0, 1001, 50):
        note(done, 1000)
"""


def test_a_line_for_every_tenth(capsys):
    with progress("net:main") as note:
        for done in range(0, 1001, 10):
            note(done, 1000)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 11
    for i, line in enumerate(lines):
        says(line, "net:main: ", f"{10 * i} %", "1000 bytes")


def test_no_progress_where_silent(capsys):
    with each_progress(silent=True) as show, show("net:main") as note:
        assert note is None
    assert capsys.readouterr().err == ""


SEVERAL = """
import sys, threading
from vitzoo.progress import each_progress
with each_progress() as show, show("net:main") as main, show("net:other") as other:
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
    with each_progress() as show, show("net:main") as main, show("net:other") as other:
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
    two(3, 1500, ", waits for torch")
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
