"""The division of a data set: the data's own parts, drawn validation images, equal bytes."""

from vitzoo.apps.probe.division import divide
from vitzoo.apps.probe.labelled import LabelledImage, LabelledImages


def hashes(count):
    return [f"{i:064x}" for i in range(count)]


def test_a_share_of_each_class_is_drawn_by_hash():
    labels, keys = ["a"] * 50 + ["b"] * 10 + ["c"], hashes(61)
    found = divide(labels, [""] * 61, keys, 0.2, 0)
    assert found.drawn
    assert found.test == ()
    assert [sum(labels[i] == name for i in found.validation) for name in "abc"] == [10, 2, 0]
    assert sorted((*found.train, *found.validation)) == list(range(61))
    turned = divide(labels[::-1], [""] * 61, keys[::-1], 0.2, 0)
    assert {60 - i for i in turned.validation} == {*found.validation}
    assert divide(labels, [""] * 61, keys, 0.2, 1).validation != found.validation


def test_equal_bytes_are_on_one_side_and_conflicts_are_named():
    keys = hashes(10) * 3
    labels = ["a"] * 10 + ["b"] * 20
    found = divide(labels, ["train"] * 30, keys, 0.2, 0)
    assert not {keys[i] for i in found.train} & {keys[i] for i in found.validation}
    assert found.validation
    assert found.conflicts == tuple((i, i + 10, i + 20) for i in range(10))


def test_parts_of_the_data_stay():
    parts = ["train"] * 10 + ["validation"] * 2 + ["test"] * 3
    found = divide(["a"] * 15, parts, hashes(15), 0.2, 0)
    assert (len(found.train), len(found.validation), len(found.test)) == (10, 2, 3)
    assert not found.drawn
    parts[10:12] = ["test"] * 2
    found = divide(["a"] * 15, parts, hashes(15), 0.2, 0)
    assert (len(found.train), len(found.validation), len(found.test)) == (8, 2, 5)
    assert found.drawn


def test_images_that_cannot_be_read_are_in_no_part():
    keys = hashes(4)
    keys[1] = ""
    images = [LabelledImage(str(i), b"", "a", "train") for i in range(4)]
    found = LabelledImages(images, ("a",)).divide(keys)
    assert 1 not in (*found.train, *found.validation)
    assert len(found.train) == 2


def test_images_with_several_classes_leave_one_of_each_for_training():
    classes = [("a", "b")] * 20 + [("a",)] * 20 + [("b", "c")] * 2 + [("d",)] + [()] * 10
    labels, parts = [";".join(one) for one in classes], [""] * len(classes)
    found = divide(labels, parts, hashes(len(classes)), 0.2, 0, classes)
    counts = {name: sum(name in classes[i] for i in found.validation) for name in "abcd"}
    assert counts["a"] >= 8
    assert counts["b"] >= 4
    assert counts["c"] == 1
    assert counts["d"] == 0
    assert sum(not classes[i] for i in found.validation) == 2
    images = [LabelledImage(str(i), b"", str(i), number=float(i)) for i in range(20)]
    numbers = LabelledImages(images, ("age",), target="number").divide(hashes(20))
    assert len(numbers.validation) == 4
