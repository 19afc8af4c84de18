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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn

from vitzoo.errors import InvalidOption, short_repr
from vitzoo.registry.listing import KINDS, check_field
from vitzoo.schema.reader import describe
from vitzoo.text import listed

EXAMPLE = "write conditions such as 'params<100M and (license=mit or license=apache-2.0)'"
TOKEN = re.compile(
    r"""\s*(?P<token><=|>=|!=|==|[=<>~(),]|'[^']*'|"[^"]*"|[^\s()<>=!~,'"]+|\S)|\s+\Z"""
)
NUMBER = re.compile(r"([-+]?)(\d+)(?:\.(\d+))?(?:e([-+]?\d+))?([kmbg]?)")
SIZE = re.compile(r"(\d+)x(\d+)")
UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda value, part: part in value,
}
OF_NUMBERS = ("=", "!=", "<", "<=", ">", ">=", "in")
OPERATORS = {"text": ("=", "!=", "~", "in"), "number": OF_NUMBERS, "size": OF_NUMBERS}
SYMBOLS = ("=", "==", "!=", "<", "<=", ">", ">=", "~", "in")
NO_WORD = (*SYMBOLS[:-1], "!", "(", ")", ",", "'", '"', "")  # "": the end
NEEDS = {
    "text": "text",
    "number": "a number such as 100M",
    "size": "a number of px or HEIGHTxWIDTH such as 224x336",
}
SHOWN_DIGITS = 3  # `vitzoo list` writes 5,717,416 as 5.72M
SHOWN_VALUES = 12  # of a text field, in a note
LONGEST = 2_000  # characters
DEEPEST = 20  # nested parentheses

Row = Mapping[str, Any]
Test = Callable[[Row], bool]


class Token(NamedTuple):
    """A word, a symbol or a quoted text, and its position: 1 for the first character."""

    text: str
    position: int

    @property
    def quoted(self) -> bool:
        """Whether the token is a text in quotes."""
        return self.text[:1] in ("'", '"') and len(self.text) > 1


class Number(NamedTuple):
    """A number, and how far an equal number may be from it."""

    value: float
    slack: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """Compares a field with values; a missing value meets only `!=`.

    Args:
        field: a key of `KINDS`.
        symbol: an operator; `in` is written as `=` with several values.
        values: one of them must match: lower-case text, `Number`, or (height, width) in px.
    """

    field: str
    symbol: str
    values: tuple[Any, ...]

    def __call__(self, row: Row) -> bool:
        """Tell whether a row meets the comparison."""
        value = row[self.field]
        if value is None:
            return self.symbol == "!="
        if self.symbol == "!=":
            return not self._matches(value, "=")
        return self._matches(value, self.symbol)

    def _matches(self, value: Any, symbol: str) -> bool:
        compare = COMPARE[symbol]
        if KINDS[self.field] == "size":  # height and width must both match
            sides = _sides(str(value)) or (0, 0)
            return any(all(map(compare, sides, wanted)) for wanted in self.values)
        if KINDS[self.field] == "number":
            return any(
                (symbol == "=" and abs(value - number) < slack) or compare(value, number)
                for number, slack in self.values
            )
        value = value.lower() if isinstance(value, str) else value
        return any(compare(value, wanted) for wanted in self.values)


@dataclass(frozen=True)
class Joined:
    """Several conditions: all of them must be met, or any."""

    word: Literal["and", "or"]
    parts: tuple[Test, ...]

    def __call__(self, row: Row) -> bool:
        """Tell whether a row meets the conditions."""
        return (all if self.word == "and" else any)(part(row) for part in self.parts)


def where(condition: str) -> Test:
    """Read a condition, and return the function that tells whether a row meets it.

    Texts are compared without regard to case; `~` tests whether a text contains another. Numbers
    may have a suffix k, M or B. A number is equal to those that round to it: `5.72M` to 5,717,416.
    A text with spaces or symbols is written in quotes. A missing value, such as the accuracy of a
    variant without weights, satisfies only `!=`.

    Raises:
        UnknownOption: the condition names an unknown field.
        InvalidOption: the condition cannot be read, or a value has the wrong type.

    >>> where("params<100M and depth in (12, 24)")({"params": 86_567_656, "depth": 12})
    True
    """
    if not isinstance(condition, str):
        raise InvalidOption(f"a condition must be text, got {describe(condition)}; {EXAMPLE}")
    parser = _Parser(condition, "the condition")
    test = parser.condition()
    parser.end("'and', 'or' or the end")
    return test


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
    if value is None:
        return lambda row: row[field] is None
    if callable(value):
        return lambda row: bool(value(row[field]))
    if not isinstance(value, str):
        if kind == "text" or isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidOption(
                f"{field} must be {NEEDS[kind]}, or a condition such as "
                f"{'~part' if kind == 'text' else '<100'!r}, got {describe(value)}"
            )
        return Comparison(field, "=", ((value, value) if kind == "size" else Number(value),))
    parser = _Parser(value, f"the value of {field}")
    if kind == "text" and not parser.starts_with_operator():
        return Comparison(field, "=", (value.lower(),))
    test = parser.comparison(field, symbol="" if parser.starts_with_operator() else "=")
    parser.end("the end")
    return test


