"""Training steps on the CPU with drop path."""

import os

import pytest
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


def compared(compare, mode, name, rounds):
    """Compare a step of 8 images with timm's, whose mode is `mask`."""
    import timm

    options = {"name": "linear", "rate": RATE, "mode": mode}
    ours = vitzoo.create(name, drop_path=options)
    reference = timm.create_model(NETWORKS[name], drop_path_rate=RATE)
    images, labels = torch.randn(8, 3, 224, 224), torch.randint(0, 1000, (8,))
    sides = {
        "vitzoo": step(ours.train(), images, labels),
        "timm": step(reference.train(), images, labels),
    }
    return compare(f"training step, drop path {RATE}, mode {mode}, {name}", sides, rounds=rounds)


@pytest.mark.parametrize("name", NETWORKS)
def test_training_step_in_mode_subset(compare, name):
    compared(compare, "subset", name, 5).check("timm", at_least=1.22)


@pytest.mark.parametrize("name", NETWORKS)
def test_training_step_in_mode_mask(compare, name):
    compared(compare, "mask", name, 5).check("timm", at_least=1)
