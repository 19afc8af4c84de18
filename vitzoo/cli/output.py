"""Rows to the screen: a table on a terminal, tab-separated when piped, JSON on request."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

import click

_kept: TextIO | None = None  # stdout, while a command runs


class Context(click.Context):
    """The context of a command, which keeps stdout for data: what plugins print goes to stderr."""

    def invoke(self, callback: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a command's function."""
        global _kept
        before = _kept, sys.stdout
        _kept, sys.stdout = data_stream(), sys.stderr
        try:
            return super().invoke(callback, *args, **kwargs)
        finally:
            _kept, sys.stdout = before


def data_stream() -> TextIO:
    """Return the stream for data: the stdout with which the command began."""
    return _kept or sys.stdout


def echo(text: str = "", *, nl: bool = True) -> None:
    """Write a line of data."""
    click.echo(text, file=data_stream(), nl=nl)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")


def on_terminal() -> bool:
    """Tell whether stdout is a terminal."""
    return data_stream().isatty()


def print_json(data: Any) -> None:
    """Print data as JSON on stdout."""
    echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def print_rows(
    rows: Iterable[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    pretty: Mapping[str, Callable[[Any], str]] | None = None,
    headings: Mapping[str, str] | None = None,
    title: str | None = None,
) -> None:
    """Print rows: a table on a terminal, else tab-separated under a line of column names.

    Args:
        rows: mappings with at least the columns.
        columns: keys to print, in order.
        pretty: how to write the values of a column on a terminal; right-aligned there.
        headings: shorter names of columns, on a terminal only.
        title: over the table, on a terminal only.
    """
    rows = iter(rows)
    first = next(rows, None)  # an error in making it comes before anything is printed
    rows = itertools.chain([] if first is None else [first], rows)
    if not on_terminal():
        echo("\t".join(columns))
        for row in rows:
            echo("\t".join(_plain(row[column]) for column in columns))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        right = column in (pretty or {})
        table.add_column(
            (headings or {}).get(column, column.replace("_", " ")),
            justify="right" if right else "left",
            no_wrap=i == 0 or right,
            overflow="fold" if i == len(columns) - 1 else "ellipsis",
            style="bold" if i == 0 else None,
        )
    for row in rows:
        cells = (_pretty(row[column], (pretty or {}).get(column)) for column in columns)
        table.add_row(*map(Text, cells))
    Console(file=data_stream(), highlight=False).print(table)


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


def _plain(value: Any) -> str:
    return "" if value is None else str(value).replace("\t", " ").replace("\n", " ")


def _pretty(value: Any, write: Callable[[Any], str] | None) -> str:
    if value is None:
        return "-"
    return write(value) if write else str(value)