class _Parser:
    """Reads a condition from left to right."""

    def __init__(self, text: str, what: str) -> None:
        if len(text) > LONGEST:
            raise InvalidOption(f"{what} must have at most {LONGEST} characters, got {len(text)}")
        self.text, self.what = text, what
        matches = [match for match in TOKEN.finditer(text) if match["token"]]
        self.tokens = [Token(match["token"], match.start("token") + 1) for match in matches]
        self.tokens.append(Token("", len(text) + 1))  # the end
        self.at = 0
        self.depth = 0

    def condition(self) -> Test:
        return self._joined("or", lambda: self._joined("and", self.unit, ","))

    def unit(self) -> Test:
        if not self.take("("):
            return self.comparison(self.field())
        self.depth += 1
        if self.depth > DEEPEST:
            self.fail(f"at most {DEEPEST} nested parentheses", self.tokens[self.at - 1])
        test = self.condition()
        if not self.take(")"):
            self.fail("'and', 'or' or ')'")
        self.depth -= 1
        return test

    def field(self) -> str:
        token = self.tokens[self.at]
        if token.text.lower() in ("and", "or", "in"):
            self.fail("a field")
        place = f" at character {token.position} of {self._shown()}"
        return check_field(self.word("a field").text, place)

    def comparison(self, field: str, *, symbol: str = "") -> Comparison:
        token, kind = self.tokens[self.at], KINDS[field]
        if not (symbol := symbol or self.take(*SYMBOLS)):
            self.fail(f"an operator ({' '.join(SYMBOLS)})")
        symbol = "=" if symbol == "==" else symbol
        if symbol not in OPERATORS[kind]:
            known = ", ".join(OPERATORS[kind][:-1])
            raise InvalidOption(
                f"{field} is {'text' if kind == 'text' else 'a number'} and is compared with "
                f"{known} or in, got {symbol!r} at character {token.position} of {self._shown()}; "
                f"{EXAMPLE}"
            )
        if symbol != "in":
            return Comparison(field, symbol, (self.value(field),))
        if not self.take("("):
            self.fail("'(' and a list of values")
        values = [self.value(field)]
        while self.take(","):
            values.append(self.value(field))
        if not self.take(")"):
            self.fail("',' or ')'")
        return Comparison(field, "=", tuple(values))

    def value(self, field: str) -> Any:
        """Read a value of the type of a field."""
        token, kind = self.word("a value"), KINDS[field]
        text = (token.text[1:-1] if token.quoted else token.text).lower()
        value = text if kind == "text" else _sides(text) if kind == "size" else _number(text)
        if value is None:
            raise InvalidOption(
                f"{field} must be compared with {NEEDS[kind]}, got {short_repr(token.text)} at "
                f"character {token.position} of {self._shown()}; {EXAMPLE}"
            )
        return value

    def starts_with_operator(self) -> bool:
        first = self.tokens[0].text.lower()
        return first in SYMBOLS and (first != "in" or self.tokens[1].text == "(")

    def word(self, what: str) -> Token:
        """Read a word or a quoted text."""
        token = self.tokens[self.at]
        if token.text in NO_WORD:
            self.fail(what)
        self.at += 1
        return token

    def take(self, *wanted: str) -> str:
        """Read the next token if it is one of `wanted`, and return it; else return ""."""
        text = self.tokens[self.at].text.lower()
        if text not in wanted:
            return ""
        self.at += 1
        return text

    def end(self, expected: str) -> None:
        if self.tokens[self.at].text:
            self.fail(expected)

    def fail(self, expected: str, token: Token | None = None) -> NoReturn:
        token = token or self.tokens[self.at]
        found = short_repr(token.text) if token.text else "the end"
        raise InvalidOption(
            f"cannot read {self._shown()}: expected {expected} at character {token.position}, got "
            f"{found}; {EXAMPLE}"
        )

    def _joined(self, word: Literal["and", "or"], part: Callable[[], Test], also: str = "") -> Test:
        parts = [part()]
        while self.take(word, also or word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Joined(word, tuple(parts))

    def _shown(self) -> str:
        return f"{self.what} {short_repr(self.text)}"


def comparisons(test: Test) -> Iterator[Comparison]:
    """Return the comparisons of a condition that `where` has read."""
    if isinstance(test, Comparison):
        yield test
    for part in test.parts if isinstance(test, Joined) else ():
        yield from comparisons(part)


def unmet(tests: Iterable[Test], rows: Sequence[Row]) -> list[str]:
    """Say which values the fields of those comparisons have that no row meets."""
    every = {one.field: one for test in tests for one in comparisons(test)}
    return [
        _values(field, [row[field] for row in rows if row[field] is not None])
        for field, one in every.items()
        if not any(map(one, rows))
    ]


def _values(field: str, values: list[Any]) -> str:
    if not values:
        return f"{field} is not known for any of them"
    if KINDS[field] != "number":
        return f"{field} has the values {listed(sorted(set(map(str, values))), SHOWN_VALUES)}"
    return f"{field} has values from {min(values):,} to {max(values):,}"


def _number(text: str) -> Number | None:
    """Read a number; it is equal to numbers that round to it as it is written.

    At least `SHOWN_DIGITS` digits count: `86M` is 86.0M.
    """
    if not (match := NUMBER.fullmatch(text)):
        return None
    sign, whole, decimals, exponent, unit = match.groups(default="")
    digits = len((whole + decimals).lstrip("0"))
    last = int(exponent or 0) - len(decimals) - max(0, SHOWN_DIGITS - digits)  # power of ten
    value = float(f"{sign}{whole}.{decimals}e{exponent or 0}")
    return Number(value * UNITS[unit], float(f"5e{last - 1}") * UNITS[unit])


def _sides(text: str) -> tuple[float, float] | None:
    """Return (height, width) of a size written as one number or as HEIGHTxWIDTH."""
    if match := SIZE.fullmatch(text):
        return float(match[1]), float(match[2])
    number = _number(text)
    return None if number is None else (number.value, number.value)
