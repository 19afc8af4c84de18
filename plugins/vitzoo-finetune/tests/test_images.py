"""Images of a run: which are left out, the order of each epoch, and augmentation by seed."""

import random

import pytest
from PIL import Image

import vitzoo
from helpers import refuses
from vitzoo.errors import InvalidOption
from vitzoo_finetune.images import Batches, Every, read_data
from vitzoo_finetune.settings import Settings

NO_COLUMNS = dict.fromkeys(("image_column", "label_column", "split_column"))


@pytest.fixture(scope="module")
def prepare():
    return vitzoo.transform("vit_digits")


@pytest.fixture
def write(tmp_path):
    """Write images of noise, by name."""

    def write(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = random.Random(name).randbytes(64)
            Image.frombytes("L", (8, 8), pixels).save(path)
        return tmp_path

    return write


def test_broken_images_and_equal_bytes_are_named(write, prepare):
    data = write(*(f"{c}/{i}.png" for c in "ab" for i in range(5)))
    (data / "a/0.png").write_bytes(b"broken")
    (data / "a/1.png").write_bytes((data / "b/1.png").read_bytes())
    (data / "a/x.txt").write_text("")
    found = read_data(data, NO_COLUMNS, prepare)
    assert [name for name, _ in found.broken] == ["a/0.png"]
    assert found.conflicts == (("a/1.png", "b/1.png"),)
    assert found.left_out == {".txt": 1}
    assert found.drawn
    assert len(found.train) + len(found.validation) == 9
    assert {label for _, label in found.train} == {0, 1}
    assert str(data) not in str(found.to_data())


def test_a_class_of_one_image_trains(write, prepare):
    found = read_data(write("a/0.png", "b/0.png", "b/1.png"), NO_COLUMNS, prepare)
    assert [image.name for image, label in found.train if label == 0] == ["a/0.png"]
    assert len(found.validation) == 1


def test_data_that_cannot_train(write, prepare):
    val = ("val/train/a/1.png", "val/val/a/2.png", "val/val/b/1.png")
    data = write("one/a/1.png", *val, "x/a/1.png", "x/b/1.png")
    with refuses(InvalidOption, data / "one", "1 classes", "two"):
        read_data(data / "one", NO_COLUMNS, prepare)
    with refuses(InvalidOption, data / "val", "'b'", "train"):
        read_data(data / "val", NO_COLUMNS, prepare)
    with refuses(InvalidOption, data / "x", "no validation images", "second image"):
        read_data(data / "x", NO_COLUMNS, prepare)


def settings(**options):
    return Settings.complete({"model": "x", "batch_size": 8} | options, 50, 384)


def test_the_images_of_a_step_do_not_depend_on_processes_and_parts():
    def steps(world, **options):
        made = [list(Batches(50, settings(**options), rank, world)) for rank in range(world)]
        parts = options.get("accumulate", 1)
        size = len(made[0]) // parts
        return [
            {k for rank in made for one in rank[i * parts : (i + 1) * parts] for k in one}
            for i in range(size)
        ]

    alone = steps(1)
    assert [len(step) for step in alone] == [8] * 6
    assert alone == steps(2) == steps(1, accumulate=4) == steps(2, accumulate=2)


def test_an_epoch_continues_where_it_was():
    whole = Batches(50, settings(), 0, 1)
    whole.set_epoch(3)
    expected = list(whole)
    other = Batches(50, settings(), 0, 1)
    other.start = (3, 2)
    other.set_epoch(3)
    assert list(other) == expected[2:]
    other.set_epoch(4)
    assert len(list(other)) == 6
    assert list(other) != expected


def test_every_image_is_measured_once():
    keys = [k for rank in range(3) for one in Every(50, 8, rank, 3) for k in one]
    assert sorted(i for i, kind in keys if kind == -1) == list(range(50))
    assert len({len(list(Every(50, 8, rank, 3))) for rank in range(3)}) == 1


def test_balanced_images_are_drawn_by_seed_and_epoch():
    weights = [1 / 40] * 40 + [1 / 10] * 10
    own = settings(balance=True)
    whole = Batches(50, own, 0, 1, weights)
    keys = []
    for epoch in range(40):
        whole.set_epoch(epoch)
        keys += [key for batch in whole for key in batch]
    assert len(set(keys)) == len(keys)  # an image that is drawn again is augmented anew
    assert sum(index >= 40 for index, _ in keys) / len(keys) == pytest.approx(0.5, abs=0.05)
    whole.set_epoch(3)
    other = Batches(50, own, 0, 1, weights)
    other.start = (3, 2)
    other.set_epoch(3)
    assert list(other) == list(whole)[2:]
