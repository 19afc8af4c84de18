"""What a folder without weights, or an image, may be in place of a network."""

from __future__ import annotations

from pathlib import Path

import pytest

import vitzoo
from helpers import message, refuses, says
from tables import cases
from vitzoo.errors import CheckpointError


@pytest.mark.parametrize("image", ["a.png", "dogs/b.JPG"])
def test_a_folder_of_images_is_no_network(image, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    Path("photos/dogs").mkdir(parents=True)
    Path("photos", image).touch()
    Path("photos/._a.png").touch()
    fix = f"images, such as {Path('photos', image)}", "network is named before the images"
    with refuses(CheckpointError, "photos is a folder without weights", ".safetensors", *fix):
        vitzoo.predict("photos", "vit_digits")
    code, _, err = run("predict", "photos", "vit_digits")
    assert code == 1
    says(err, *fix)


def test_a_folder_without_images_is_only_one_without_weights(tmp_path):
    tmp_path.joinpath("notes.txt").touch()
    assert message(CheckpointError, vitzoo.create, tmp_path).endswith(".npz")


@cases(
    ("before", "after"),
    [
        (("predict",), ("vit_digits",)),
        (("plot", "attention", "--out", "a.png"), ("vit_digits",)),
        (("probe",), ("vit_digits",)),
        (("summary",), ()),
        (("verify",), ()),
    ],
)
def test_an_image_is_no_network(before, after, tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    Path("photo.JPG").touch()
    expected = "photo.JPG is an image", "network", "named before the images"
    code, _, err = run(*before, "photo.JPG", *after)
    assert code == 1
    says(err, *expected)


def test_an_image_is_no_network_in_python(tmp_path):
    image = tmp_path / "photo.png"
    image.touch()
    for function in (vitzoo.create, vitzoo.labels, vitzoo.Predictor):
        with refuses(CheckpointError, f"{image} is an image", "named before the images"):
            function(image)
    with refuses(CheckpointError, "gone.png", "no such file"):
        vitzoo.create(tmp_path / "gone.png")
