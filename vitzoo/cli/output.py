"""Print the results of commands: a table on a terminal, tab-separated lines in a pipe, or JSON."""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import partial
from typing import Any, TextIO

import click

from vitzoo.errors import FirstUseWarning, printable
from vitzoo.report import is_terminal

MIN_WRAPPED = 24  # characters; the last column of a table wraps, but is never narrower than this
HEADINGS = {"image_size": "px", "num_classes": "classes"}  # on a terminal
_stdout: TextIO | None = None  # the real stdout, while a command runs
_usual_format = warnings.formatwarning

flag = partial(click.option, is_flag=True)
json_option = flag("--json", "as_json", help="Print JSON.")
force_option = flag("--force", help="Overwrite the file if it exists.")


class Context(click.Context):
    """The context of a command: stdout is for data, so what plugins print goes to stderr."""

    def invoke(self, callback: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a command's function."""
        global _stdout
        before = _stdout, sys.stdout, warnings.formatwarning
        _stdout, sys.stdout, warnings.formatwarning = data_stream(), sys.stderr, _format_warning
        try:
            return super().invoke(callback, *args, **kwargs)
        finally:
            _stdout, sys.stdout, warnings.formatwarning = before


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


def echo(text: str = "", *, nl: bool = True) -> None:
    """Write a line of data."""
    click.echo(text, file=data_stream(), nl=nl)


def on_terminal() -> bool:
    """Tell whether stdout is a terminal."""
    return is_terminal(data_stream())


def print_json(data: Any) -> None:
    """Print data as JSON on stdout, in ASCII with JSON's escapes; dataclasses become objects."""
    echo(json.dumps(data, indent=2, default=_jsonable))


def print_rows(
    rows: Iterable[Any],
    columns: Sequence[str],
    *,
    as_json: bool = False,
    only: str = "",
    pretty: Mapping[str, Callable[[Any], str]] | None = None,
    optional: Sequence[str] = (),
    title: str = "",
) -> None:
    """Print rows: a table on a terminal, else tab-separated under a line of column names.

    A table that is wider than the terminal is printed as one block of lines for each row.

    Args:
        rows: mappings or dataclasses with at least the columns.
        columns: keys to print, in order; JSON has every key.
        as_json: print a JSON list instead.
        only: print only the values of this key, one per line.
        pretty: how to write the values of a column on a terminal. These columns and columns of
            integers are right-aligned there.
        optional: columns that a narrow terminal does not show; the first is left out first.
        title: over the table, on a terminal only.
    """
    rows = (asdict(row) if is_dataclass(row) else row for row in rows)  # type: ignore[arg-type]
    if as_json:
        print_json(list(rows))
    elif only:
        echo("".join(f"{_plain(row[only])}\n" for row in rows), nl=False)
    elif on_terminal():
        _print_table(list(rows), columns, pretty or {}, optional, title)
    else:
        first = list(itertools.islice(rows, 1))  # if this raises, nothing is printed
        echo("\t".join(map(_plain, columns)))
        for row in itertools.chain(first, rows):
            echo("\t".join(_plain(row[column]) for column in columns))


def print_fields(data: Mapping[str, Any], title: str = "") -> None:
    """Print a mapping, one line for each key."""
    rows = [{"field": key, "value": value} for key, value in data.items()]
    print_rows(rows, ("field", "value"), title=title)


def _print_table(
    rows: list[Mapping[str, Any]],
    columns: Sequence[str],
    pretty: Mapping[str, Callable[[Any], str]],
    optional: Sequence[str],
    title: str,
) -> None:
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    integers = {c for c in columns if all(type(row[c]) in (int, type(None)) for row in rows)}
    pretty = dict.fromkeys(integers, "{:,}".format) | dict(pretty)
    cells = {c: [_pretty(row[c], pretty.get(c, str)) for row in rows] for c in columns}
    names = {c: HEADINGS.get(c, printable(c.replace("_", " "))) for c in columns}
    title = printable(title)
    widths = {c: max(map(cell_len, [names[c], *cells[c]])) for c in columns}
    console = Console(file=data_stream(), highlight=False)
    shown, leaving = list(columns), iter(optional)
    while not (fits := _width([widths[c] for c in shown]) <= console.width):
        if (column := next(leaving, None)) is None:
            break
        shown.remove(column)
    if not fits and len(shown) > 2:
        for i in range(len(rows)):
            if i or title:
                echo("" if i else title)
            print_fields({names[c]: cells[c][i] for c in shown if cells[c][i]})
        return
    table = Table(
        title=Text(title, style="italic") if title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for i, column in enumerate(shown):
        table.add_column(
            Text(names[column]),
            justify="right" if column in pretty else "left",
            no_wrap=len(shown) > 2 and i < len(shown) - 1,
            overflow="fold",
            style="bold" if i == 0 else None,
        )
    for row in zip(*(cells[c] for c in shown), strict=True):
        table.add_row(*map(Text, row))
    with console.capture() as drawn:
        console.print(table)
    echo(drawn.get(), nl=False)


def _width(widths: list[int]) -> int:
    """Return the least width of a table whose last column may wrap."""
    return sum(widths[:-1]) + 2 * len(widths[:-1]) + min(widths[-1], MIN_WRAPPED)


def count(number: int) -> str:
    """Write a count for people: 86.6M, 5.72M, 1.01B.

    >>> count(86567656)
    '86.6M'
    """
    for unit, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{suffix}"
    return str(number)


def megabytes(size: int) -> str:
    """Write a number of bytes in megabytes of 10^6.

    >>> megabytes(346284714), megabytes(825712), megabytes(2529678224)
    ('346 MB', '0.826 MB', '2530 MB')
    """
    value = size / 10**6
    return f"{value:.0f} MB" if value >= 100 else f"{value:.3g} MB"


def _jsonable(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) else str(value)  # type: ignore[arg-type]


def _plain(value: Any) -> str:
    return "" if value is None else printable(str(value))


def _pretty(value: Any, write: Callable[[Any], str]) -> str:
    return "-" if value is None else printable(write(value))
