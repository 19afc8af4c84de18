"""The fields of variants in listings, and sorting by them; torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from vitzoo.errors import InvalidOption, UnknownOption, did_you_mean
from vitzoo.schema.rows import Variant

NUMBERS = ("embed_dim", "depth", "num_heads", "mlp_dim", "in_chans", "num_classes")
PARTS = ("head", "pool", "patch_embed", "pos_embed")
KINDS: dict[str, Literal["text", "number", "size"]] = {
    "name": "text",
    "params": "number",
    "image_size": "size",
    "patch_size": "size",
    **dict.fromkeys(NUMBERS, "number"),
    **dict.fromkeys(PARTS, "text"),
    "weights": "text",
    "top1": "number",
    "license": "text",
    "pin": "text",
    "pretraining": "text",
    "pretraining_data": "text",
    "namespace": "text",
    "paper": "text",
    "summary": "text",
}
FIELDS = tuple(KINDS)


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
        "pretraining": (weights.pretraining or None) if weights else None,
        "pretraining_data": (weights.pretraining_data or None) if weights else None,
        "namespace": variant.namespace,
        "paper": variant.paper,
        "summary": variant.summary,
    }


def check_field(name: str, where: str = "") -> str:
    """Return the name of a field; `where` is its place for the message.

    Raises:
        UnknownOption: there is no such field; the message suggests the nearest, and lists all.
    """
    if name not in KINDS:
        known = ", ".join(FIELDS)
        near = did_you_mean(name, FIELDS)
        raise UnknownOption(f"unknown field {name!r}{where}{near}; fields: {known}")
    return name


def sort(rows: Iterable[dict[str, Any]], order: str) -> list[dict[str, Any]]:
    """Sort rows by `field`, `field:asc` or `field:desc`; rows without a value come last."""
    key, _, direction = order.partition(":")
    if direction not in ("", "asc", "desc"):
        raise InvalidOption(f"sort direction must be asc or desc, got {direction!r} in {order!r}")
    check_field(key)
    rows = list(rows)
    present = [row for row in rows if row[key] is not None]
    present.sort(key=lambda row: _order(row[key]), reverse=direction == "desc")
    return present + [row for row in rows if row[key] is None]


def _order(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int | float) else (1, str(value))


def _size(size: tuple[int, int]) -> int | str:
    return size[0] if size[0] == size[1] else f"{size[0]}x{size[1]}"
