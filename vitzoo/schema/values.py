"""How a registry file states the fields of an entry; torch-free.

Each field declares it once, in its metadata: `label_set: str = field(default="", metadata=TEXT)`.
Reading (`vitzoo.schema.entries`) and writing (`vitzoo.schema.tables`) follow from these keys:

- `read`: function of a `Reader` and a key that returns the value. A field without it depends on
  other keys or on the file; the code that reads its class reads it.
- `required`: a registry file always states the key, also if the class has a default.
- `pairs`: the value is a tuple of pairs, which is written as a table.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

from vitzoo.files.names import SHORT_COMMIT
from vitzoo.schema.preprocessing import Preprocessing, read_preprocessing
from vitzoo.schema.reader import Reader
from vitzoo.schema.spec import LIMITS, BlockSpec, Option, PartSpec
from vitzoo.schema.terms import RESULT_SETS

Read = Callable[[Reader, str], Any]
Value = dict[str, Any]
PartFact = PartSpec | tuple[tuple[str, Option], ...]  # a part, or options for the variant's part
PLAIN_REQUIREMENT = re.compile(
    r"[A-Za-z0-9]+([._-]+[A-Za-z0-9]+)*(([<>!=~]=|[<>])\d+(\.\d+)+(,([<>!=~]=|[<>])\d+(\.\d+)+)*)?"
)


@cache
def optional(cls: type) -> Mapping[str, Read]:
    """Return the functions that read the keys that may be missing."""
    return {name: value["read"] for name, value in _declared(cls) if "required" not in value}


@cache
def required(cls: type) -> Mapping[str, Read]:
    """Return the functions that read the keys that a registry file always states."""
    return {name: value["read"] for name, value in _declared(cls) if "required" in value}


def _declared(cls: type) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return ((f.name, f.metadata) for f in dataclasses.fields(cls) if "read" in f.metadata)


def _percentage(reader: Reader, key: str) -> float:
    """Return a number from 0 to 100."""
    value = reader.take(key, float)
    if not 0 <= value <= 100:
        raise reader.fail(f"{key} must be a percentage from 0 to 100, got {value}")
    return value


def percentages(reader: Reader) -> tuple[tuple[str, float], ...]:
    """Return the (data set, percentage) pairs of a table."""
    return tuple((name, _percentage(reader, name)) for name in reader.given(*RESULT_SETS))


def _deviations(reader: Reader, key: str) -> tuple[tuple[str, float], ...]:
    keys = (*reader.keys, key)
    sub = Reader(reader.take(key, dict), f"{reader.where}: {key}", reader.error, keys)
    found = percentages(sub)
    sub.done()
    return found


def positive(reader: Reader, key: str) -> float:
    """Return a finite number above 0."""
    value = reader.take(key, float)
    if not 0 < value < math.inf:
        raise reader.fail(f"{key} must be a finite number above 0, got {value}")
    return value


def _number(reader: Reader, key: str, most: float = 2**31) -> float:
    value = reader.take(key, float)
    if not 0 <= value <= most:
        limit = " to 1" if most == 1 else ""
        raise reader.fail(f"{key} must be a number from 0{limit}, got {value}")
    return value


def _commit(reader: Reader, key: str) -> str:
    value = reader.text(key)
    if not SHORT_COMMIT.fullmatch(value):
        raise reader.fail(f"{key} must be 7 to 40 lower-case hex digits, got {value!r}")
    return value


def _requirements(reader: Reader, key: str) -> tuple[str, ...]:
    requires = reader.texts(key)
    for text in requires:
        if problem := _not_a_requirement(text):
            raise reader.fail(
                f"requires lists {text!r}, which pip cannot read ({problem}); write a requirement "
                "such as 'timm>=1.0'"
            )
    return requires


@cache
def _not_a_requirement(text: str) -> str:
    if PLAIN_REQUIREMENT.fullmatch(text):
        return ""  # listings need not import packaging
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        Requirement(text)
    except InvalidRequirement as error:
        return str(error).partition("\n")[0]
    return ""


def _names(reader: Reader, key: str) -> tuple[tuple[str, str], ...]:
    sub = reader.sub(key)
    return () if sub is None else tuple((library, sub.text(library)) for library in sub.table)


def _block_options(reader: Reader, key: str) -> tuple[tuple[str, Option], ...]:
    sub = reader.sub(key)
    if sub is None:
        return ()
    block = BlockSpec.read(sub, BlockSpec())
    return tuple((key, getattr(block, key, True)) for key in sub.table)  # norm_first is true


def _part_or_options(reader: Reader, key: str) -> PartFact:
    """Read a part, or options for the part of the variant."""
    value = reader.take(key, object, None)
    if value is None:
        return ()
    if value == {}:
        raise reader.fail(f"{key} must name a part, or set options of the variant's part, got {{}}")
    where = f"{reader.where}: {key}"
    if isinstance(value, Mapping) and "name" not in value:
        return PartSpec.parse({**value, "name": key}, where, reader.error).options
    return PartSpec.parse(value, where, reader.error)


def _preprocessing(reader: Reader, key: str) -> Preprocessing:
    sub = reader.sub(key)
    if sub is None:
        raise reader.fail(f"missing table {key!r}")
    row = read_preprocessing(sub)
    sub.done()
    return row


def one_of(choices: Iterable[str]) -> Value:
    """Return the metadata of a text that is one of `choices`."""
    return {"read": partial(Reader.one_of, choices=tuple(choices))}


REQUIRED: Value = {"required": True}  # added to another: TEXT | REQUIRED
PAIRS: Value = {"pairs": True}
TEXT: Value = {"read": Reader.text}
TEXTS: Value = {"read": Reader.texts}
FLAG: Value = {"read": Reader.flag}
COUNT: Value = {"read": Reader.count}
CLASSES: Value = {"read": partial(Reader.count, least=0, most=LIMITS["num_classes"])}
SIZE: Value = {"read": Reader.size}  # (height, width) in px
PERCENTAGE: Value = {"read": _percentage}
POSITIVE: Value = {"read": positive}
NOT_NEGATIVE: Value = {"read": _number}
SHARE: Value = {"read": partial(_number, most=1)}
COMMIT: Value = {"read": _commit}
REQUIREMENTS: Value = {"read": _requirements}
PREPROCESSING: Value = {"read": _preprocessing}
DEVIATIONS: Value = {"read": _deviations} | PAIRS
KNOWN_AS: Value = {"read": _names} | PAIRS
BLOCK: Value = {"read": _block_options} | PAIRS
PART: Value = {"read": _part_or_options} | PAIRS
