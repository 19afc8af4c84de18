"""Asks the helper process that reads Parquet files; there is one for each thread that reads.

A file never ends the process that asks, and never takes its memory. What starts processes is
imported with the first question: commands that refuse their arguments have imported this module.
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

from vitzoo.apps.embed.items import open_archive
from vitzoo.apps.embed.parquet_helper import OUT_OF_MEMORY, Column, Outline, Rows, Unreadable
from vitzoo.errors import ImageError, VitzooError, printable
from vitzoo.plugin.requirements import check_extra

MODULE = "vitzoo.apps.embed.parquet_helper"
# The allocators of Arrow and of threads would reserve memory that is not used.
ENV = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
SECONDS = 300.0  # of one answer, which has few rows
COSTLY = "pyarrow ends, or needs more than 1 GiB of memory for it"
METADATA = (b"huggingface", b"vitzoo.fingerprint")  # entries that are read


class HelperEnded(Exception):
    """The helper process ended; `crash` tells whether the file is the reason."""

    def __init__(self, how: str, *, crash: bool) -> None:
        super().__init__(how)
        self.crash = crash


class Helper:
    """The helper process, which starts with the first question."""

    def __init__(self) -> None:
        self._process: Any = None
        self.end: Callable[[], object] = lambda: None

    def ask(self, *request: object) -> Any:
        """Return the answer to a request.

        Raises:
            HelperEnded: it ended before it answered.
            VitzooError: it cannot start, or took too long.
        """
        from vitzoo.apps.embed.processes import ProcessEnded
        from vitzoo.files.platform.processes import crashed

        late = threading.Event()
        if self._process is None or self._process.popen.poll() is not None:
            self._start()
        process = self._process

        def end() -> None:
            late.set()
            process.popen.kill()

        timer = threading.Timer(SECONDS, end)
        timer.daemon = True
        timer.start()
        try:
            process.send(request)
            return process.receive()
        except ProcessEnded as error:
            self.end()
            if late.is_set():
                raise _too_slow() from error
            code = process.popen.returncode
            raise HelperEnded(str(error), crash=crashed(code) or code == OUT_OF_MEMORY) from error
        except BaseException:  # a part of the answer may be in the pipe
            self.end()
            raise
        finally:
            timer.cancel()

    def _start(self) -> None:
        from vitzoo.apps.embed.processes import Process, ProcessEnded

        self.end()
        try:
            self._process = process = Process(MODULE, ENV, quiet=True)
            self.end = weakref.finalize(self, process.end)
            process.send()
            process.receive()
        except (OSError, ProcessEnded) as error:
            raise VitzooError(
                f"cannot start the process that reads Parquet files: {error}; raise the limits of "
                "processes, open files and memory (ulimit -u, ulimit -n, ulimit -v)"
            ) from error


class ParquetFile:
    """A Parquet file that the helper process has open.

    Args:
        path: of the file.

    Raises:
        MissingDependency: pyarrow is not installed.
        ImageError: the file is missing or damaged.
    """

    def __init__(self, path: str, helper: Helper) -> None:
        check_extra("parquet", "a Parquet file")
        self.path, self.version, self._helper = path, version_of(path), helper
        open_archive(path).close()  # a missing file or a pipe has a clear message
        answer = self._outline()
        if isinstance(answer, Unreadable):
            raise self.unreadable(printable(answer.reason))
        self.outline = answer
        sizes = [rows for rows, _ in answer.groups]
        self.ends = list(accumulate(sizes))
        if sum(sizes) != answer.rows or min(sizes, default=0) < 0:
            raise ImageError(
                f"{printable(path)} is damaged: it states {answer.rows} rows, its row groups have "
                f"{sum(sizes)}"
            )
        # columns of row groups: those that are read row by row, those that end the helper, those
        # that `check` has read
        self._single: set[tuple[int, str]] = set()
        self._costly: set[tuple[int, str]] = set()
        self._checked: set[tuple[int, str]] = set()

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table."""
        return self.outline.columns

    def unreadable(self, reason: str) -> ImageError:
        """Return the error of a file that cannot be read."""
        return ImageError(f"cannot read the Parquet file {printable(self.path)}: {reason}")

    def group_of(self, row: int) -> int:
        """Return the number of the row group with a row."""
        return bisect_right(self.ends, row)

    def check(self, columns: Sequence[str], group: int, at_once: int, *options: object) -> None:
        """Read the cells of a row group once, so that `rows` gives all of them or none.

        pyarrow may end its process at any row. Without this, the values of the rows before would
        depend on where the reading began.

        Args:
            columns: as for `rows`.
            group: number of the row group.
            at_once: as for `rows`.
            options: of the function `cells`.
        """
        chunks = group, " ".join(columns)
        if chunks not in self._checked:
            of_group = range(self.ends[group - 1] if group else 0, self.ends[group])
            for _ in self.rows("check", columns, of_group, at_once, *options):
                pass
            self._checked.add(chunks)

    def rows(
        self, name: str, columns: Sequence[str], rows: range, at_once: int, *options: object
    ) -> Iterator[Any]:
        """Yield answers of a function of the helper, which are `Rows` or why there are none.

        What is unreadable is the rest of a row group, whose other rows have no answer.

        Args:
            name: of the function.
            columns: names of the columns.
            rows: neighbours.
            at_once: number of rows that are decoded at once.
            options: further arguments of the function.
        """
        row = rows.start
        while row < rows.stop:
            answer = self._some(name, columns, row, rows.stop, at_once, *options)
            if not isinstance(answer, Rows):
                row = min(self.ends[self.group_of(row)], rows.stop)
                yield answer
            elif answer.number:
                row += answer.number
                yield answer

    def _some(
        self, name: str, columns: Sequence[str], row: int, stop: int, at_once: int, *options: object
    ) -> Any:
        """Return an answer for the first rows; a second helper process reads row by row."""
        chunks = self.group_of(row), " ".join(columns)
        if chunks in self._costly:
            return Unreadable(COSTLY)
        if chunks not in self._single and at_once > 1:
            try:
                return self._ask(name, columns, row, stop, at_once, *options)
            except HelperEnded:
                self._single.add(chunks)
        try:
            return self._ask(name, columns, row, stop, 1, *options)
        except HelperEnded as error:
            if not error.crash:
                raise _killed(error) from error
            self._costly.add(chunks)
            return Unreadable(COSTLY)

    def _outline(self) -> Outline | Unreadable:
        for _ in range(2):
            try:
                return self._ask("outline", METADATA)
            except HelperEnded as error:
                last = error
        if not last.crash:
            raise _killed(last) from last
        return Unreadable(f"{COSTLY}; write the file again")

    def _ask(self, name: str, *arguments: object) -> Any:
        return self._helper.ask(os.path.abspath(self.path), self.version, name, arguments)  # noqa: PTH100


