"""A command on a pseudo-terminal: `from terminal import on_terminal`."""

import functools
import os
import pty
import subprocess
import sys


@functools.cache
def on_terminal(*args, columns=100, **env):
    """Run a command on a pseudo-terminal and return what a person would see."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "vitzoo", *args],
        stdout=slave,
        stderr=slave,
        env=os.environ | {"COLUMNS": str(columns), "TERM": "xterm-256color"} | env,
    )
    os.close(slave)
    chunks = []
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        chunks.append(chunk)
    process.wait(timeout=60)
    os.close(master)
    return b"".join(chunks).decode()
