"""A download shows on stderr: a line for every tenth, or a bar on a terminal."""

import os
import pty
import subprocess
import sys

from helpers import says
from vitzoo.store.progress import progress

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
    with progress("net:main", silent=True) as note:
        assert note is None
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal():
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    subprocess.run(
        [sys.executable, "-c", CODE], stderr=slave, check=True, timeout=60, env=environment
    )
    os.close(slave)
    screen = b""
    try:
        while chunk := os.read(master, 65536):
            screen += chunk
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert b"net:main" in screen
    assert "━".encode() in screen
    assert b"% of" not in screen
