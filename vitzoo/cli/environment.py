"""The process around a command: its environment variables and its standard streams.

Streams may be missing, closed, full or of any encoding.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import click

from vitzoo.errors import StoreError
from vitzoo.text import UNWRITABLE, is_terminal


def set_for_command(name: str, value: str) -> None:
    """Set a variable until the running command has ended."""
    before = os.environ.get(name)

    def restore() -> None:
        del os.environ[name]
        os.environ.update({} if before is None else {name: before})

    os.environ[name] = value
    click.get_current_context().call_on_close(restore)


def without_plugins(names: Iterable[str] = ()) -> None:
    """Read no plugin until the command has ended, except the plugins that `names` belong to."""
    from vitzoo.files.names import on_hub
    from vitzoo.plugin.switches import NOT, STRICT

    set_for_command(STRICT, "")
    if all("/" not in name or on_hub(name) for name in names):
        set_for_command(NOT, "*")


class Stream(io.TextIOBase):
    """Writes to a standard stream; a character that its encoding lacks is written as an escape.

    Args:
        stream: stdout or stderr, None if the process has none.
        required: whether text that cannot be written is an error; otherwise it is dropped.
    """

    def __init__(self, stream: Any, *, required: bool = False) -> None:
        self._stream = stream
        self._required = required
        self._failure: Exception | None = None

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only
        """The encoding of the stream."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Tell whether the stream is a terminal."""
        return is_terminal(self._stream)

    def fileno(self) -> int:
        """Return the file descriptor; raises OSError if there is none."""
        if self._stream is None:
            raise io.UnsupportedOperation("fileno")
        return int(self._stream.fileno())

    def write(self, text: str) -> int:
        """Write text; raises StoreError if it is required and cannot be written."""
        encodable = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
        self._call("write", encodable)
        return len(text)

    def flush(self) -> None:
        """Flush the stream; raises StoreError like `write`."""
        self._call("flush")

    def close(self) -> None:
        """Do nothing: the stream belongs to the process."""

    def _call(self, method: str, *arguments: str) -> None:
        """Write or flush; after a failure, every later call fails in the same way."""
        if self._failure is None:
            try:
                getattr(self._stream, method)(*arguments)
            except UNWRITABLE as error:
                self._failure = error
                with contextlib.suppress(*UNWRITABLE):  # Python flushes the rest at its end
                    _to_nowhere(self.fileno())
        if self._failure is None or not self._required:
            return
        from vitzoo.files.platform.processes import is_closed_pipe

        if is_closed_pipe(self._failure):  # a reader such as `head` closed the pipe
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from self._failure
        reason = getattr(self._failure, "strerror", None) or "it is closed"
        raise StoreError(
            f"cannot write to stdout: {reason}; make room, or send the output to another file"
        ) from self._failure


@contextlib.contextmanager
def diverted(data: Stream) -> Iterator[None]:
    """Point file descriptor 1 to stderr while the code of a plugin is imported in one thread.

    Child processes that this code starts write to stderr, too.

    Args:
        data: the command's stdout, which is flushed first.
    """
    with contextlib.ExitStack() as restore:
        with contextlib.suppress(StoreError, *UNWRITABLE):  # the next line of data raises it again
            data.flush()
        with contextlib.suppress(OSError):  # descriptor 1 or 2 is closed
            if sys.__stdout__:
                stdout = _duplicate(1)
                restore.callback(os.close, stdout)
                restore.callback(os.dup2, stdout, 1)
                restore.callback(Stream(sys.__stdout__).flush)  # what the plugin wrote to it
                _to_nowhere(1)
                if sys.__stderr__:
                    os.dup2(2, 1)
        yield


def set_format(stream: Any) -> None:
    """On Windows, write to a pipe or a file as on other systems: UTF-8, lines end in \\n."""
    if os.linesep != "\n" and not is_terminal(stream):
        with contextlib.suppress(*UNWRITABLE):
            stream.reconfigure(encoding="utf-8", newline="\n")


def _duplicate(descriptor: int) -> int:
    """Duplicate a file descriptor, but not to one of a standard stream, which may be closed."""
    new = os.dup(descriptor)
    if new > 2:
        return new
    try:
        return _duplicate(descriptor)
    finally:
        os.close(new)


def _to_nowhere(descriptor: int) -> None:
    """Drop what is written to a file descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _log(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Write what vitzoo logs to stderr until the command has ended."""
    if value and not context.resilient_parsing:
        from vitzoo.log import shown

        context.with_resource(shown())


verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_log,
    help="Say more: sources, hashes, commits.",
)
