"""Checks of the arguments of `Format` and `ConfigTable`, when these are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from vitzoo.errors import InvalidOption, did_you_mean, short_repr
from vitzoo.schema.kinds import KIND_OF_FIELD
from vitzoo.schema.reader import describe
from vitzoo.schema.spec import BlockSpec, Spec

FIELDS = tuple(field.name for field in fields(Spec))
KNOWN = (*FIELDS, *(f"block.{field.name}" for field in fields(BlockSpec)))


def check_kind(what: str, value: Any, kind: Any, expected: str) -> None:
    """Raise InvalidOption unless the argument `what` is of a type."""
    if not isinstance(value, kind):
        raise InvalidOption(f"{what} must be {expected}, got {describe(value)}")


def check_tuple(what: str, value: Any, kind: Any = tuple, *, inside: Any = object) -> None:
    """Raise InvalidOption unless the argument `what` is of a type, with elements of another one."""
    expected = "a tuple of values" if inside is object else "a tuple of texts"
    if not isinstance(value, kind):
        one = "function" if callable(value) else short_repr(value)
        fix = f"write tuple({one})" if isinstance(value, list | set) else f"write ({one},)"
        raise InvalidOption(f"{what} must be {expected}, got {describe(value)}; {fix}")
    for element in value:
        check_kind(what, element, inside, expected)


def check_tuples(what: str, table: Any, *, inside: Any = object) -> None:
    """Raise InvalidOption unless the argument `what` is a mapping whose values are tuples."""
    check_kind(what, table, Mapping, "a mapping")
    for key, value in table.items():
        check_tuple(f"{what}[{key!r}]", value, inside=inside)


def check_fields(what: str, names: Iterable[Any]) -> None:
    """Raise InvalidOption for a name that is no field of a spec, such as `depth` or `block.mlp`."""
    for name in names:
        field, _, option = str(name).partition(".")
        if name in KNOWN or (option and field in KIND_OF_FIELD):  # a part may have any option
            continue
        near = did_you_mean(str(name), KNOWN) or f"; fields: {', '.join(FIELDS)}"
        raise InvalidOption(f"{what} names {name!r}, expected a field of a spec{near}")
