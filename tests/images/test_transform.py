"""Transforms: the pixels of timm's evaluation transform, checked options, very long images."""

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import photographs, refuses
from internals import MAX_RESIZED
from tables import cases
from vitzoo import Preprocessing, Spec, Transform
from vitzoo.errors import InvalidOption, UnknownOption

PHOTOS = photographs()
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def prepare(image, size=(224, 224), in_chans=3, **row):
    row = {"mean": (0.5,) * in_chans, "std": (0.5,) * in_chans} | row
    return Transform(Spec(image_size=size, in_chans=in_chans), Preprocessing(**row))(image)


@cases("crop_mode", ["center", "squash"])
@cases("size", [224, (160, 320), (97, 96)])
@cases("upright", [False, True])
def test_pixels_are_those_of_timms_evaluation(crop_mode, size, upright):
    """Every option and size is in tests/parity/test_preprocessing.py."""
    from timm.data import create_transform

    row = {"interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": crop_mode} | IMAGENET
    of_library = create_transform(size, is_training=False, **row)
    pair = (size, size) if isinstance(size, int) else size
    for photo in PHOTOS:
        image = photo.transpose(Image.Transpose.ROTATE_90) if upright else photo
        assert torch.equal(prepare(image, pair, **row), of_library(image))


def test_squash_without_a_crop_resizes_to_the_exact_input():
    expected = np.asarray(PHOTOS[0].resize((96, 160), Image.Resampling.BILINEAR)) / 127.5 - 1
    ours = prepare(PHOTOS[0], (160, 96), crop_mode="squash", interpolation="bilinear", crop_pct=1.0)
    np.testing.assert_allclose(ours.permute(1, 2, 0).numpy(), expected, atol=1e-6)


def test_one_channel_is_luminance():
    row = {"crop_mode": "squash", "crop_pct": 1.0, "interpolation": "bicubic"}
    ours = prepare(PHOTOS[0], (64, 64), 1, **row)
    grey = PHOTOS[0].convert("L").resize((64, 64), Image.Resampling.BICUBIC)
    np.testing.assert_allclose(ours[0].numpy(), np.asarray(grey) / 127.5 - 1, atol=1e-6)


def test_inputs_are_float32_on_the_cpu_under_every_default_of_torch(other_defaults):
    with other_defaults:
        found = prepare(PHOTOS[0], **IMAGENET)
    assert (found.dtype, found.device.type) == (torch.float32, "cpu")
    assert torch.equal(found, prepare(PHOTOS[0], **IMAGENET))


@cases("size", [(1, 1), (1, 5000), (5000, 1), (2, 3)])
@cases("crop_mode", ["center", "squash"])
def test_tiny_images_and_strips_become_inputs(size, crop_mode):
    image = Image.new("RGB", size, (255, 0, 51))
    x = prepare(image, mean=(0, 0, 0), std=(1, 1, 1), crop_mode=crop_mode)
    assert x.shape == (3, 224, 224)
    expected = torch.tensor([1, 0, 0.2])[:, None, None].expand(3, 224, 224)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", [3000, 3001])
@pytest.mark.parametrize("turned", [False, True])
def test_a_long_strip_is_cut_before_it_is_resized(rows, turned, monkeypatch):
    """The result equals that of the whole image, which could need gigabytes, up to rounding.

    No value is near 0 or 255: values beyond these limits are clipped after each of the two
    passes of a resize, and Pillow chooses their order by the sizes.
    """
    noise = np.random.default_rng(0).integers(64, 192, (rows, 5, 3), dtype=np.uint8)
    strip = Image.fromarray(noise.swapaxes(0, 1) if turned else noise)
    row = {"mean": (0,) * 3, "std": (1 / 255,) * 3}
    whole = prepare(strip, (64, 64), **row)
    sizes = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image,
        "resize",
        lambda s, size, *a, **k: sizes.append(size) or resize(s, size, *a, **k),
    )
    monkeypatch.setattr("vitzoo.images.resize.MAX_RESIZED", 1000)
    cut = prepare(strip, (64, 64), **row)
    assert sizes == [(64, 64)]
    assert (cut - whole).abs().max() <= 2.001
    assert (cut - whole).abs().mean() < 0.5


def test_what_is_resized_whole_is_bearable():
    assert MAX_RESIZED * 4 <= 2**28  # bytes; Pillow has four for a pixel


# vitzoo.transform


