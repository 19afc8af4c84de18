"""A training step with drop path against timm's, equal settings; mode `subset` skips work."""

import os

import pytest
import timm
import torch

import vitzoo

pytestmark = pytest.mark.benchmark

RATE = 0.4
NETWORKS = {"vit_s16": "vit_small_patch16_224"}
if os.environ.get("VITZOO_BENCH") == "full":
    NETWORKS["vit_b16"] = "vit_base_patch16_224"


def step(model, images, labels):
    def run():
        model.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(images), labels).backward()

    return run


@pytest.mark.parametrize(("name", "theirs"), NETWORKS.items())
def test_training_step_in_mode_subset(compare, name, theirs):
    ours = vitzoo.create(name, drop_path={"name": "linear", "rate": RATE, "mode": "subset"})
    reference = timm.create_model(theirs, drop_path_rate=RATE)
    images, labels = torch.randn(8, 3, 224, 224), torch.randint(0, 1000, (8,))
    ratio = compare(
        f"training step, drop path {RATE}, {name}",
        step(ours.train(), images, labels),
        step(reference.train(), images, labels),
        rounds=3,
    )
    compare.check(ratio, 1.15)
