"""A command on a pseudo-terminal: `from terminal import lines, on_terminal`."""

import fcntl
import functools
import os
import pty
import struct
import subprocess
import sys
import termios


@functools.cache
def on_terminal(*args, columns=100, **env):
    """Run a command on a pseudo-terminal and return what a person would see."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "vitzoo", *args],
        stdout=slave,
        stderr=slave,
        env=inherited | {"TERM": "xterm-256color"} | env,
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


def lines(*args, columns, **env):
    """Return the lines of a command on a terminal, without colors."""
    return on_terminal(*args, columns=columns, NO_COLOR="1", **env).splitlines()
