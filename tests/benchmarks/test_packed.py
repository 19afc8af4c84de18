"""Images of several sizes: one packed sequence against padded sequences, in float32 on the CPU."""

import os

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import vitzoo
from internals import native_size

pytestmark = pytest.mark.benchmark

FULL = os.environ.get("VITZOO_BENCH") == "full"
NAME = "vit_b16" if FULL else "vit_ti16"
COUNT = 8 if FULL else 4
RATIOS = (1.0, 4 / 3, 3 / 4, 16 / 9, 2 / 3, 1.0, 3 / 2, 9 / 16)  # width / height
MIXED, EQUAL = "64 to 576 patches", "256 patches"
LIMITS = {MIXED: (64, 128, 256, 576) * 2, EQUAL: (256,) * 8}


def images_of(limits):
    patch = (16, 16)
    pairs = list(zip(limits, RATIOS, strict=True))[:COUNT]
    sizes = [
        native_size(480, round(480 * ratio), patch_size=patch, max_patches=most)
        for most, ratio in pairs
    ]
    return [torch.randn(3, *size) for size in sizes]


def padded(model, images):
    """Return the logits with every sequence padded to the longest one, and a mask."""
    tokens = [model.embed(image[None])[0] for image in images]
    x = pad_sequence(tokens, batch_first=True)  # (b, n, d)
    lengths = torch.tensor([len(sequence) for sequence in tokens])
    real = torch.arange(x.shape[1]) < lengths[:, None]
    mask = torch.where(real, 0.0, -torch.inf)[:, None, None]  # (b, 1, 1, n)
    for block in model.blocks:
        x = block(x, None, lambda _: mask)
    return model.forward_head(model.norm(x))


def make(limits):
    torch.manual_seed(0)
    model, images = vitzoo.create(NAME, dynamic=True).eval(), images_of(LIMITS[limits])
    with torch.inference_mode():
        found, expected = model.forward_packed(images), padded(model, images)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    return model, images


@pytest.mark.parametrize("limits", LIMITS if FULL else [MIXED])
def test_inference(compare, limits):
    model, images = make(limits)
    sides = {
        "vitzoo, packed": lambda: model.forward_packed(images),
        "padding": lambda: padded(model, images),
        "single images": lambda: [model(image[None]) for image in images],
    }
    title = f"inference, {COUNT} images of {limits}, {NAME}"
    with torch.inference_mode():
        result = compare(title, sides, rounds=7)
    result.check("padding", at_least=1.7 if limits == MIXED else 0.9)


def test_training_step(compare):
    model, images = make(MIXED)

    def step(run):
        model.zero_grad(set_to_none=True)
        run(images).square().mean().backward()

    sides = {
        "vitzoo, packed": lambda: step(model.forward_packed),
        "padding": lambda: step(lambda images: padded(model, images)),
    }
    title = f"training step, {COUNT} images of {MIXED}, {NAME}"
    compare(title, sides, rounds=5).check("padding", at_least=1.7)
