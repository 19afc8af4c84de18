"""Print the results of commands: a table on a terminal, tab-separated lines in a pipe, or JSON."""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, TextIO

import click

from vitzoo.display import screen_width
from vitzoo.errors import FirstUseWarning, UnknownName, VitzooError, printable
from vitzoo.text import (
    count as count,
    is_terminal,
    megabytes as megabytes,
    three_digits as three_digits,
)

MIN_WRAPPED = 24  # characters; the last column of a table wraps, but is never narrower than this
DOTS = "..."
PROMPT = "q quits, space shows the next page"  # of the pager
TABLES = "vitzoo.tables"  # in the context of a command that prints tables to a pipe, too
GAP = 2  # spaces between columns
MOST_HIDDEN = 3  # columns in the example of how to see them
LEAST_NOTE = 60  # columns; a note on stderr wraps, but is not narrower than this
Write = Callable[[Any], str]
PERCENT: Write = "{:.2f}".format
NOTHING: Mapping[str, Any] = MappingProxyType({})
_stdout: TextIO | None = None  # the real stdout, while a command runs
_usual_format = warnings.formatwarning


class Legend(NamedTuple):
    """A line below a table that explains those values of a column that occur.

    Args:
        title: what the values say.
        values: each value as the table shows it, and its meaning.
    """

    title: str
    values: Mapping[str, str]

    def line(self, cells: Sequence[str]) -> str:
        """Return the line for the cells of a column, empty if it has none of the values."""
        known = [f"{value} {text}" for value, text in self.values.items() if value in cells]
        return f"{self.title} {', '.join(known)}" if known else ""


class Fit(NamedTuple):
    """How a table fits a terminal that is too narrow for it.

    Args:
        hide: columns that are left out, the first one first; a note on stderr names them.
        shorter: how to write a column in fewer characters, before it is left out.
        notes: lines about shown columns, printed below the table; `COLUMN shorter` explains the
            shorter form.
        one_line: whether every row is one line; otherwise the last column wraps, and a table that
            is still too wide is printed as one block of lines for each row.
        headings: those of shorter forms that say less than the column, which counts as hidden.
        see: the option that shows hidden columns; their names are added.
    """

    hide: Sequence[str] = ()
    shorter: Mapping[str, Write] = NOTHING
    notes: Mapping[str, str | Legend] = NOTHING
    one_line: bool = False
    headings: Mapping[str, str] = NOTHING
    see: str = ""


AS_IT_IS = Fit()


