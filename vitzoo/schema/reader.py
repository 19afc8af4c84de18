"""Strict reading of tables in registry files, specs and metadata.

A `Reader` checks the type of every value that is read from one table, and `done` refuses unknown
keys. The message of an error begins with the file and the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, overload

from vitzoo.errors import (
    RegistryError,
    UnknownOption,
    VitzooError,
    did_you_mean,
    short_repr,
)
from vitzoo.files.names import DEVICE
from vitzoo.text import escaped, quoted

T = TypeVar("T")
D = TypeVar("D")

NO_DEVICE = rf"(?!{DEVICE}(?![a-z0-9_-]))"  # a page of `vitzoo site` has the name
NAME = re.compile(rf"{NO_DEVICE}[a-z0-9][a-z0-9_]{{0,63}}")
NAMESPACE = re.compile(rf"{NO_DEVICE}[a-z][a-z0-9_-]{{0,63}}")
NAME_RULE = (
    "1 to 64 lower-case letters, digits and underscores, not starting with an underscore and not "
    "equal to the name of a Windows device, such as con"
)
LARGE = 2**53  # larger whole numbers are not exact as floats
MAX_PX = 65_536
MOST_COMPARED = 1000  # keys of a table, for a hint
REQUIRED: Any = object()
MISSING: Any = object()
COUNTED = {"params": "`vitzoo registry check FILE --write` counts and writes it"}


class Reader:
    """Reads one table strictly.

    Args:
        table: the mapping.
        where: its place for messages, such as `registry.toml: [variants.vit_b16]`.
        error: class of the errors that are raised.
        keys: of the table, from the top of its file.
    """

    def __init__(
        self,
        table: object,
        where: str,
        error: type[VitzooError] = RegistryError,
        keys: tuple[str, ...] = (),
    ) -> None:
        if type(table) is not dict and not isinstance(table, Mapping):
            raise error(f"{where}: expected a table, got {describe(table)}").at(*keys)
        self.table: Mapping[str, Any] = table
        self.where = where
        self.error = error
        self.keys = keys
        self._asked: list[str] = []

    def fail(self, message: str, key: str = "") -> VitzooError:
        """Return the error to raise for `message`, which begins with its key or is about `key`."""
        key = key or message.partition(" ")[0]
        return self.error(f"{self.where}: {message}").at(*self.keys, key)

    def __contains__(self, key: str) -> bool:
        return key in self.table

    @overload
    def take(self, key: str, kind: type[T]) -> T: ...
    @overload
    def take(self, key: str, kind: type[T], default: D) -> T | D: ...
    def take(self, key: str, kind: type[Any], default: Any = REQUIRED) -> Any:
        """Return the value of `key`, which must be a `kind`; a whole number may be a float."""
        self._asked.append(key)
        value = self.table.get(key, MISSING)
        if value is MISSING:
            if default is REQUIRED:
                inside = self._holding(key)
                hint = self._misspelt(key) or (inside and _dotted(self.where, inside))
                if not hint and key in COUNTED:
                    hint = f"; {COUNTED[key].replace('FILE', self.where.partition(': [')[0])}"
                raise self.fail(f"missing key {quoted(key)}{hint}", inside or key)
            return default
        if type(value) is kind:  # most values
            return value
        if kind is float and type(value) is int and abs(value) < LARGE:
            return float(value)
        if not isinstance(value, kind) or (type(value) is bool and kind not in (bool, object)):
            raise self.fail(f"{key} must be {_KINDS[kind]}, got {describe(value)}")
        return value

    def count(
        self, key: str, default: Any = REQUIRED, *, least: int = 1, most: int = LARGE - 1
    ) -> int:
        """Return a whole number from `least` to `most`."""
        value = self.take(key, int, default)
        if not least <= value <= most:
            limit = f" to {most}" if most < LARGE - 1 else ""
            raise self.fail(
                f"{key} must be a whole number from {least}{limit}, got {short_repr(value)}"
            )
        return int(value)

    def size(self, key: str, default: Any = REQUIRED) -> tuple[int, int]:
        """Return (height, width) in px, given as one number or a pair."""
        return pair(self.take(key, object, default), key, self.fail)

    def text(self, key: str, default: Any = REQUIRED) -> str:
        """Return a non-empty printable string."""
        value = self.table.get(key)
        if not isinstance(value, str):  # missing, or of a wrong type
            return str(self.take(key, str, default))
        self._asked.append(key)
        if not value.isprintable() or value.isspace() or not value:
            raise self.fail(f"{key} must be printable text, got {short_repr(value)}")
        return value

    def one_of(self, key: str, choices: tuple[str, ...], default: Any = REQUIRED) -> str:
        """Return one of `choices`."""
        value = self.take(key, str, default)
        if value not in choices:
            hint = did_you_mean(value, choices)
            raise self.fail(
                f"{key} must be one of {', '.join(choices)}, got {short_repr(value)}{hint}"
            )
        return str(value)

    def numbers(self, key: str, default: Any = REQUIRED) -> tuple[float, ...]:
        """Return a list of finite numbers as a tuple of floats."""
        value = self.take(key, list, default)
        if key in self.table:
            for item in value:
                if type(item) not in (int, float) or not abs(item) < LARGE:
                    raise self.fail(f"{key} must be a list of numbers, got {short_repr(value)}")
        return tuple(map(float, value))

    def texts(self, key: str, default: Any = REQUIRED) -> tuple[str, ...]:
        """Return a list of non-empty strings as a tuple."""
        value = self.take(key, list, default)
        if not all(isinstance(item, str) and item.strip() for item in value):
            raise self.fail(f"{key} must be a list of strings, got {short_repr(value)}")
        return tuple(value)

    def sub(self, key: str) -> Reader | None:
        """Return a reader of the table at `key`, None if the key is missing."""
        table = self.take(key, dict, None)
        keys = (*self.keys, key)
        return None if table is None else Reader(table, self._below(key), self.error, keys)

    def rows(self, key: str, parse: Callable[[str, Reader], T]) -> Iterator[T]:
        """Yield `parse(name, reader)` for every table in the table at `key`."""
        for name, row in self.take(key, dict, {}).items():
            if not NAME.fullmatch(name):
                where = self._below(f"{key}.{escaped(name)}")
                problem = f"{where}: the name {quoted(name)} must be {NAME_RULE}{renamed(name)}"
                raise self.error(problem).at(*self.keys, key, name)
            keys = (*self.keys, key, name)
            reader = Reader(row, self._below(f"{key}.{name}"), self.error, keys)
            yield parse(name, reader)
            reader.done()

    def given(self, *keys: str) -> list[str]:
        """Return which of the keys the table has; the others count as read."""
        self._asked += keys
        return [key for key in keys if key in self.table]

    def each(self, readers: Mapping[str, Callable[[Reader, str], Any]]) -> dict[str, Any]:
        """Return the value of each key that the table has, as `readers[key](self, key)` reads it.

        The other keys count as read.
        """
        self._asked += readers
        return {key: readers[key](self, key) for key in self.table if key in readers}

    def every(self, readers: Mapping[str, Callable[[Reader, str], Any]]) -> dict[str, Any]:
        """Return the value of every key, as `readers[key](self, key)` reads it."""
        return {key: read(self, key) for key, read in readers.items()}

    def flag(self, key: str) -> bool:
        """Return true or false."""
        return self.take(key, bool)

    def skip(self) -> None:
        """Count every key of the table as read."""
        self._asked += self.table

    def done(self) -> None:
        """Raise if the table has a key that was not read."""
        if self.table.keys() <= set(self._asked):
            return
        for key in self.table:
            if key not in self._asked:
                hint = did_you_mean(str(key), self._asked)
                error = UnknownOption if issubclass(UnknownOption, self.error) else self.error
                known = f"; known keys: {', '.join(sorted(set(self._asked)))}"
                problem = f"{self.where}: unknown key {quoted(key)}{hint or known}"
                raise error(problem).at(*self.keys, str(key))

    def _misspelt(self, key: str) -> str:
        left = [key for key in self.table if key not in self._asked]
        hint = did_you_mean(key, left[:MOST_COMPARED], limit=1)
        return hint.replace("did you mean", "did you misspell it as")

    def _holding(self, key: str) -> str:
        """Return the name of an inner table that has a key, empty if there is none."""
        tables = ((k, v) for k, v in self.table.items() if k not in self._asked)
        return next((str(k) for k, v in tables if isinstance(v, dict) and key in v), "")

    def _below(self, key: str) -> str:
        if ": [" in self.where and self.where.endswith("]"):
            return f"{self.where[:-1]}.{key}]"
        return f"{self.where}: [{key}]"


def _dotted(where: str, inside: str) -> str:
    """Say that the name of a table ends at its dot."""
    outer = where.rpartition(".")[2].removesuffix("]")
    return (
        f", which [{inside}] below it has; a name has no dots: write {outer}_{inside} instead of "
        f"{outer}.{inside}"
    )


def renamed(name: str) -> str:
    """Return the advice to write a name that is similar to a wrong one, empty if there is none."""
    plain = re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")
    return f"; write {plain!r}" if NAME.fullmatch(plain) and name.isascii() else ""


def pair(
    value: object, what: str, error: Callable[[str], VitzooError] = RegistryError
) -> tuple[int, int]:
    """Return `value` as (height, width) in px: one positive whole number, or two."""
    items = (value, value) if isinstance(value, int) else value
    if (
        not isinstance(items, list | tuple)
        or len(items) != 2
        or any(type(i) is not int or not 1 <= i <= MAX_PX for i in items)
    ):
        raise error(
            f"{what} must be a whole number of px from 1 to {MAX_PX}, or a (height, width) pair, "
            f"got {describe(value)}"
        )
    return (items[0], items[1])


_KINDS: dict[type, str] = {
    str: "a string",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a table",
}


def describe(value: object) -> str:
    """Return the shortened text of a value and its type, for a message."""
    return f"{short_repr(value)} ({type(value).__name__})"
