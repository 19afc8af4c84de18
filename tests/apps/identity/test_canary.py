"""A canary tells networks apart in float32, and says what it cannot tell in fewer bits."""

import hashlib

import numpy as np
import pytest
import torch

import vitzoo
from helpers import refuses
from tables import cases
from vitzoo.apps.identity.canary import (
    OTHER_VECTORS,
    SAME_VECTORS,
    TOLERANCES,
    Canary,
    canaries,
    images,
    largest_distance,
    numerics_of,
)
from vitzoo.errors import InvalidOption

PIXELS = "5645483e1c5a9352a403b0121fb58744feacc717064a9dc65d4415704668d3ba"


def canary(dtype=None, **changes):
    weights = vitzoo.create("vit_digits", pretrained=True).state_dict()
    model = vitzoo.create("vit_digits", **changes)
    model.load_state_dict(weights)
    return canaries(vitzoo.Predictor(model, dtype=dtype), ["pooled"])["pooled"]


def test_the_images_are_always_the_same():
    pixels = b"".join(image.tobytes() for image in images())
    assert [image.shape[:2] for image in images()][:5] == [
        (120, 160), (96, 128), (64, 64), (112, 80), (48, 48)
    ]  # fmt: skip
    assert len(images()) == 10
    assert hashlib.sha256(pixels).hexdigest() == PIXELS


@cases(
    "changes, answer",
    [
        ({}, SAME_VECTORS),
        ({"block": {"norm_eps": 1e-5}}, OTHER_VECTORS),
        ({"block": {"activation": "gelu_tanh"}}, OTHER_VECTORS),
        ({"dtype": torch.float16}, "not told apart below 0.01"),
        ({"dtype": torch.bfloat16}, "not told apart below 0.1"),
    ],
)
def test_only_float32_says_that_vectors_are_the_same(changes, answer):
    assert canary(**changes).compared(canary()) == answer
    assert canary().compared(canary(**changes)) == answer


def test_a_distance_of_float64_and_another_width():
    unit = np.array([[1, 0], [0, 2]], np.float32)
    near = np.array([[1, 1e-6], [0, 1]], np.float32)
    assert largest_distance(unit, near) == pytest.approx(1e-6, rel=1e-3)  # its cosine rounds to 1
    whole = np.arange(1, 65, dtype=np.float32).reshape(8, 8)
    assert largest_distance(whole, 3 * whole) < 1e-12
    wide = Canary(np.ones((10, 3), np.float32), "float32")
    assert canary().distance(wide) == 2


def test_a_canary_as_data_is_read_again():
    own = canary()
    again = Canary.from_data(own.to_data())
    assert (again.sha256, again.numerics) == (own.sha256, "float32")
    assert hashlib.sha256(own.vectors.astype("<f4").tobytes()).hexdigest() == own.sha256


@cases(
    "change",
    [{"numerics": "float8"}, {"vectors": "a"}, {"vectors": ""}, {"vectors": "AADAfw==" * 10}, None],
    ids=str,
)
def test_other_data_are_refused(change):
    data = None if change is None else canary().to_data() | change
    with refuses(InvalidOption, "a canary must have numerics", "write the vectors again"):
        Canary.from_data(data)


def test_coarser_matrix_products_are_coarser_numerics():
    predictor = vitzoo.Predictor("vit_digits")
    assert numerics_of(predictor) == "float32"
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert numerics_of(predictor) == "bfloat16"
    finally:
        torch.set_float32_matmul_precision(before)


def test_tokens_and_images_of_other_bands_have_no_canary():
    predictor = vitzoo.Predictor("vit_digits", outputs=("pooled", "blocks.1", "labels"))
    (pooled,) = found = canaries(predictor, predictor.outputs)
    assert pooled == "pooled"
    assert vitzoo.Canary.of(predictor).sha256 == found["pooled"].sha256
    model = vitzoo.create("vit_digits", in_chans=4)
    model.preprocessing = vitzoo.Preprocessing((0.5,) * 4, (0.5,) * 4, bands=(0, 1, 2, 3))
    assert vitzoo.Canary.of(vitzoo.Predictor(model)) is None


def test_tolerances_grow_with_the_class():
    assert list(TOLERANCES.values()) == sorted(TOLERANCES.values())
