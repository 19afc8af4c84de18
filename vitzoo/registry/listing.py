"""Fields of a variant for tables, filters and sorting; torch-free."""

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


FIELDS = (
    "name", "params", "image_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_dim",
    "in_chans", "num_classes", "head", "pool", "patch_embed", "pos_embed", "weights", "top1",
    "license", "pin", "namespace", "paper", "summary",
)  # fmt: skip  # one a line says nothing more


def fields(variant: Variant) -> dict[str, Any]:
    """Return the fields that listings, `--where` and `--sort` know, in column order.

    `top1` is that of the default weights on ImageNet-1k: other numbers do not compare.
    """
    spec, weights = variant.spec, variant.default_weights
    compares = weights is not None and weights.label_set == "imagenet-1k"
    return {
        "name": variant.name,
        "params": variant.params,
        "image_size": _size(spec.image_size),
        "patch_size": _size(spec.patch_size),
        "embed_dim": spec.embed_dim,
        "depth": spec.depth,
        "num_heads": spec.num_heads,
        "mlp_dim": spec.mlp_dim,
        "in_chans": spec.in_chans,
        "num_classes": spec.num_classes,
        "head": spec.head.name,
        "pool": spec.pool.name,
        "patch_embed": spec.patch_embed.name,
        "pos_embed": spec.pos_embed.name,
        "weights": weights.name if weights else None,
        "top1": weights.top1 if weights and compares else None,
        "license": weights.license if weights else None,
        "pin": weights.pin if weights else None,
        "namespace": variant.namespace,
        "paper": variant.paper,
        "summary": variant.summary,
    }


def keeps(row: Mapping[str, Any], filters: Mapping[str, Any]) -> bool:
    """Tell whether `row` passes filters given as values or as functions of the value."""
    for key, wanted in filters.items():
        value = _field(row, key)
        if not (wanted(value) if callable(wanted) else value == wanted):
            return False
    return True


def where(expression: str) -> Callable[[Mapping[str, Any]], bool]:
    """Compile a condition such as `params<100M and license=apache-2.0`.

    Operators are `= != < <= > >=` and `~` (contains). Numbers take the suffixes k, M, B. A
    field that a variant lacks (no published weights, no accuracy) satisfies only `!=`.
    """
    tests = [_condition(part) for part in re.split(r"\s+and\s+", expression.strip())]
    return lambda row: all(test(row) for test in tests)


def sort(rows: Iterable[dict[str, Any]], order: str) -> list[dict[str, Any]]:
    """Sort rows by `field`, `field:asc` or `field:desc`; rows that lack the field come last."""
    key, _, direction = order.partition(":")
    if direction not in ("", "asc", "desc"):
        raise InvalidOption(f"sort direction must be asc or desc, got {direction!r} in {order!r}")
    rows = list(rows)
    for row in rows:
        _field(row, key)
    present = sorted((r for r in rows if r[key] is not None), key=lambda r: _order(r[key]))
    if direction == "desc":
        present.sort(key=lambda r: _order(r[key]), reverse=True)
    return present + [r for r in rows if r[key] is None]


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
        raise InvalidOption(f"{key} is compared with a number, got {literal!r}; {EXAMPLE}")
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