class Context(click.Context):
    """The context of a command: stdout is for data, so what plugins print goes to stderr."""

    def invoke(self, callback: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a command's function."""
        global _stdout
        before = _stdout, sys.stdout, warnings.formatwarning
        _stdout, sys.stdout, warnings.formatwarning = data_stream(), sys.stderr, _format_warning
        try:
            return super().invoke(callback, *args, **kwargs)
        except UnknownName as error:
            self._name_command(error)
            raise
        finally:
            _stdout, sys.stdout, warnings.formatwarning = before

    def _name_command(self, error: UnknownName) -> None:
        """Add the same command with vitzoo's name to the error about a name elsewhere."""
        from vitzoo.advice.names import commands_here

        about = error.about
        error.complete()
        kinds = {one.name or "": isinstance(one, click.Argument) for one in self.command.params}
        sources = {self.get_parameter_source(name) for name, given in kinds.items() if not given}
        end = " ..." if click.core.ParameterSource.COMMANDLINE in sources else ""  # of options
        words: list[object] = []
        for name in filter(kinds.get, self.params):
            value = self.params[name]
            words += value if isinstance(value, tuple) else [value]
        uses = commands_here(about, [str(word) for word in words if word is not None])
        if uses:
            shown = " or ".join(f"{self.command_path} {use}{end}" for use in uses)
            error.args += (f"in a shell: {shown}",)


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Write a warning of vitzoo as one line, without its place in the code."""
    if issubclass(category, FirstUseWarning):
        return f"vitzoo: {message}\n"
    return _usual_format(message, category, filename, lineno, line)


def data_stream() -> TextIO:
    """Return the stdout with which the command began."""
    return _stdout or sys.stdout


def say(text: object) -> None:
    """Write a line to stderr, with escaped control characters."""
    click.echo(printable(str(text)), err=True)


def say_error(error: BaseException) -> None:
    """Write the message of an error to stderr."""
    text = str(error) or "there is not enough memory"
    lines = text.split("\n") if isinstance(error, VitzooError) else [text]
    for number, line in enumerate(lines):
        say(line if number else f"vitzoo: {line}")


def echo(text: str = "", *, nl: bool = True) -> None:
    """Write a line of data."""
    click.echo(text, file=data_stream(), nl=nl)


def print_tables() -> None:
    """Print in this command what a terminal shows, also if stdout is a pipe."""
    click.get_current_context().meta[TABLES] = True


def on_terminal() -> bool:
    """Tell whether stdout is a terminal, or gets what a terminal shows."""
    context = click.get_current_context(silent=True)
    return (context is not None and TABLES in context.meta) or is_terminal(data_stream())


class _Page(io.StringIO):
    """Keeps what a pager is going to show; for a table, it is the terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@contextmanager
def paged() -> Iterator[None]:
    """Show the data and the notes of a block in a pager, as git does, if stdout is a terminal.

    The pager is `PAGER`, or `less` with `LESS=FRX` and a prompt that names its keys. There is none
    on a dumb terminal, or if `PAGER` is empty or `cat`.
    """
    global _stdout
    command = os.environ.get("PAGER", "less").split()
    unpaged = command in ([], ["cat"]) or os.environ.get("TERM") in (None, "dumb")
    if unpaged or not is_terminal(data_stream()):
        yield
        return
    page, before = _Page(), (_stdout, sys.stderr)
    page.encoding = getattr(data_stream(), "encoding", None) or "utf-8"
    _stdout, sys.stderr = page, page if is_terminal(sys.stderr) else sys.stderr
    try:
        yield
    finally:
        _stdout, sys.stderr = before
    _show(page, command)


def _show(page: _Page, command: list[str]) -> None:
    """Run a pager until the user quits it; Ctrl-C is for the pager, and a missing one prints."""
    import signal
    import subprocess

    text = page.getvalue()
    env = {"LESS": f"FRXPs{PROMPT}$", "LV": "-c", **os.environ}
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        subprocess.run(  # noqa: S603  # the user's command
            command, input=text.encode(page.encoding), env=env, check=False
        )
    except OSError:
        echo(text, nl=False)
    finally:
        signal.signal(signal.SIGINT, before)


def print_json(data: Any) -> None:
    """Print data as JSON on stdout, in ASCII with JSON's escapes; dataclasses become objects."""
    echo(json.dumps(data, indent=2, default=_jsonable))


def print_rows(
    rows: Iterable[Any],
    columns: Sequence[str],
    *,
    as_json: bool = False,
    data: Any = None,
    only: str = "",
    pretty: Mapping[str, Write] | None = None,
    fit: Fit = AS_IT_IS,
    title: str = "",
) -> None:
    """Print rows: a table on a terminal, else tab-separated under a line of column names.

    Args:
        rows: mappings or dataclasses with at least the columns.
        columns: keys to print, in order; JSON has every key.
        as_json: print a JSON list instead.
        data: what JSON prints instead of the rows.
        only: print only the values of this key, one per line.
        pretty: how to write the values of a column on a terminal. These columns and columns of
            integers are right-aligned there.
        fit: what a narrow terminal shows.
        title: over the table, on a terminal only.
    """
    whole = isinstance(rows, Sequence)
    rows = (row if isinstance(row, Mapping) else _jsonable(row) for row in rows)
    if as_json:
        print_json(list(rows) if data is None else data)
    elif only:
        echo("".join(f"{_plain(row[only])}\n" for row in rows), nl=False)
    elif on_terminal():
        _print_table(list(rows), columns, pretty or {}, fit, printable(title))
    else:
        first = list(itertools.islice(rows, 1))  # if this raises, nothing is printed
        lines = [_line(columns)]
        for row in itertools.chain(first, rows):
            lines.append(_line([row[column] for column in columns]))
            if not whole:  # the next row may take a while
                echo("\n".join(lines))
                lines.clear()
        echo("\n".join(lines), nl=bool(lines))


def print_text(text: str) -> None:
    """Print a text in lines that a terminal is wide enough for."""
    echo("\n".join(wrapped(text, terminal_width())))


def terminal_width() -> int:
    """Return the number of columns of the terminal."""
    from shutil import get_terminal_size

    return get_terminal_size().columns


def print_fields(data: Mapping[str, Any], title: str = "") -> None:
    """Print a mapping, one line for each key."""
    rows = [{"field": key, "value": value} for key, value in data.items()]
    print_rows(rows, ("field", "value"), title=title)


def _print_table(
    rows: list[Mapping[str, Any]],
    columns: Sequence[str],
    pretty: Mapping[str, Write],
    fit: Fit,
    title: str,
) -> None:
    from vitzoo.registry.listing import HEADINGS

    integers = {c for c in columns if all(type(row[c]) in (int, type(None)) for row in rows)}
    pretty = dict.fromkeys(integers, "{:,}".format) | dict(pretty)
    cells = {c: [_encodable(HEADINGS.get(c, printable(c)))] for c in columns}
    for c in cells:
        cells[c] += [_encodable(_pretty(row[c], pretty.get(c, str))) for row in rows]
    terminal = terminal_width()
    titles = {c: cells[c][0] for c in columns}
    shown, notes = _fitted(cells, rows, fit, terminal)
    if not fit.one_line and len(shown) > 2 and _width(cells, shown, one_line=False) > terminal:
        for i in range(1, len(rows) + 1):
            if i > 1 or title:
                echo("" if i > 1 else title)
            print_fields({cells[c][0]: cells[c][i] for c in shown if cells[c][i]})
        return
    if title:
        echo(bold(title))
    _print_lines([cells[c] for c in shown], [c in pretty for c in shown], fit, terminal)
    for note in "\n".join(notes if rows else ()).splitlines():
        echo("\n".join(wrapped(note, terminal)))
    if hidden := [t for c, t in titles.items() if c not in shown or cells[c][0] != t]:
        width = max(terminal, LEAST_NOTE)
        note = f"vitzoo: hidden at {terminal} columns: {', '.join(hidden)}"
        see = f"; to see: {fit.see},{','.join(hidden[:MOST_HIDDEN])}" if fit.see else ""
        fits = len(note + see) <= width
        for line in [note + see] if fits else [*wrapped(note, width), *filter(None, [see[2:]])]:
            say(line)


def _fitted(
    cells: dict[str, list[str]], rows: list[Mapping[str, Any]], fit: Fit, terminal: int
) -> tuple[list[str], list[str]]:
    """Return the columns that a terminal shows, and their notes; shorten cells in place."""
    shown, notes = list(cells), dict(fit.notes)
    for column in filter(cells.__contains__, fit.hide):
        if _width(cells, shown, one_line=fit.one_line) <= terminal:
            break
        if column in fit.shorter:
            write = fit.shorter[column]
            heading = fit.headings.get(column, cells[column][0])
            cells[column] = [heading, *(_encodable(_pretty(row[column], write)) for row in rows)]
            notes[column] = fit.notes.get(f"{column} shorter", "")
        if _width(cells, shown, one_line=fit.one_line) > terminal:
            shown.remove(column)
    lines = {
        c: note.line(cells[c]) if isinstance(note, Legend) else note
        for c, note in notes.items()
        if c in shown
    }
    return shown, [lines[column] for column in shown if lines.get(column)]


def _print_lines(
    columns: list[list[str]], to_the_right: list[bool], fit: Fit, terminal: int
) -> None:
    """Print the cells of columns, headings first."""
    widths = [max(map(screen_width, column)) for column in columns]
    before = sum(widths[:-1]) + GAP * len(widths[:-1])
    for number, row in enumerate(zip(*columns, strict=True)):
        last = [row[-1]]
        if len(row) > 1 and not fit.one_line:
            last = wrapped(row[-1], max(MIN_WRAPPED, terminal - before))
        padded: list[str] = []
        for text, width, right in zip((*row[:-1], last[0]), widths, to_the_right, strict=True):
            space = " " * (width - screen_width(text))
            shown = text if number and padded else bold(text)  # the headings and the first column
            padded.append(space + shown if right else shown + space)
        echo((" " * GAP).join(padded).rstrip())
        for rest in last[1:]:
            echo(" " * before + rest)


def _width(cells: Mapping[str, list[str]], shown: Sequence[str], *, one_line: bool) -> int:
    """Return the least width of a table."""
    widths = [max(map(screen_width, cells[c])) for c in shown]
    last = widths[-1] if one_line else min(widths[-1], MIN_WRAPPED)
    return sum(widths[:-1]) + GAP * len(widths[:-1]) + last


def wrapped(text: str, width: int, most: int | None = None) -> list[str]:
    """Break a text into lines between words, so that a path stays whole; `most` limits the lines.

    A text with letters that take two columns is also broken within words.
    """
    from textwrap import TextWrapper

    text = _encodable(printable(text))
    wide = screen_width(text) > len(text)
    width = max(width // 2 if wide else width, len(DOTS))
    wrapper = TextWrapper(width, max_lines=most, placeholder=DOTS)
    wrapper.break_on_hyphens, wrapper.break_long_words = False, wide
    return wrapper.wrap(text) or [""]


def cut(text: str, width: int, *, front: bool = False) -> str:
    """Shorten a text to a number of columns; with `front`, its end stays."""
    text = _encodable(printable(text))
    if screen_width(text) <= width:
        return text
    kept = max(1, (width - len(DOTS)) // (1 if text.isascii() else 2))
    return DOTS + text[-kept:] if front else text[:kept] + DOTS


def bold(text: str) -> str:
    """Return a text in bold letters, unless colors are off."""
    plain = not text or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else click.style(text, bold=True)


def _encodable(text: str) -> str:
    """Write what the encoding of stdout lacks as escapes, before widths are computed."""
    encoding = getattr(data_stream(), "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _jsonable(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) else str(value)  # type: ignore[arg-type]


def _line(values: Sequence[Any]) -> str:
    """Return tab-separated values; most are printable, and listings have thousands."""
    cells = ["" if value is None else str(value) for value in values]
    return "\t".join(cells if "".join(cells).isprintable() else map(printable, cells))


def _plain(value: Any) -> str:
    return "" if value is None else printable(str(value))


def _pretty(value: Any, write: Write) -> str:
    return "-" if value is None else printable(write(value))
