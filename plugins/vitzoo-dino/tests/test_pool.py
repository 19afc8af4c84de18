"""The pool of copy detection by its definition, and what it refuses."""

from __future__ import annotations

import pytest
import torch

import vitzoo
from vitzoo.errors import InvalidOption
from vitzoo_dino.pool import ClassGemPool


def tokens(count, scale=1.0):
    return scale * torch.randn(2, count, 6, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("prefix", [1, 3])
@pytest.mark.parametrize("exponent", [1, 2.5, 4.0])
def test_class_token_and_generalised_mean(prefix, exponent):
    x = tokens(prefix + 6)
    result = ClassGemPool(exponent=exponent)(x, prefix, (2, 3))
    assert torch.equal(result[:, 0], x[:, 0])
    for image in range(2):
        for channel in range(6):
            numbers = [max(v, 1e-6) ** exponent for v in x[image, prefix:, channel].tolist()]
            mean = (sum(numbers) / len(numbers)) ** (1 / exponent)
            assert float(result[image, 1, channel]) == pytest.approx(mean, rel=1e-5)


def test_powers_do_not_overflow_in_half_precision():
    x = tokens(197, scale=30).half()
    pool = ClassGemPool()
    result, expected = pool(x, 1, (14, 14)), pool(x.double(), 1, (14, 14))
    assert expected[:, 1].max() ** 4 > torch.finfo(torch.half).max
    torch.testing.assert_close(result.double(), expected, rtol=2e-3, atol=0)


@pytest.mark.parametrize("exponent", [0.5, 0, -4, float("inf"), float("nan"), True, "4"])
def test_an_exponent_below_one_is_refused(exponent):
    with pytest.raises(InvalidOption, match=r"exponent .* at least 1") as caught:
        ClassGemPool(exponent=exponent)
    assert repr(exponent) in str(caught.value)


def test_it_needs_a_class_token():
    spec = {"variant": "dino/vit_b16_gem", "class_token": False}
    with pytest.raises(InvalidOption, match=r"pool 'dino/class_gem' .*class_token"):
        vitzoo.create(spec, device="meta")


def test_the_variant_gives_both_vectors_as_one():
    spec = {"variant": "dino/vit_b16_gem", "image_size": 32, "depth": 1, "embed_dim": 48}
    model = vitzoo.create(spec | {"num_heads": 2}).eval()
    with torch.inference_mode():
        found = model.features(torch.randn(2, 3, 32, 32), ["pool", "logits"])
    assert torch.equal(found["logits"], found["pool"].flatten(1))
    assert found["logits"].shape == (2, 96)
