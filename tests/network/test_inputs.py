"""Inputs that a model does not accept: each message names the fix, and the fix works."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import randn, refuses, says
from tables import cases

IMAGES = randn(2, 3, 32, 32)
PIXELS = (IMAGES.sigmoid() * 255).to(torch.uint8)
ARRAY = PIXELS[0].permute(1, 2, 0).contiguous().numpy()  # (h, w, c)
PICTURE = Image.fromarray(ARRAY)
WANTED = "(b, 3, 32, 32)"


@pytest.fixture
def model(small, randomise):
    model = randomise(vitzoo.create(small))
    model.preprocessing = vitzoo.Preprocessing(mean=(0.5,) * 3, std=(0.25,) * 3)
    return model


@pytest.fixture
def grey(small, randomise):
    return randomise(vitzoo.create(small, in_chans=1))


def fixed(model, fix, **names):
    """Return the outputs for the input that the fix in a message gives."""
    return model(
        eval(
            fix,
            {
                "torch": torch,
                "vitzoo": vitzoo,
                "PIL": __import__("PIL.Image"),
                "model": model,
                **names,
            },
        )
    )


def tensors(images):
    """Return inputs, and the fix of each as code."""
    return {
        "channels last": (images.permute(0, 2, 3, 1), "images.permute(0, 3, 1, 2)"),
        "one image": (images[0], "images[None]"),
        "one image, channels last": (images[0].permute(1, 2, 0), "images.permute(2, 0, 1)[None]"),
        "grey": (images[:, :1], "images.expand(-1, 3, -1, -1)"),
        "one grey image": (images[0, 0], "images.expand(1, 3, -1, -1)"),
        "transparency": (torch.cat((images, images[:, :1]), 1), "images[:, :3]"),
    }


TENSORS = tensors(IMAGES)


@cases("case", TENSORS)
@cases("entry", ["forward", "forward_features", "attention_maps"])
def test_tensors_of_another_shape(model, case, entry):
    images, fix = TENSORS[case]
    with refuses(vitzoo.InvalidInput, WANTED, f"got {tuple(images.shape)}", fix):
        getattr(model, entry)(images)
    assert fixed(model, fix, images=images).shape in ((2, 5), (1, 5))


@cases("case", TENSORS)
@cases("entry", ["forward", "attention_maps"])
def test_tensors_of_another_shape_for_images_of_any_size(small, case, entry):
    model = vitzoo.create(small, dynamic=True)
    images, fix = tensors(IMAGES[..., :16])[case]
    with refuses(vitzoo.InvalidInput, "(b, 3, h, w)", f"got {tuple(images.shape)}", fix):
        getattr(model, entry)(images)
    assert fixed(model, fix, images=images).shape in ((2, 5), (1, 5))


def test_tensors_without_four_axes_for_images_of_any_size(small):
    model = vitzoo.create(small, dynamic=True)
    for shape in [(1, 2, 3, 32, 32), (7, 9, 9), (3,), ()]:
        with refuses(vitzoo.InvalidInput, "(b, 3, h, w)", f"got {shape}", "four axes"):
            model(torch.zeros(shape))


GREY = {
    "colours": (IMAGES, "images.mean(dim=1, keepdim=True)"),
    "no channels": (IMAGES[:, 0], "images[:, None]"),
    "one image": (IMAGES[0, :1], "images[None]"),
    "channels last": (IMAGES[:, :1].permute(0, 2, 3, 1), "images.permute(0, 3, 1, 2)"),
}


@pytest.mark.parametrize("case", GREY)
def test_tensors_for_a_model_of_grey_images(grey, case):
    images, fix = GREY[case]
    with refuses(vitzoo.InvalidInput, "(b, 1, 32, 32)", f"got {tuple(images.shape)}", fix):
        grey(images)
    assert fixed(grey, fix, images=images).shape in ((2, 5), (1, 5))


@pytest.mark.parametrize(
    "shape", [(2, 3, 64, 64), (2, 3, 32, 24), (1, 2, 3, 32, 32), (48, 48), (2, 7, 9, 9), (3,), ()]
)
def test_tensors_of_another_size(model, shape):
    fixes = ("resize", "image_size=", "in_chans=", "set_input_size", "dynamic=True")
    with refuses(vitzoo.InvalidInput, WANTED, f"got {shape}", *fixes):
        model(torch.zeros(shape))


def test_other_channels_name_the_argument(model):
    with refuses(vitzoo.InvalidInput, WANTED, "got (2, 12, 32, 32)", "in_chans=12"):
        model(torch.zeros(2, 12, 32, 32))


OBJECTS = {
    "a Pillow image": (PICTURE, "vitzoo.transform(model)(image)[None]", {"image": PICTURE}),
    "NumPy array of shape (32, 32, 3) and type uint8": (
        ARRAY,
        "vitzoo.transform(model)(PIL.Image.fromarray(array))[None]",
        {"array": ARRAY},
    ),
    "NumPy array of shape (2, 3, 32, 32) and type float64": (
        IMAGES.double().numpy(),
        "torch.from_numpy(array).float()",
        {"array": IMAGES.double().numpy()},
    ),
    "list of 2 items": (list(IMAGES), "torch.stack(images)", {"images": list(IMAGES)}),
    "tuple of 2 items": (
        (PICTURE, PICTURE),
        "torch.stack([vitzoo.transform(model)(image) for image in images])",
        {"images": (PICTURE, PICTURE)},
    ),
}


@pytest.mark.parametrize("got", OBJECTS)
def test_objects_that_are_no_tensor(model, got):
    images, fix, names = OBJECTS[got]
    with refuses(vitzoo.InvalidInput, WANTED, f"got {got}" if got[0] == "a" else got, fix):
        model(images)
    assert fixed(model, fix, **names).shape in ((2, 5), (1, 5))


@pytest.mark.parametrize("images", ["cat.png", None, 3, [], np.float32(1)], ids=repr)
def test_objects_that_are_no_image(model, images):
    with refuses(vitzoo.InvalidInput, WANTED, "got", "vitzoo.transform(model)") as caught:
        model(images)
    assert type(images).__name__ in str(caught.value) or isinstance(images, np.generic)


def test_whole_numbers_name_the_fix(model):
    with refuses(
        vitzoo.InvalidInput, "torch.uint8", "floating", "vitzoo.transform(model)", "/ 255"
    ):
        model(PIXELS)
    with refuses(vitzoo.InvalidInput, "torch.int64", "floating", "images.float()"):
        model(PIXELS.long())


TYPES = [
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.float16),
    (torch.float32, torch.float64),
]


@cases(("own", "given"), TYPES, ids=str)
@cases("embedder", ["conv", "unfold"])
def test_images_of_another_type_than_the_model(small, randomise, own, given, embedder):
    model = randomise(vitzoo.create(small, patch_embed=embedder)).to(own)
    images = IMAGES.to(given)
    for use in (model, model.forward_features, lambda x: model.features(x, ["embed"])):
        fixes = f"images.to({own})", f"model.to({given})"
        with refuses(vitzoo.InvalidInput, f"parameters of {own}", f"images of {given}", *fixes):
            use(images)
    assert fixed(model, fixes[0], images=images).dtype == own
    assert eval(fixes[1], {"torch": torch, "model": model})(images).dtype == given


def test_images_on_another_device_than_the_model(model):
    def fail(*_):  # as a layer on a GPU does; one on the device `meta` takes every tensor
        raise RuntimeError("Expected all tensors to be on the same device")

    model.patch_embed.register_forward_pre_hook(fail)
    fixes = "images.to('cpu')", "model.to('meta')"
    with refuses(vitzoo.InvalidInput, "parameters of 'cpu'", "images of 'meta'", *fixes):
        model(IMAGES.to("meta"))


def test_autocast_converts_images(model):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(IMAGES.bfloat16()).dtype == torch.bfloat16
        assert model(IMAGES).dtype == torch.bfloat16


def test_a_patch_embedder_may_convert_images(model):
    model.patch_embed.register_forward_pre_hook(lambda _, args: (args[0].float(),))
    assert model(IMAGES.double()).shape == (2, 5)


def test_another_error_of_a_patch_embedder_is_raised_as_it_is(model):
    def fail(*_):
        raise RuntimeError("out of memory")

    model.patch_embed.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        model(IMAGES)


def test_nothing_is_explained_as_long_as_images_fit(model, monkeypatch):
    monkeypatch.setattr("vitzoo.network.inputs.explained", None)
    assert model(IMAGES).shape == (2, 5)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("create_model", "vitzoo.create(name, pretrained=True)"),
        ("from_pretrained", "vitzoo.create(name, pretrained=True)"),
        ("list", "vitzoo.variants(pattern)"),
        ("list_models", "vitzoo.variants(pattern)"),
        ("show", "vitzoo.describe(name)"),
        ("which", "vitzoo.describe(name)"),
        ("load", "vitzoo.create(name, weights=path)"),
    ],
)
def test_functions_of_other_libraries_are_answered_with_those_here(name, call):
    with pytest.raises(AttributeError) as caught:
        getattr(vitzoo, name)
    says(str(caught.value), name, call)
    assert caught.value.name == name
    assert name not in dir(vitzoo)
    assert not hasattr(vitzoo, name)
