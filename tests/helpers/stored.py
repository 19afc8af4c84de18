"""A registry file of the user whose weights are in the store, for what hands out stored bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import tomlkit
from torch import nn

import vitzoo
from internals import SAFETENSORS

PREPROCESSING = {
    "mean": [0.5, 0.4, 0.3],
    "std": [0.2, 0.25, 0.3],
    "interpolation": "bicubic",
    "crop_pct": 0.875,
}


def entry(file: Path, **changes: Any) -> dict[str, Any]:
    """Return the table of a weights entry for a file on this machine."""
    data = file.read_bytes()
    table = {
        "default": True,
        "path": str(file),
        "pin": "confirmed",
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "format": "timm",
        "license": "Apache-2.0",
        "source": "made up",
        "preprocessing": PREPROCESSING,
    }
    return table | changes


def registry_of(model: Any, weights: dict[str, Any], base: str | None = None) -> str:
    """Return a registry file with the variant `net`, which has these weights.

    Args:
        model: made by `create`; its spec describes the variant.
        weights: table of the entry.
        base: registered variant that the variant starts from.
    """
    numbers = {k: v for k, v in model.spec.to_data().items() if k != "variant"}
    variant = (
        ({"variant": base} if base else {})
        | numbers
        | {
            "summary": "a small network",
            "source": "made up",
            "params": sum(p.numel() for p in model.parameters()),
            "weights": {"main": weights},
        }
    )
    return tomlkit.dumps({"api": 1, "variants": {"net": variant}})


def put(model: nn.Module, folder: Path, *, to: str = "timm", **changes: Any) -> dict[str, Any]:
    """Write the weights of a model to a file in a checkpoint format, and return its entry."""
    saved = vitzoo.save(model, folder / "saved.safetensors")
    file = folder / f"weights{SAFETENSORS}"
    vitzoo.convert(saved, to, file, force=True)
    saved.unlink()
    return entry(file, format=to, **changes)
