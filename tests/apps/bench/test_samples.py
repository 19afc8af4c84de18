"""The images on which outputs are compared."""

import sys
from pathlib import Path

import pytest
import torch

import vitzoo
from helpers import SPEC, photographs, refuses
from vitzoo.apps.bench.samples import samples
from vitzoo.errors import ImageError, InvalidOption

DIGITS = Path(__file__).parents[3] / "docs" / "examples" / "digits"


@pytest.fixture(scope="module")
def digits():
    return vitzoo.create("vit_digits", pretrained=True)


def small(in_chans):
    network = vitzoo.create(SPEC, in_chans=in_chans, image_size=64)
    network.preprocessing = vitzoo.Preprocessing(mean=(0.5,) * in_chans, std=(0.5,) * in_chans)
    return network


def test_crops_of_the_photographs_cover_them_without_overlap():
    found, what, random = samples(small(3), None)
    assert (tuple(found.shape), random) == ((16, 3, 64, 64), False)
    assert what == "16 crops of scikit-learn's two photographs"
    prepare = vitzoo.transform(small(3))
    china, _ = photographs()
    assert torch.equal(found[0], prepare(china.crop((0, 0, 160, 213))))
    assert torch.equal(found[6], prepare(china.crop((320, 213, 480, 426))))
    assert len({crop.numpy().tobytes() for crop in found}) == 16


def test_digits_for_a_network_of_grey_images(digits):
    from sklearn.datasets import load_digits

    found, what, random = samples(digits, None)
    assert (tuple(found.shape), what, random) == (
        (16, 1, 28, 28), "16 of scikit-learn's digits", False,
    )  # fmt: skip
    with torch.no_grad():
        classes = digits.eval()(found).argmax(1)
    assert classes.tolist() == load_digits().target[:16].tolist()


def test_random_numbers_if_there_is_nothing_else(digits, monkeypatch):
    five, what, random = samples(small(5), None)
    assert (tuple(five.shape), random) == ((16, 5, 64, 64), True)
    assert what == "16 images of random numbers"
    assert torch.equal(five, samples(small(5), None)[0])
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert samples(digits, None)[1:] == ("16 images of random numbers", True)


def test_images_of_the_user(digits, tmp_path):
    found, what, random = samples(digits, [DIGITS])
    assert (tuple(found.shape), what, random) == ((10, 1, 28, 28), "10 images of yours", False)
    with refuses(InvalidOption, "list of paths", str(DIGITS), "[]"):
        samples(digits, str(DIGITS))
    with refuses(InvalidOption, "at least one image"):
        samples(digits, [])
    with refuses(ImageError, "none.png"):
        samples(digits, [tmp_path / "none.png"])