def version_of(path: str) -> tuple[int, ...]:
    """Return what changes when a file is replaced; nothing if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  # as `Files`
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class _OfThread(threading.local):
    """The helper process of a thread, and the last file, with whose next part it goes on."""

    def __init__(self) -> None:
        self.helper = Helper()
        self.file: ParquetFile | None = None


_own = _OfThread()


def parquet_file(path: str) -> ParquetFile:
    """Return a Parquet file, which is opened again only after another one, or when it has changed.

    Raises:
        MissingDependency, ImageError: as `ParquetFile`.
    """
    found = _own.file
    if found is None or (found.path, found.version) != (path, version_of(path)):
        _own.file = None
        found = _own.file = ParquetFile(path, _own.helper)
    return found


@contextmanager
def helper_ends() -> Iterator[None]:
    """End the helper process of this thread at the end, if there is one; also a decorator."""
    try:
        yield
    finally:
        _own.file = None
        _own.helper.end()


def _too_slow() -> VitzooError:
    return VitzooError(
        f"pyarrow takes more than {SECONDS:.0f} s for a few rows of a Parquet file, or for its "
        "footer; run the command again if the disk was slow, or leave the file out"
    )


def _killed(error: HelperEnded) -> VitzooError:
    return VitzooError(
        f"the process that reads Parquet files ended with {error}; run the command again, on a "
        "machine with more memory if it was full"
    )
