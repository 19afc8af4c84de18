"""TOML of files that may come from anyone, read with limits; torch-free."""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Sequence
from typing import Any

import rtoml  # tomllib and tomli, written in Python, take four to ten times as long

from vitzoo.errors import short_repr

MAX_DEPTH = 12  # nested tables and lists; the preprocessing of weights has 6
MAX_KEY = 128
MAX_DOTS = 32  # in a dotted key, whose parsing takes the square of their number
# A key follows the start of a line, a bracket or a comma. The possessive quantifiers keep the
# search linear: every part of a key is read once.
DOTTED = re.compile(
    rb"""(?:^|[\[{,])(?:[ \t]*+(?:[\w-]++|"(?:[^"\\\n]++|\\.)*+"|'[^'\n]*+')[ \t]*+\.){%d}"""
    % MAX_DOTS,
    re.MULTILINE,
)
PART = r"""(?:[\w-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
KEYS = rf"({PART}(?:\s*\.\s*{PART})*)"
HEADER = re.compile(rf"\s*\[\[?\s*{KEYS}\s*\]")
KEY = re.compile(rf"\s*{KEYS}\s*=")


def strict_toml(text: bytes) -> dict[str, Any]:
    """Parse TOML with keys and nesting of bounded length, in time that is linear in the text.

    Raises:
        ValueError: the text is not TOML, or exceeds a limit; the message begins with a verb.
    """
    if key := DOTTED.search(text):
        line = text.count(b"\n", 0, key.start() + 1) + 1
        raise ValueError(f"is nested more than {MAX_DEPTH} deep, in line {line}")
    table = loads(text)
    _check_shape(table)
    return table


def loads(text: bytes) -> dict[str, Any]:
    """Parse TOML without limits, for the files of installed packages.

    Raises:
        ValueError: the text is not TOML; the message begins with a verb.
    """
    try:
        if text.startswith(BOM_UTF8):  # of an editor; tomlkit and tomllib refuse it
            raise ValueError("it begins with a byte order mark; save it without one")  # noqa: TRY301
        return rtoml.loads(text.decode())
    except ValueError as error:
        found = re.fullmatch(r"duplicate key at line (\d+) .*", str(error))
        line = text.split(b"\n")[int(found[1]) - 1].decode().strip() if found else ""
        quoted = f", {short_repr(line)}" if line else ""
        raise ValueError(f"is not valid TOML: {error}{quoted}") from error


def _check_shape(data: object, depth: int = 0) -> None:
    """Refuse unprintable or long keys, and deeply nested tables and lists."""
    if depth > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} deep")
    for key in data if isinstance(data, dict) else ():
        if not key.isprintable() or len(key) > MAX_KEY:
            shown = ascii(key)[:MAX_KEY]
            raise ValueError(
                f"has the key {shown}; a key has at most {MAX_KEY} printable characters"
            )
    values = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    for value in values:
        _check_shape(value, depth + isinstance(value, dict | list))


def line_of(text: str, keys: Sequence[str]) -> int:
    """Return the line of the key at the end of `keys`, which begin at the top of the file.

    If the key is missing, it is the line of the innermost table around it; 0 if there is none.
    The key of a table in a list is its number, from 1.
    """
    table: tuple[str, ...] = ()
    lists: Counter[tuple[str, ...]] = Counter()
    best = most = 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := HEADER.match(line):
            found = table = _parts(header[1])
            if line.lstrip().startswith("[["):
                lists[table] += 1
                found = table = (*table, str(lists[table]))
        elif key := KEY.match(line):
            found = table + _parts(key[1])
        else:
            continue
        same = next((i for i, (a, b) in enumerate(zip(found, keys, strict=False)) if a != b), None)
        common = min(len(found), len(keys)) if same is None else same
        if common > most and common in (len(found), len(keys) - 1, len(keys)):
            best, most = number, common
    return best


def _parts(dotted: str) -> tuple[str, ...]:
    """Return the keys of a dotted key, without their quotes."""
    return tuple(part.strip("\"'") for part in re.findall(PART, dotted))
