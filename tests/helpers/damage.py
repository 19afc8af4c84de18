"""Damaged copies of valid files, drawn from a seed: `damaged_json` and `damaged_tensors`.

Each function returns the kind of the damage, for messages, and the bytes of the file.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

HOLE = "the place of a hostile value"
VALUES = {  # JSON texts, by what they are
    **{text: text for text in ("null", "true", "false", "0", "-1", "1", "2", "0.5", "[]", "{}")},
    **{text: text for text in ("NaN", "Infinity", "-Infinity", "1e308", "-1e-320", "1E400")},
    **{str(n): str(n) for n in (7, 64, 4097, 65537, 2**31, 2**53, 2**63, 2**64, -(2**53))},
    "401 digits": "1" + "0" * 400,
    "5,000 digits": "9" * 5000,
    "an empty text": '""',
    "spaces": '"  "',
    "a number as a text": '"8"',
    "digits that are not ASCII": '"٣"',
    "a lone surrogate": r'"\ud800"',
    "a byte of a file name": r'"\udcff"',
    "a null byte": r'"a\u0000b"',
    "a terminal escape": r'"\u001b[2J"',
    "a path": '"../../../etc/passwd"',
    "an absolute path": '"/dev/zero"',
    "an address": '"hf://acme/net@main/a.safetensors"',
    "a pattern": '"(a+)+$"',
    "a megabyte": json.dumps("x" * 2**20),
    "a list of texts": '["a", "b"]',
    "a list of numbers": "[1, 2, 3, 4]",
    "a list of large numbers": "[1e308, 9007199254740993, -1]",
    "a long list": json.dumps([0] * 100_000),
    "a table": '{"a": {"b": [1]}}',
    "a wide table": json.dumps({str(i): i for i in range(20_000)}),
    "200 lists": "[" * 200 + "]" * 200,
    "900 lists": "[" * 900 + "]" * 900,
    "900 tables": '{"a":' * 900 + "1" + "}" * 900,
    "20,000 lists": "[" * 20_000 + "]" * 20_000,
}
KEYS = ("", "a", "\ud800", "a\0b", "x" * 5000, "__class__", "../a", "\x1b[2J")


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path of every value in tables and lists."""
    yield path
    inner = value.items() if isinstance(value, dict) else ()
    inner = enumerate(value) if isinstance(value, list) else inner
    for key, one in inner:
        yield from places(one, (*path, key))


def at(value: Any, path: tuple) -> Any:
    """Return the value at a path."""
    for key in path:
        value = value[key]
    return value


def changed(draw: random.Random, table: Any) -> tuple[str, str]:
    """Return JSON in which one value, key or table is another one."""
    table = json.loads(json.dumps(table))
    *outer, last = draw.choice([path for path in places(table) if path])
    holder = at(table, outer)
    where = ".".join(map(str, (*outer, last)))
    how = draw.choice(["value"] * 8 + ["removed", "key", "added", "swapped", "twice"])
    if how == "value":
        name = draw.choice(sorted(VALUES))
        holder[last] = HOLE
        return f"{where} is {name}", json.dumps(table).replace(json.dumps(HOLE), VALUES[name])
    if how == "removed" or not isinstance(holder, dict):
        del holder[last]
        return f"{where} removed", json.dumps(table)
    if how == "swapped":
        other = draw.choice(list(holder))
        holder[last], holder[other] = holder[other], holder[last]
        return f"{where} swapped with {other}", json.dumps(table)
    if how == "twice":
        text = json.dumps(holder)
        double = f"{text[:-1]}, {json.dumps(last)}: {draw.choice([*VALUES.values()])}}}"
        return f"{where} twice", json.dumps(table).replace(text, double, 1)
    key, value = draw.choice(KEYS), holder[last]
    if how == "key":
        del holder[last]
    holder[key] = value
    return f"{where} {how} {key[:20]!a}", json.dumps(table)


def bits(draw: random.Random, data: bytes) -> tuple[str, bytes]:
    """Return bytes that are cut, flipped, or joined with others."""
    place = draw.randrange(len(data))
    how = draw.choice(["cut", "flipped", "flipped", "random", "inserted", "appended", "zeros"])
    if how == "flipped":
        many = bytearray(data)
        for _ in range(draw.choice([1, 1, 8])):
            many[draw.randrange(len(many))] ^= 1 << draw.randrange(8)
        return "bits flipped", bytes(many)
    noise = draw.randbytes(draw.choice([1, 8, 300]))
    return f"{how} at {place}", {
        "cut": data[:place],
        "random": data[:place] + noise + data[place + len(noise) :],
        "inserted": data[:place] + noise + data[place:],
        "appended": data + noise,
        "zeros": data[:place] + bytes(len(data) - place),
    }[how]


def damaged_json(draw: random.Random, table: Any) -> tuple[str, bytes]:
    """Return a damaged JSON file of a table."""
    how = draw.random()
    if how < 0.8:
        kind, text = changed(draw, table)
        return kind, text.encode()
    whole = json.dumps(table).encode()
    if how < 0.95:
        return bits(draw, whole)
    return draw.choice(
        [
            ("with a mark", whole.decode().encode("utf-8-sig")),
            ("in UTF-16", whole.decode().encode("utf-16")),
            ("in a list", b"[" + whole + b"]"),
            ("empty", b""),
            ("a megabyte of spaces", b" " * 2**20),
        ]
    )


def damaged_tensors(draw: random.Random, data: bytes, key: str = "") -> tuple[str, bytes]:
    """Return a damaged safetensors file.

    Args:
        draw: the generator.
        data: the valid file.
        key: of its metadata, which is JSON and damaged as such in most copies.
    """
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    how = draw.random()
    if how < 0.2:
        return bits(draw, data)
    if how < 0.3:
        wrong = draw.choice([0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1])
        return f"header of {wrong} bytes", wrong.to_bytes(8, "little") + data[8:]
    if key and how < 0.8:
        metadata = json.loads(header["__metadata__"][key])
        kind, text = changed(draw, metadata)
        header["__metadata__"][key] = text
        text = json.dumps(header)
    else:
        kind, text = changed(draw, header)
    head = text.encode()
    return kind, len(head).to_bytes(8, "little") + head + rest
