"""The index of the catalogue as data: what its script searches, filters, sorts and plots.

A text is escaped as on a terminal; the template and the script escape it for HTML.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vitzoo import Throughput, Variant, Weights
from vitzoo.errors import printable
from vitzoo_site.links import file_place, px

TEST_SETS = {  # short and full
    "top1": ("Top-1", "ImageNet top-1"),
    "top5": ("Top-5", "ImageNet top-5"),
    "imagenet_real": ("ReaL", "ImageNet-ReaL"),
    "imagenet_v2": ("V2", "ImageNet-V2"),
    "imagenet_sketch": ("Sketch", "ImageNet-Sketch"),
    "imagenet_a": ("A", "ImageNet-A"),
    "imagenet_r": ("R", "ImageNet-R"),
}
RESULTS = (*TEST_SETS,)
PINS = {"confirmed": "confirmed", "reported": "reported", "first-use": "trust on first use"}
TASKS = {
    "classification": "Classification",
    "image-text": "Image-text embedding",
    "features": "Features, no head",
}
COMMERCIAL = {"yes": "yes", "read": "read the license", "no": "no"}
VARIANT = (
    "name", "summary", "namespace", "params", "gmacs", "image_size", "patch_size", "throughput",
    "known_as", "weights"
)  # fmt: skip
WEIGHTS = (
    "weights", "default", "task", "license", "commercial", "pin", "pretraining",
    "pretraining_data", "file", *RESULTS
)  # fmt: skip


def index_data(variants: Sequence[Variant]) -> dict[str, Any]:
    """Return the data of the index page, with lists in the order of `keys`."""
    measured = measurements(variants)
    return {
        "keys": {"variant": VARIANT, "weights": WEIGHTS},
        "measurements": list(measured),
        "variants": [_variant_row(variant, list(measured)) for variant in variants],
    }


def measurements(variants: Iterable[Variant]) -> dict[str, str]:
    """Return the measurements of images per second: their hardware and settings by name."""
    found: dict[str, str] = {}
    for variant in variants:
        for row in variant.throughput:
            found.setdefault(row.name, measurement(row))
    return found


def measurement(row: Throughput) -> str:
    """Write the hardware and the settings of images per second, such as `RTX 4090, amp, eager`."""
    batch = "" if row.batch_size is None else f"batch {row.batch_size}"
    stated = (row.hardware, row.precision, row.mode, batch, row.software)
    return printable(", ".join(filter(None, stated)))


def task(variant: Variant, weights: Weights) -> str:
    """Return what the outputs of weights are for, a key of `TASKS`.

    Outputs with class names are a classification. Without class names, the outputs of weights
    trained on images with texts are embeddings, and all other outputs are a classification.
    """
    if weights.label_set or weights.labels:
        return "classification"
    if weights.pretraining == "image-text":
        return "image-text"
    return "classification" if classes(variant, weights) else "features"


def commercial(weights: Weights) -> str:
    """Return whether the license allows commercial use, a key of `COMMERCIAL`."""
    use = weights.commercial_use or "read"
    return "read" if weights.gated and use == "yes" else use


def classes(variant: Variant, weights: Weights) -> int:
    """Return the number of outputs."""
    return variant.spec.num_classes if weights.num_classes is None else weights.num_classes


def results(weights: Weights) -> dict[str, float]:
    """Return the results on the test sets; those of other classes than ImageNet's are left out."""
    if weights.label_set != "imagenet-1k":
        return {}
    found = {name: getattr(weights, name) for name in RESULTS}
    return {name: value for name, value in found.items() if value is not None}


def _variant_row(variant: Variant, measured: list[str]) -> list[Any]:
    speeds = {row.name: row.images_per_second for row in variant.throughput}
    row = vars(variant) | {
        "namespace": variant.namespace,
        "image_size": _size(variant.spec.image_size),
        "patch_size": _size(variant.spec.patch_size),
        "throughput": [speeds.get(name) for name in measured] if speeds else [],
        "known_as": " ".join(name for _, name in variant.known_as),
        "weights": [_weights_row(variant, weights) for weights in variant.weights],
    }
    return [_shown(row[key]) for key in VARIANT]


def _weights_row(variant: Variant, weights: Weights) -> list[Any]:
    row = vars(weights) | dict.fromkeys(RESULTS) | results(weights)
    row |= {
        "weights": weights.name,
        "task": task(variant, weights),
        "commercial": commercial(weights),
        "license": weights.license_note,
        "file": weights.repo or file_place(weights),
        "default": int(weights.default),
    }
    return [_shown(row[key]) for key in WEIGHTS]


def _size(size: tuple[int, int]) -> int | str:
    """Write a size in px: a number for a square, so that it is sorted as one."""
    return size[0] if size[0] == size[1] else px(size)


def _shown(value: Any) -> Any:
    return printable(value) if isinstance(value, str) else value
