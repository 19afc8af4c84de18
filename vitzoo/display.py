"""Aligned lines for terminals, and HTML tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vitzoo.errors import printable

MOST_ROWS = 100  # of a table in a notebook


def screen_width(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Write rows of printable texts as lines with aligned columns.

    >>> aligned([["a.png", "cat", "97 %"], ["long.png", "dog", "3 %"]])
    ['a.png     cat  97 %', 'long.png  dog  3 %']
    """
    widths = [max(map(screen_width, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text + " " * (width - screen_width(text))
            for text, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def html_table(
    rows: Iterable[Mapping[str, object]], title: str = "", notes: Iterable[str] = ()
) -> str:
    """Return rows as HTML for a notebook, with all texts escaped.

    Args:
        rows: mappings with the same keys, which are the headings; None is an empty cell.
        title: a line above the table.
        notes: lines below it.

    >>> html_table([{"label": "<b>"}])
    '<table><tr><th>label</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    from html import escape

    def shown(tag: str, value: object) -> str:
        return f"<{tag}>{escape(printable('' if value is None else str(value)))}</{tag}>"

    every = list(rows)
    lines = [list(every[0]), *(row.values() for row in every[:MOST_ROWS])] if every else []
    cells = ("".join(shown("td" if i else "th", v) for v in line) for i, line in enumerate(lines))
    table = f"<table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table>" if every else ""
    more = [f"and {len(every) - MOST_ROWS} more"] if len(every) > MOST_ROWS else []
    above = shown("b", title) if title else ""
    return above + table + "".join(shown("p", note) for note in (*more, *notes))
