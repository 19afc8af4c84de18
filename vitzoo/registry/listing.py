"""The fields of variants in listings, and filtering and sorting by them; torch-free."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vitzoo.errors import InvalidOption, UnknownOption, did_you_mean
from vitzoo.schema.rows import Variant

CONDITION = re.compile(r"\s*(\w+)\s*(<=|>=|!=|==|=|<|>|~)\s*(.+?)\s*")
UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "~": lambda value, part: part.lower() in str(value).lower(),
}
EXAMPLE = "write conditions such as 'params<100M and image_size=224', joined by 'and'"
NUMBERS = ("embed_dim", "depth", "num_heads", "mlp_dim", "in_chans", "num_classes")
PARTS = ("head", "pool", "patch_embed", "pos_embed")
FIELDS = (
    *("name", "params", "image_size", "patch_size", *NUMBERS, *PARTS),
    *("weights", "top1", "license", "pin", "namespace", "paper", "summary"),
)


def fields(variant: Variant) -> dict[str, Any]:
    """Return the values of `FIELDS`, which listings, `--where` and `--sort` use.

    `top1` is the accuracy of the default weights on ImageNet-1k; it is None for other data sets.
    """
    spec, weights = variant.spec, variant.default_weights
    compares = weights is not None and weights.label_set == "imagenet-1k"
    return {
        "name": variant.name,
        "params": variant.params,
        "image_size": _size(spec.image_size),
        "patch_size": _size(spec.patch_size),
        **{name: getattr(spec, name) for name in NUMBERS},
        **{name: getattr(spec, name).name for name in PARTS},
        "weights": weights.name if weights else None,
        "top1": weights.top1 if weights and compares else None,
        "license": weights.license if weights else None,
        "pin": weights.pin if weights else None,
        "namespace": variant.namespace,
        "paper": variant.paper,
        "summary": variant.summary,
    }


def keeps(row: Mapping[str, Any], filters: Mapping[str, Any]) -> bool:
    """Tell whether a row has the required values; a filter may be a function of the value."""
    return all(
        wanted(_field(row, key)) if callable(wanted) else _field(row, key) == wanted
        for key, wanted in filters.items()
    )


def where(expression: str) -> Callable[[Mapping[str, Any]], bool]:
    """Compile a condition such as `params<100M and license=apache-2.0`.

    Operators are `= != < <= > >=` and `~` (contains). Numbers may have a suffix k, M or B. A
    missing value, such as the accuracy of a variant without weights, satisfies only `!=`.
    """
    tests = [_condition(part) for part in re.split(r"\s+and\s+", expression.strip())]
    return lambda row: all(test(row) for test in tests)


def sort(rows: Iterable[dict[str, Any]], order: str) -> list[dict[str, Any]]:
    """Sort rows by `field`, `field:asc` or `field:desc`; rows without a value come last."""
    key, _, direction = order.partition(":")
    if direction not in ("", "asc", "desc"):
        raise InvalidOption(f"sort direction must be asc or desc, got {direction!r} in {order!r}")
    rows = list(rows)
    present = [row for row in rows if _field(row, key) is not None]
    present.sort(key=lambda row: _order(row[key]), reverse=direction == "desc")
    return present + [row for row in rows if row[key] is None]


def _condition(text: str) -> Callable[[Mapping[str, Any]], bool]:
    match = CONDITION.fullmatch(text)
    if not match:
        raise InvalidOption(f"cannot read the condition {text!r}; {EXAMPLE}")
    key, symbol, literal = match.groups()
    compare = OPERATORS[symbol]

    def test(row: Mapping[str, Any]) -> bool:
        value = _field(row, key)
        if value is None:
            return symbol == "!="
        if symbol == "~" or isinstance(value, str):
            ordered = value if symbol == "~" else value.lower()
            return bool(compare(ordered, literal if symbol == "~" else literal.lower()))
        return bool(compare(value, _number(literal, key)))

    return test


def _number(literal: str, key: str) -> float:
    match = re.fullmatch(r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)\s*([kmbg]?)", literal.lower())
    if not match:
        raise InvalidOption(f"{key} must be compared with a number, got {literal!r}; {EXAMPLE}")
    return float(match[1]) * UNITS.get(match[2], 1)


def _field(row: Mapping[str, Any], key: str) -> Any:
    if key not in row:
        known = ", ".join(row)
        raise UnknownOption(f"unknown field {key!r}{did_you_mean(key, row)}; fields: {known}")
    return row[key]


def _order(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _size(size: tuple[int, int]) -> int | str:
    return size[0] if size[0] == size[1] else f"{size[0]}x{size[1]}"