def test_transform_of_a_name_and_of_its_model_agree():
    model = vitzoo.create("vit_digits", pretrained=True)
    for prepared in (vitzoo.transform("vit_digits"), vitzoo.transform(model)):
        assert prepared.image_size == (28, 28)
        assert prepared.preprocessing.mean == (0.3,)


def test_a_model_of_another_size_gets_its_own():
    model = vitzoo.create("vit_digits", pretrained=True, image_size=(35, 42))
    assert vitzoo.transform(model, crop_pct=0.5)(PHOTOS[0]).shape == (1, 35, 42)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"image_size": 32}, (3, 32, 32)),
        ({"image_size": (32, 48)}, (3, 32, 48)),
        ({"crop_pct": 1, "crop_mode": "squash"}, (3, 224, 224)),
        ({"interpolation": "lanczos", "mean": [0, 0, 0], "std": (1.0, 1.0, 1.0)}, (3, 224, 224)),
    ],
    ids=str,
)
def test_what_is_passed_replaces_what_the_weights_say(options, shape):
    x = vitzoo.transform("vit_b16", **options)(PHOTOS[0])
    assert x.shape == shape
    size = options.pop("image_size", 224)
    own = {"interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center"}
    expected = prepare(
        PHOTOS[0], size if isinstance(size, tuple) else (size, size), **own | options
    )
    assert torch.equal(x, expected)
    assert not torch.equal(x, vitzoo.transform("vit_b16", image_size=shape[1:])(PHOTOS[0])) or (
        not options
    )


def test_nothing_passed_keeps_everything():
    row = vitzoo.describe("vit_b16").default_weights.preprocessing
    assert vitzoo.transform("vit_b16").preprocessing == row


@cases(
    ("options", "parts"),
    [
        ({"crop_pct": 0}, ["crop_pct", "(0, 1]", "0.0"]),
        ({"crop_pct": 1.1}, ["crop_pct", "(0, 1]", 1.1]),
        ({"crop_pct": "1"}, ["crop_pct", "number", "'1'", "(str)"]),
        ({"crop_mode": "centre"}, ["crop_mode", "center, squash", "'centre'", "'center'"]),
        ({"interpolation": "bicubik"}, ["interpolation", "'bicubik'", "'bicubic'"]),
        ({"mean": (0.5,)}, ["mean", "std", "one number per channel"]),
        ({"mean": 0.5}, ["mean", "list", 0.5, "(float)"]),
        ({"std": (0.5, 0.5, 0)}, ["std", "positive"]),
        ({"mean": (0.5,), "std": (0.5,)}, ["1 channels", 3, "mean=", "std="]),
        ({"image_size": 0}, ["transform()", "image_size", "px", 1, 65536, 0]),
        ({"image_size": "big"}, ["image_size", "px", "'big'"]),
    ],
    ids=str,
)
def test_values_are_checked(options, parts):
    with refuses(InvalidOption, *parts):
        vitzoo.transform("vit_b16", **options)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("crop_pc", "'crop_pct'"),
        ("img_size", "'image_size'"),
        ("resize", "image_size"),
        ("foo", "image_size, crop_pct, crop_mode, interpolation, mean, std"),
    ],
)
def test_a_misspelt_option_is_an_error(name, known):
    with refuses(UnknownOption, "transform()", repr(name), known):
        vitzoo.transform("vit_b16", **{name: 1})


def test_transform_of_what_has_no_spec():
    with refuses(InvalidOption, "Linear"):
        vitzoo.transform(torch.nn.Linear(2, 2))
    with refuses(InvalidOption, "model", "None"):
        vitzoo.transform(None)


def test_statistics_of_another_number_of_channels_are_refused():
    with refuses(InvalidOption, "3 channels", 1, "mean=", "std="):
        Transform(Spec(in_chans=1), Preprocessing())


def test_statistics_of_the_right_number_of_channels_can_be_passed(small):
    model = vitzoo.create(small | {"in_chans": 1})
    model.preprocessing = Preprocessing()
    x = vitzoo.transform(model, mean=[0.0], std=[1.0])(PHOTOS[0])
    assert x.shape == (1, 32, 32)
    assert 0 <= x.min() < x.max() <= 1


def test_channels_that_no_image_has_are_refused():
    with refuses(InvalidOption, "1 or 3 channels", 4):
        Transform(Spec(in_chans=4), None)


def test_a_tensor_is_no_picture():
    with refuses(InvalidOption, "path", "Tensor"):
        prepare(torch.zeros(3, 8, 8))
