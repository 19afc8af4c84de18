"""timm's networks with two narrow blocks, and the comparison of their files."""

from __future__ import annotations

from typing import Any

import torch

import vitzoo
from helpers import write


def make_small(parity: Any, name: str, weights: str, size: tuple[int, int]) -> tuple[Any, Any]:
    """Return (our spec, timm's network with two narrow blocks) of a variant."""
    import timm

    variant = vitzoo.describe(name)
    numbers = {"depth": 2, "embed_dim": 128, "num_heads": 2}
    theirs, classes = dict(variant.known_as)["timm"], variant.spec.num_classes
    torch.manual_seed(1)
    with parity.unfilled(weights):
        made = timm.create_model(theirs, num_classes=classes, img_size=size, **numbers)
    reference = made.eval()
    parity.fill(reference, weights)
    mlp_dim = int(variant.spec.mlp_dim / variant.spec.embed_dim * numbers["embed_dim"])
    spec = {"variant": name, "image_size": size, "mlp_dim": mlp_dim, **numbers}
    if variant.spec.pool.name == "attention":
        spec |= {"pool": {**variant.spec.pool.to_data(), "mlp_dim": 512}}
    return spec, reference


@torch.inference_mode()
def assert_file_is_read(parity: Any, folder: Any, weights: str, name: str, expected: str) -> None:
    """Assert that a bare file of timm has a format, and gives timm's outputs."""
    patch = vitzoo.describe(name).spec.patch_size[0]
    size = (4 * patch, 6 * patch)
    spec, reference = make_small(parity, name, weights, size)
    path = write(folder / "model.safetensors", reference.state_dict())
    model = vitzoo.create(spec, weights=path).eval()
    assert model.load_report.format == expected
    parity.assert_same_network(reference, model, torch.randn(2, 3, *size))
