"""Google's file of R+Ti/16, whose ResNet has no stages."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import vitzoo
from helpers import close, same
from vitzoo import convert

FORMULAS = runpy.run_path(str(Path(__file__).parents[3] / "tests" / "google_reference.py"))
SIZES = {"width": 192, "depth": 2, "heads": 3, "mlp": 768, "patch": 32, "size": 224}


@pytest.mark.slow
@pytest.mark.parametrize("pre_logits", [0, 24])
@pytest.mark.parametrize("weights", ["own", "scaled"])
@torch.no_grad()
def test_a_root_without_stages(tmp_path, weights, pre_logits, timm):
    """R+Ti/16 of two blocks, against the formulas and timm; the way back is exact."""
    shapes = FORMULAS["hybrid_shapes"]((), **SIZES, classes=7, pre_logits=pre_logits)
    shapes["embedding/kernel"] = (8, 8, 64, 192)
    arrays = FORMULAS["draw_all"](shapes, weights)
    path = tmp_path / "R_Ti_16.npz"
    np.savez(path, **{key: array.numpy() for key, array in arrays.items()})
    spec = {"variant": "hybrid/r_vit_ti16", "depth": 2, "num_classes": 7}
    head = {"head": {"name": "tanh", "hidden_dim": pre_logits}} if pre_logits else {}
    model = vitzoo.create(spec | head, weights=path).eval()
    assert model.load_report.format == "google"
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(4))
    close(model(images), FORMULAS["forward"](arrays, images)[2])
    double = {key: array.double() for key, array in arrays.items()}
    logits = FORMULAS["forward"](double, images.double())[2]
    torch.testing.assert_close(model.double()(images.double()), logits, rtol=0, atol=1e-8)
    if not pre_logits:
        theirs = timm.create_model("vit_tiny_r_s16_p8_224", depth=2, num_classes=7)
        theirs.load_pretrained(str(path))
        same(model.float().state_dict(), theirs.state_dict())
    saved = vitzoo.save(model.float(), tmp_path / "saved.safetensors")
    convert(saved, "google", tmp_path / "back.npz")
    with np.load(tmp_path / "back.npz", allow_pickle=False) as file:
        same({key: torch.from_numpy(file[key]) for key in file.files}, arrays)
