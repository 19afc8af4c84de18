"""Augmentation: by seed, epoch and image; the same pixels in other loops; what needs 8 bits."""

import pickle
import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import vitzoo
import vitzoo_finetune
from helpers import refuses, says
from tables import cases
from vitzoo.errors import InvalidOption
from vitzoo_finetune.augmenting import Augmented
from vitzoo_finetune.images import Images
from vitzoo_finetune.targets import Classes

MAE, DEIT = "mae/vit_b16:mae", "deit/deit3_s16:fb_in22k_ft_in1k"


class Stored:
    """An image of a labelled data set."""

    def __init__(self, path):
        self.path, self.name = path, path.name

    def read(self):
        return self.path.read_bytes()


@pytest.fixture
def photos(tmp_path):
    """Eight images of noise, in colour."""
    paths = [tmp_path / f"{i}.png" for i in range(8)]
    for i, path in enumerate(paths):
        pixels = random.Random(i).randbytes(3 * 20 * 30)
        Image.frombytes("RGB", (30, 20), pixels).save(path)
    return paths


@pytest.fixture(scope="module")
def prepare():
    return vitzoo.transform("vit_digits")


@pytest.mark.slow
@cases("recipe", [MAE, DEIT])
def test_other_loops_get_the_pixels_of_a_run(photos, recipe):
    options = {"recipe": recipe, "image_size": 28, "erase": 0.5, "seed": 3}
    made = vitzoo_finetune.transform("vit_digits", **options)
    images = Images([(Stored(path), 0) for path in photos], Classes("ab", ()), made, 3)
    keys = [(i, 1) for i in range(len(photos))]
    inputs = []
    for workers in (0, 2):
        loader = DataLoader(images, batch_sampler=[keys[:3], keys[3:]], num_workers=workers)
        inputs.append(torch.cat([batch[0] for batch in loader]))
    again = pickle.loads(pickle.dumps(made))
    torch.manual_seed(5)
    expected = torch.rand(2), random.Random(1).random()
    torch.manual_seed(5)
    random.seed(1)
    pixels = [again(Image.open(path), index=i, epoch=1) for i, path in enumerate(photos)]
    assert torch.equal(torch.rand(2), expected[0])
    assert random.random() == expected[1]
    for found in inputs:
        assert torch.equal(found, torch.stack(pixels))
    assert found.shape == (8, 1, 28, 28)
    other = [again(Image.open(path), index=i, epoch=2) for i, path in enumerate(photos)]
    assert not torch.equal(found, torch.stack(other))
    options["seed"] = 4
    seeded = vitzoo_finetune.transform("vit_digits", **options)
    other = [seeded(Image.open(path), index=i, epoch=1) for i, path in enumerate(photos)]
    assert not torch.equal(found, torch.stack(other))


@pytest.mark.slow
def test_all_but_the_crop_has_the_pixels_of_timm(photos):
    """timm's crop draws its box in another way than torchvision's."""
    from timm.data.transforms_factory import transforms_imagenet_train

    model = vitzoo.create("mae/vit_b16", image_size=32, device="meta")
    prepare = vitzoo.transform(model, crop_pct=1.0, crop_mode="squash")
    of_vitzoo, row = Augmented(model, prepare, ("randaugment",), erase=0.5), prepare.preprocessing
    of_timm = transforms_imagenet_train(
        32, hflip=0, auto_augment="rand-m9-mstd0.5-inc1", mean=row.mean, std=row.std,
        interpolation=row.interpolation, re_prob=0.5, re_mode="pixel",
    )  # fmt: skip
    of_timm.transforms.pop(0)
    for i, path in enumerate(photos):
        image = Image.open(path).resize((32, 32))
        found = []
        for pipeline in (of_vitzoo, of_timm):
            random.seed(i)
            np.random.seed(i)
            torch.manual_seed(i)
            found.append(pipeline(image))
        torch.testing.assert_close(*found, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_randaugment_of_the_highest_magnitude_keeps_no_bits(photos):
    made = vitzoo_finetune.transform("vit_ti16", augment="rand-m10-n15-p1-inc1")
    black = vitzoo_finetune.transform("vit_ti16", augment="none")(Image.new("RGB", (300, 300)))
    posterize = next(op for op in made.steps[0].ops if "Posterize" in op.name)
    assert torch.equal(made.finish(posterize(Image.open(photos[0]))), black)
    assert made(Image.open(photos[0]), index=0).isfinite().all()


def test_without_augmentation_inputs_are_those_of_predict(photos, prepare):
    made = Augmented(vitzoo.create("vit_digits"), prepare, ())(Image.open(photos[0]))
    assert torch.equal(made, prepare(photos[0]))


def test_augmentations_that_need_8_bits_refuse():
    model = vitzoo.create("vit_digits")
    bands = vitzoo.transform(model, scale=4095)
    with refuses(InvalidOption, "crop and rand-m9 need", "8-bit", "--augment none") as caught:
        Augmented(model, bands, ("crop", "rand-m9"))
    says(str(caught.value), "1 channels")
    with refuses(InvalidOption, "color_jitter need", "--color-jitter 0"):
        Augmented(model, bands, (), color_jitter=0.3)
    Augmented(model, bands, (), erase=0.5)
