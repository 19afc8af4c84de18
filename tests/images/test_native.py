"""Native sizes: those of transformers' NaFlex processors, and pixels that keep the whole image."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import photographs, refuses
from internals import native_size
from tables import cases
from vitzoo import Preprocessing
from vitzoo.errors import ImageError, InvalidOption

CHINA, FLOWER = photographs()
IMAGES = {
    "wide": CHINA,
    "upright": FLOWER.transpose(Image.Transpose.ROTATE_90),
    "small": FLOWER.crop((300, 200, 331, 221)),  # is enlarged
    "strip": CHINA.crop((0, 100, 640, 130)),
}
HALF = Preprocessing((0.5,) * 3, (0.5,) * 3, "bilinear", 1.0, "squash")


def ours(height, width, patch, most):
    return native_size(height, width, patch_size=(patch, patch), max_patches=most)


def test_sizes_are_those_of_transformers():
    from transformers.models.siglip2.image_processing_siglip2 import (
        get_image_size_for_max_num_patches as size_in_transformers,
    )

    random = np.random.default_rng(0)
    for _ in range(4000):
        patch, most = int(random.choice([4, 8, 14, 16, 32])), int(random.integers(1, 1200))
        height, width = (2 ** random.uniform(0, 12, 2)).astype(int).tolist()
        if max(height, width) <= most * min(height, width):
            found = ours(height, width, patch, most)
            assert found == size_in_transformers(height, width, patch, most), (
                height,
                width,
                patch,
                most,
            )


@pytest.mark.parametrize("most", [1, 2, 255, 256, 1024])
def test_sizes_at_the_limits_are_those_of_transformers(most):
    from transformers.models.siglip2.image_processing_siglip2 import (
        get_image_size_for_max_num_patches as size_in_transformers,
    )

    for height, width in [(1, 1), (1, most), (most, 1), (16, 16), (4096, 4096), (640, 640 * most)]:
        found = ours(height, width, 16, most)
        assert found == size_in_transformers(height, width, 16, most)
        assert math.prod(found) <= most * 16 * 16


def test_patches_need_not_be_square():
    height, width = native_size(300, 500, patch_size=(8, 20), max_patches=100)
    assert (height % 8, width % 20) == (0, 0)
    assert 90 <= height // 8 * (width // 20) <= 100
    assert abs(width / height - 500 / 300) < 0.2


@pytest.mark.parametrize("most", [0, -1, 2.0, True, "256", None, 10**9])
def test_impossible_numbers_of_patches(most):
    with refuses(InvalidOption, "patches", "1 to 262144", repr(most)):
        ours(10, 10, 16, most)


def test_a_ratio_that_no_grid_has():
    with refuses(ImageError, "2x515 px", "256 times", "crop"):
        ours(2, 515, 16, 256)


@cases("name", IMAGES)
@cases(("patch", "most"), [(16, 256), (14, 100)])
def test_pixels_are_those_of_transformers(small, name, patch, most):
    """Pillow's processor differs by rounding, that of tensors by one of 255 levels."""
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil
    from transformers.models.siglip2.image_processing_siglip2 import Siglip2ImageProcessor

    model = vitzoo.create(small | {"patch_size": patch, "image_size": 2 * patch})
    model.preprocessing = HALF
    found = vitzoo.transform(model, native_size=most)(IMAGES[name])
    for kind, tolerance in ((Siglip2ImageProcessorPil, 1e-6), (Siglip2ImageProcessor, 2.001 / 255)):
        inputs = kind(patch_size=patch, max_num_patches=most)(IMAGES[name], return_tensors="pt")
        rows, columns = inputs["spatial_shapes"][0].tolist()
        patches = inputs["pixel_values"][0, : rows * columns]
        expected = patches.reshape(rows, columns, patch, patch, 3).permute(4, 0, 2, 1, 3)
        expected = expected.reshape(3, rows * patch, columns * patch)
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance, msg=kind.__name__)


def test_the_number_of_patches_is_that_of_the_network_unless_it_is_given(small):
    image_size = vitzoo.create(small).image_size
    prepare = vitzoo.transform(small, native_size=True, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert prepare.max_patches == 16  # 32x32 px in patches of 8x8
    assert prepare(CHINA).shape == (3, 24, 40)
    same = vitzoo.transform(small, native_size=False, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert same(CHINA).shape == (3, *image_size)


def test_grey_images():
    prepare = vitzoo.transform("vit_digits", native_size=20)
    found = prepare(CHINA)
    assert found.shape[0] == 1
    assert found.shape[1:] == ours(427, 640, prepare.patch_size[0], 20)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"native_size": 0}, ["native_size", "patches from 1 to 262144, got 0"]),
        ({"native_size": "yes"}, ["patches", "'yes'"]),
        ({"native_size": 64, "image_size": 32}, ["image_size=32", "native"]),
        ({"native_size": 64, "crop_pct": 0.9}, ["crop_pct=0.9", "native"]),
    ],
    ids=str,
)
def test_values_are_checked(options, parts):
    with refuses(InvalidOption, *parts):
        vitzoo.transform("vit_b16", **options)


def test_a_network_that_states_no_patches():
    fix = "leave native_size (--native-size) out"
    with refuses(InvalidOption, "timm/naflexvit_base_patch16_gap", "plugin", fix):
        vitzoo.transform("timm/naflexvit_base_patch16_gap", native_size=True)
