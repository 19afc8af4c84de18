"""Eager fp32 inference on the CPU against timm, same weights."""

import os

import pytest
import timm
import torch

import vitzoo

pytestmark = pytest.mark.benchmark

BATCHES = [1, 8] if os.environ.get("VITZOO_BENCH") == "full" else [1]


@pytest.mark.parametrize("batch", BATCHES)
def test_eager_inference_against_timm(compare, batch):
    theirs = timm.create_model("vit_base_patch16_224").eval()
    ours = vitzoo.create("vit_b16").eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(batch, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=5e-5)
        compare(f"B/16 inference, batch {batch}", lambda: ours(images), lambda: theirs(images))
