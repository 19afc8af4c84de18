"""A download shows on stderr: a line for every tenth, or a bar on a terminal."""

import os
import pty
import re
import subprocess
import sys

from helpers import says
from vitzoo.store.progress import each_progress, progress

CODE = """
from vitzoo.store.progress import progress
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
from vitzoo.store.progress import each_progress
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


def on_screen(code):
    """Return what a program writes to a terminal."""
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    subprocess.run(
        [sys.executable, "-c", code], stderr=slave, check=True, timeout=60, env=environment
    )
    os.close(slave)
    screen = b""
    try:
        while chunk := os.read(master, 65536):
            screen += chunk
    except OSError:  # the other end is closed
        pass
    os.close(master)
    return screen.decode()


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
