"""How results are shown: aligned lines, HTML tables for notebooks, and a short `repr`. Torch-free.

`__repr__ = brief` in a data class gives it a `repr` of a few lines. A function that returns several
results returns a `ResultList` or a `ResultTuple`, whose `repr` is a table.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Self, SupportsIndex, TypeVar, overload

from vitzoo.errors import printable

T = TypeVar("T")
MOST_ROWS = 100  # of a table
MOST_LINES, MOST_COLUMNS, MOST_ALONE = 5, 100, 120  # of the `repr`, and of its only line
MOST_SHOWN = 12  # elements of a sequence that are written one by one
MOST_OF_CELL, MOST_OF_WORD = 60, 70  # characters
NUMBER = re.compile(r"[-+~]?\d[\d,.]*(e[-+]\d+)?( ?[%kMBT]| [kMG]i?B)?( \(.*\))?")


def screen_width(text: str) -> int:
    """Return the number of columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def aligned(rows: Sequence[Sequence[str]], headings: Sequence[str] = ()) -> list[str]:
    """Write rows of printable texts as lines with aligned columns, numbers to the right.

    >>> aligned([["a.png", "cat", "97 %"], ["long.png", "dog", "3 %"]])
    ['a.png     cat  97 %', 'long.png  dog   3 %']
    """
    lines = [headings, *rows] if headings else rows
    widths = [max(map(screen_width, column)) for column in zip(*lines, strict=True)]
    right = [_are_numbers(column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            " " * (width - screen_width(text)) + text
            if to_the_right
            else text + " " * (width - screen_width(text))
            for text, width, to_the_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    ]


def _are_numbers(texts: Iterable[str]) -> bool:
    """Tell whether all texts that are not empty are numbers, with or without a unit."""
    given = [text for text in texts if text]
    return bool(given) and all(map(NUMBER.fullmatch, given))


def escaped_html(text: str) -> str:
    """Return a text as a notebook shows it."""
    from html import escape

    return escape(printable(text))


def html_table(
    rows: Iterable[Mapping[str, object]], title: str = "", notes: Iterable[str] = ()
) -> str:
    """Return rows as HTML for a notebook, with all texts escaped and numbers to the right.

    Args:
        rows: mappings with the same keys, which are the headings; None is an empty cell.
        title: a line above the table.
        notes: lines below it.

    >>> html_table([{"label": "<b>"}])  # doctest: +ELLIPSIS
    '<table><tr><th style="text-align: left">label</th></tr><tr><td ...>&lt;b&gt;</td></tr></table>'
    """

    every = [{key: cell(value) for key, value in row.items()} for row in rows]
    first = every[:MOST_ROWS]
    columns = list(zip(*(row.values() for row in first), strict=True))
    sides = ["right" if _are_numbers(column) else "left" for column in columns]

    def line(tag: str, texts: Iterable[str]) -> str:
        pairs = zip(sides, texts, strict=True)
        cells = (
            f'<{tag} style="text-align: {side}">{escaped_html(text)}</{tag}>'
            for side, text in pairs
        )
        return f"<tr>{''.join(cells)}</tr>"

    def alone(tag: str, text: str) -> str:
        return f"<{tag}>{escaped_html(text)}</{tag}>"

    lines = [line("th", map(printable, row)) for row in first[:1]]
    lines += [line("td", row.values()) for row in first]
    table = f"<table>{''.join(lines)}</table>" if every else ""
    more = [f"and {len(every) - MOST_ROWS} more"] if len(every) > MOST_ROWS else []
    above = alone("b", title) if title else ""
    return above + table + "".join(alone("p", note) for note in (*more, *notes))


def cell(value: Any) -> str:
    """Write a value of a table as a printable text; None and False are empty."""
    if value is None or value is False:
        return ""
    if value is True:
        return "yes"
    if isinstance(value, int):
        return f"{value:,}"
    if shape := getattr(value, "shape", ()):  # an array, no number of numpy
        return "x".join(map(str, shape))
    if isinstance(value, Mapping):
        value = tuple(value.items())
    if isinstance(value, tuple | list):
        return ", ".join(" ".join(map(cell, v)) if isinstance(v, tuple) else cell(v) for v in value)
    return printable(str(value))


class Table(Generic[T]):
    """Mixin of a sequence of results, which `repr` and notebooks show as a table; a slice is one.

    The class of the elements states in `_columns` the names of attributes to show.
    """

    __slots__ = ()

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> T: ...
    @overload
    def __getitem__(self, index: slice, /) -> Self: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> T | Self:
        found: Any = super().__getitem__(index)  # type: ignore[misc]  # of a sequence
        same: Any = type(self)
        return same(found) if isinstance(index, slice) else found

    def _cells(self) -> list[dict[str, object]]:
        """Return the values of each element by the heading of their column."""
        elements: list[Any] = list(self)  # type: ignore[call-overload]  # of a sequence
        names = getattr(type(elements[0]), "_columns", ()) if elements else ()
        columns = {name: [getattr(one, name) for one in elements] for name in names}
        known = {name: column for name, column in columns.items() if any(map(cell, column))}
        headings = [name.removesuffix("_note").replace("_", " ") for name in known]
        return [dict(zip(headings, row, strict=True)) for row in zip(*known.values(), strict=True)]

    def __repr__(self) -> str:
        rows = self._cells()
        if not rows:
            return super().__repr__()
        lines = []
        for row in rows[:MOST_ROWS]:
            *first, last = row.values()
            lines.append([*map(cut_cell, first), cell(last)])
        more = [f"and {len(rows) - MOST_ROWS} more"] if len(rows) > MOST_ROWS else []
        return "\n".join([*aligned(lines, list(rows[0])), *more])

    def _repr_html_(self) -> str:
        return html_table(self._cells())


def cut_cell(value: object) -> str:
    """Write a value that stands before others; the end of a path is kept."""
    text = cell(value)
    if isinstance(value, os.PathLike) and len(text) > MOST_OF_CELL:
        return f"...{text[3 - MOST_OF_CELL :]}"
    return cut(text, MOST_OF_CELL)


def cut(text: str, most: int = MOST_ALONE) -> str:
    """Return a text of at most `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


class ResultList(Table[T], list[T]):
    """A list of results."""


class ResultTuple(Table[T], tuple[T, ...]):
    """Several results, as a field of a frozen data class."""

    __slots__ = ()


class Names(tuple[T, ...]):
    """Names of classes, of which `repr` writes the first ones.

    >>> Names(["tench"] * 1000)
    ('tench', 'tench', 'tench', 'tench', 'tench', 'tench', ... 1,000 in all)
    """

    __slots__ = ()

    def __repr__(self) -> str:
        if len(self) <= MOST_SHOWN:
            return super().__repr__()
        first = ", ".join(cut(repr(one), MOST_OF_WORD // 2) for one in self[: MOST_SHOWN // 2])
        return f"({first}, ... {len(self):,} in all)"


def shown_as_png(figure: Any) -> Any:
    """Make notebooks show a figure of matplotlib that was made without `pyplot`."""
    figure._repr_png_ = partial(_png, figure)  # the name that notebooks call
    return figure


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def brief(value: Any) -> str:
    """Return the fields of a data class that differ from their defaults, in five lines at most."""
    from dataclasses import MISSING, fields  # which the help of commands does not import

    shown = {}
    for field in fields(value):
        made, own = field.default_factory, getattr(value, field.name)
        default = field.default if made is MISSING else made()
        # An array is never the default: comparing it has no single answer.
        usual = own is default or (type(own) is type(default) and bool(own == default))
        if not usual and field.name[0] != "_":
            shown[field.name] = own
    return laid_out(type(value).__name__, shown)


def laid_out(name: str, values: Mapping[str, object]) -> str:
    """Write a call with values, which are cut, in five lines at most.

    >>> laid_out("Spec", {"variant": "vit_b16", "image_size": (224, 224)})
    "Spec(variant='vit_b16', image_size=(224, 224))"
    """
    shown = [f"{key}={_word(value)}" for key, value in values.items()]
    if len(whole := f"{name}({', '.join(shown)})") <= MOST_ALONE:
        return whole
    lines = [f"{name}("]
    for i, text in enumerate(shown):
        word = text + ("," if i + 1 < len(shown) else "")
        if len(lines[-1]) + len(word) < MOST_COLUMNS - len(" ...)"):
            lines[-1] += f" {word}" if i else word
        elif len(lines) < MOST_LINES:
            lines.append(f"    {word}")
        else:
            return "\n".join([*lines[:-1], f"{lines[-1]} ...)"])
    return "\n".join(lines) + ")"


def _word(value: Any) -> str:
    """Return the value of a field in less than a line."""
    if getattr(value, "shape", ()):
        return f"<array {cell(value)}>"
    if isinstance(value, tuple | list | Mapping) and len(value) > MOST_SHOWN:
        return f"<{len(value):,} entries>"
    return cut(" ".join(repr(value).split()), MOST_OF_WORD)
