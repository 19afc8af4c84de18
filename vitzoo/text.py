"""Texts for messages, terminals and notebooks: names of tensors, sizes, lines and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vitzoo.errors import printable

MOST_ROWS = 100  # of a table in a notebook
UNWRITABLE = (OSError, ValueError, AttributeError)  # of a stream that is full, closed or missing


def fold(names: Iterable[str]) -> list[str]:
    """Join tensor names that differ only in the number of their block.

    >>> fold(["pos_embed", "blocks.0.norm1.bias", "blocks.1.norm1.bias"])
    ['pos_embed', 'blocks.{0-1}.norm1.bias']
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?\.)(\d+)(\..*)", name)
        before, number, after = match.groups() if match else (name, -1, "")
        groups.setdefault((before, after), []).append(int(number))
    return [
        before if numbers == [-1] else f"{before}{_ranges(sorted(numbers))}{after}"
        for (before, after), numbers in groups.items()
    ]


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
    return text if text.isdigit() else f"{{{text}}}"


def px(size: tuple[int, int] | None) -> str:
    """Write (height, width) in px: one number for a square, else HEIGHTxWIDTH; empty for None."""
    if size is None:
        return ""
    height, width = size
    return str(height) if height == width else f"{height}x{width}"


def megabytes(size: int) -> str:
    """Write a number of bytes in megabytes of 10^6.

    >>> megabytes(346284714), megabytes(825712), megabytes(2529678224)
    ('346 MB', '0.826 MB', '2530 MB')
    """
    value = size / 10**6
    return f"{value:.0f} MB" if value >= 100 else f"{value:.3g} MB"


def is_terminal(stream: Any) -> bool:
    """Tell whether a standard stream, which may be missing or closed, is a terminal."""
    try:
        return bool(stream.isatty())
    except UNWRITABLE:
        return False


def escaped(text: str) -> str:
    """Write a tensor name in ASCII, so that similar letters of other alphabets are seen."""
    return ascii(text)[1:-1]


def listed(names: list[str], count: int = 10) -> str:
    """Join the first names, escaped, and the number of the others."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(map(escaped, names[:count])) + more


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
