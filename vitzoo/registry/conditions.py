"""The language of conditions on listed fields: `params<100M and license in (mit, apache-2.0)`.

    condition  = every ("or" every)*
    every      = unit (("and" | ",") unit)*
    unit       = "(" condition ")" | FIELD comparison
    comparison = ("=" | "==" | "!=" | "<" | "<=" | ">" | ">=" | "~") VALUE
               | "in" "(" VALUE ("," VALUE)* ")"

`where` reads a condition, and `required` the value of a keyword argument such as `params="<100M"`.
Torch-free.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from vitzoo.errors import InvalidOption, short_repr
from vitzoo.registry.listing import KINDS, check_field
from vitzoo.schema.reader import describe
from vitzoo.text import listed

EXAMPLE = "write conditions such as 'params<100M and (license=mit or license=apache-2.0)'"
TOKEN = re.compile(r"""\s*((?P<word>[^\s()<>=!~,'"]+|'[^']*'|"[^"]*")|<=|>=|!=|==|\S|\Z)""")
REST = re.compile(r"\s*([=<>~]|!=|in\s*\()", re.IGNORECASE)  # of a condition, without its field
NUMBER = re.compile(r"([-+]?)(\d+)(?:\.(\d+))?(?:e([-+]?\d+))?([kmbg]?)")
SIZE = re.compile(r"(\d+)x(\d+)")
UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
SYMBOLS = ("=", "==", "!=", *COMPARE, "~", "in")
NEEDS = {
    "text": "text",
    "number": "a number such as 100M",
    "size": "a number of px or HEIGHTxWIDTH such as 224x336",
}
SHOWN_DIGITS = 3  # `vitzoo list` writes 5,717,416 as 5.72M
SHOWN_VALUES = 12  # of a text field, in a note
DEEPEST = 20  # nested parentheses

Test = Callable[[Mapping[str, Any]], bool]


class Condition(NamedTuple):
    """A condition that was read.

    Args:
        test: tells whether a row meets it.
        fields: the last comparison with each field that it names.
    """

    test: Test
    fields: Mapping[str, Test]


def where(condition: str) -> Condition:
    """Read a condition.

    Texts are compared without regard to case; `~` tests whether a text contains another. Numbers
    may have a suffix k, M or B. A number is equal to those that round to it: `5.72M` to 5,717,416.
    A text with spaces or symbols is written in quotes. A missing value, such as the accuracy of a
    variant without weights, satisfies only `!=`.

    Raises:
        UnknownOption: the condition names an unknown field.
        InvalidOption: the condition cannot be read, or a value has the wrong type.

    >>> where("params<100M and depth in (12, 24)").test({"params": 86_567_656, "depth": 12})
    True
    """
    if not isinstance(condition, str):
        raise InvalidOption(f"a condition must be text, got {describe(condition)}; {EXAMPLE}")
    parser = _Parser(condition, "the condition")
    test = parser.condition()
    parser.read("'and', 'or' or the end", "")
    return Condition(test, parser.fields)


def required(field: str, value: object) -> Test:
    """Read the value that a field must have, and return the function that tests a row.

    Args:
        field: a key of `KINDS`.
        value: a value, the rest of a condition (`"<100M"`, `"in (mit, apache-2.0)"`), None for a
            missing value, or a function that accepts values.

    Raises:
        UnknownOption: the field is unknown.
        InvalidOption: the value cannot be read, or has the wrong type.
    """
    field = check_field(field)
    kind = KINDS[field]
    if callable(value):
        return lambda row: bool(value(row[field]))
    number = isinstance(value, int | float) and not isinstance(value, bool) and kind != "text"
    if value is None or number:
        return lambda row: bool(row[field] == value)
    if not isinstance(value, str):
        raise InvalidOption(
            f"{field} must be {NEEDS[kind]}, or a condition such as "
            f"{'~part' if kind == 'text' else '<100'!r}, got {describe(value)}"
        )
    plain = not REST.match(value)
    if kind == "text" and plain:
        return lambda row: row[field] is not None and row[field].lower() == value.lower()
    parser = _Parser(value, f"the value of {field}")
    test = parser.comparison(field, "=" if plain else "")
    parser.read("the end", "")
    return test


def unmet(conditions: Iterable[Condition], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say which values the fields of those comparisons have that no row meets."""
    every = {field: test for one in conditions for field, test in one.fields.items()}
    return [
        _values(field, [row[field] for row in rows if row[field] is not None])
        for field, test in every.items()
        if not any(map(test, rows))
    ]


class _Parser:
    """Reads a condition from left to right."""

    def __init__(self, text: str, what: str) -> None:
        self.shown = f"{what} {short_repr(text)}"
        self.tokens = TOKEN.finditer(text)
        self.next = next(self.tokens)
        self.fields: dict[str, Test] = {}

    def condition(self, depth: int = 0) -> Test:
        """Read conditions that `or` joins."""
        every = [self.every(depth)]
        while self.read("", "or"):
            every.append(self.every(depth))
        return lambda row: any(test(row) for test in every)

    def every(self, depth: int) -> Test:
        """Read conditions that `and` joins."""
        units = [self.unit(depth)]
        while self.read("", "and", ","):
            units.append(self.unit(depth))
        return lambda row: all(test(row) for test in units)

    def unit(self, depth: int) -> Test:
        if self.next[1] == "(" and depth == DEEPEST:
            self.fail(f"at most {DEEPEST} nested parentheses")
        if self.read("", "("):
            test = self.condition(depth + 1)
            self.read("'and', 'or' or ')'", ")")
            return test
        if self.next[1].lower() in ("and", "or", "in"):
            self.fail("a field")
        place = self.place()
        field = check_field(self.read("a field"), place)
        self.fields[field] = self.comparison(field)
        return self.fields[field]

    def comparison(self, field: str, symbol: str = "") -> Test:
        """Read an operator, unless it is given, and values; a missing value meets only `!=`."""
        text, place = KINDS[field] == "text", self.place()
        symbol = symbol or self.read(f"an operator ({' '.join(SYMBOLS)})", *SYMBOLS).lower()
        known = ("=", "!=", "~") if text else ("=", "!=", *COMPARE)
        if symbol not in (*known, "==", "in"):
            raise InvalidOption(
                f"{field} is {'text' if text else 'a number'} and is compared with "
                f"{', '.join(known)} or in, got {symbol!r}{place}; {EXAMPLE}"
            )
        if symbol == "in":
            self.read("'(' and a list of values", "(")
            tests = [self.value(field, "=")]
            while self.read("", ","):
                tests.append(self.value(field, "="))
            self.read("',' or ')'", ")")
        else:
            tests = [self.value(field, symbol if symbol in ("~", *COMPARE) else "=")]

        def met(row: Mapping[str, Any]) -> bool:
            value = row[field]
            return (value is not None and any(test(value) for test in tests)) != (symbol == "!=")

        return met

    def value(self, field: str, symbol: str) -> Callable[[Any], bool]:
        """Read a value, and return the function that compares others with it."""
        kind, place = KINDS[field], self.place()
        word = self.read("a value")
        text = (word[1:-1] if word[0] in "'\"" else word).lower()
        if kind == "text":
            return lambda value: text in value.lower() if symbol == "~" else text == value.lower()
        size = SIZE.fullmatch(text) if kind == "size" else None
        numbers = size.groups() if size else (text, text) if kind == "size" else (text,)
        tests: list[Any] = [_compared(number, symbol) for number in numbers]
        if None in tests:
            raise InvalidOption(
                f"{field} must be compared with {NEEDS[kind]}, got {short_repr(word)}{place}; "
                f"{EXAMPLE}"
            )
        return lambda value: all(map(operator.call, tests, _numbers(kind, value)))

    def read(self, expected: str, *wanted: str) -> str:
        """Read the next token if it is one of `wanted`, or any word if there are none of them.

        Another token is an error; if nothing is `expected`, "" is returned.
        """
        token = self.next
        if token[1].lower() in wanted if wanted else token["word"]:
            self.next = next(self.tokens, token)
            return token[1]
        if expected:
            self.fail(expected)
        return ""

    def place(self) -> str:
        return f" at character {self.next.start(1) + 1} of {self.shown}"

    def fail(self, expected: str) -> NoReturn:
        found = short_repr(self.next[1]) if self.next[1] else "the end"
        raise InvalidOption(
            f"cannot read {self.shown}: expected {expected} at character "
            f"{self.next.start(1) + 1}, got {found}; {EXAMPLE}"
        )


def _compared(text: str, symbol: str) -> Callable[[float], bool] | None:
    """Return the function that compares numbers with the one in a text, None if it has none.

    A number is equal to those that round to it as it is written, with at least `SHOWN_DIGITS`
    digits: `86M` is 86.0M.
    """
    if not (match := NUMBER.fullmatch(text)):
        return None
    sign, whole, decimals, exponent, unit = match.groups(default="")
    wanted = float(f"{sign}{whole}.{decimals}e{exponent or 0}") * UNITS[unit]
    if symbol != "=":
        return lambda number: COMPARE[symbol](number, wanted)
    digits = len((whole + decimals).lstrip("0"))
    last = int(exponent or 0) - len(decimals) - max(0, SHOWN_DIGITS - digits)  # power of ten
    slack = float(f"5e{last - 1}") * UNITS[unit]
    return lambda number: number == wanted or abs(number - wanted) < slack


def _numbers(kind: str, value: Any) -> tuple[float, ...]:
    """Return the number of a field, or (height, width) in px."""
    if kind == "number":
        return (value,)
    height, _, width = str(value).partition("x")
    return int(height), int(width or height)


def _values(field: str, values: list[Any]) -> str:
    if not values:
        return f"{field} is not known for any of them"
    if KINDS[field] != "number":
        return f"{field} has the values {listed(sorted(set(map(str, values))), SHOWN_VALUES)}"
    return f"{field} has values from {min(values):,} to {max(values):,}"
