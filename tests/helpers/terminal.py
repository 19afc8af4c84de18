"""Programs on a pseudo-terminal: `from terminal import lines, on_screen, on_terminal`."""

import functools
import os
import struct
import subprocess
import sys
import threading

END = b"\0end\0"


@functools.cache
def on_terminal(*args, columns=100, **env):
    """Run a command on a pseudo-terminal and return what a person would see."""
    import fcntl  # here, as Windows has none of them and other tests import this module
    import pty
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    inherited = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-m", "vitzoo", *args],
        stdout=slave,
        stderr=slave,
        env=inherited | {"TERM": "xterm-256color", "PAGER": "cat"} | env,
    )

    def mark_end():  # a read after the last writer has closed its side may lose what it wrote
        process.wait()
        os.write(slave, END)

    threading.Thread(target=mark_end, daemon=True).start()
    output = b""
    while not output.endswith(END):
        output += os.read(master, 65536)
    os.close(slave)
    os.close(master)
    return output.removesuffix(END).decode()


def lines(*args, columns, **env):
    """Return the lines of a command on a terminal, without colors."""
    return on_terminal(*args, columns=columns, NO_COLOR="1", **env).splitlines()


def on_screen(code):
    """Return what Python code writes to stderr, which is a terminal."""
    import pty

    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=slave, env=environment)
    os.close(slave)
    screen = b""
    try:
        while chunk := os.read(master, 65536):
            screen += chunk
    except OSError:  # the other end is closed
        pass
    os.close(master)
    assert process.wait(60) == 0, screen
    return screen.decode()
