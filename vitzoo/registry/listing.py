"""The fields of variants in listings, and sorting by them; torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from vitzoo.errors import InvalidOption, UnknownOption, did_you_mean
from vitzoo.schema.rows import RESULTS, Variant

NUMBERS = ("embed_dim", "depth", "num_heads", "mlp_dim", "in_chans", "num_classes")
PARTS = ("head", "pool", "patch_embed", "pos_embed")
# Images per second of the architecture: names of measurements in the manifests.
MEASUREMENTS = (
    "rtx4090",
    "rtx4090_compiled",
    "pro6000_compiled",
    "i9_10940x_compiled",
    "i7_12700h_compiled",
)
KINDS: dict[str, Literal["text", "number", "size"]] = {
    "name": "text",
    "params": "number",
    "gmacs": "number",
    "activations": "number",
    "image_size": "size",
    "patch_size": "size",
    **dict.fromkeys(NUMBERS, "number"),
    **dict.fromkeys(PARTS, "text"),
    "weights": "text",
    **dict.fromkeys(RESULTS, "number"),
    **dict.fromkeys(MEASUREMENTS, "number"),
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

    `top1` and the other results are those of the default weights; they are None for weights of
    other classes than those of ImageNet-1k. Images per second belong to the architecture.
    """
    spec, weights = variant.spec, variant.default_weights
    speeds = {row.name: row.images_per_second for row in variant.throughput}
    compares = weights is not None and weights.label_set == "imagenet-1k"
    return {
        "name": variant.name,
        "params": variant.params,
        "gmacs": variant.gmacs,
        "activations": variant.activations,
        "image_size": _size(spec.image_size),
        "patch_size": _size(spec.patch_size),
        **{name: getattr(spec, name) for name in NUMBERS},
        **{name: getattr(spec, name).name for name in PARTS},
        "weights": weights.name if weights else None,
        **{name: getattr(weights, name) if compares else None for name in RESULTS},
        **{name: speeds.get(name) for name in MEASUREMENTS},
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
