"""`predict` and `vitzoo predict`: names, probabilities, and images that cannot be read."""

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import vitzoo
from helpers import fill, photographs, refuses, says
from internals import screen_width
from tables import cases
from vitzoo import predict
from vitzoo.errors import ImageError, InvalidOption

PHOTOS = photographs()
DIGITS = Path(__file__).parents[3] / "docs" / "examples" / "digits"


@pytest.fixture
def photos(tmp_path):
    """A folder with the two photographs of scikit-learn."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, photo in zip(("china.png", "flower.png"), PHOTOS, strict=True):
        photo.save(folder / name)
    return folder


@pytest.fixture
def classifier(small, randomise):
    """A small network with the classes of ImageNet-1k."""
    model = randomise(vitzoo.create(small | {"num_classes": 1000}))
    model.labels = vitzoo.labels("imagenet-1k")
    return model


@pytest.fixture
def saved(classifier, tmp_path):
    return vitzoo.save(classifier, tmp_path / "net.safetensors")


def expected(model, photo):
    with torch.no_grad():
        return model(vitzoo.transform(model)(photo)[None]).softmax(-1)[0]


def test_numbers_of_a_regression_are_no_probabilities(run, small, photos, tmp_path, monkeypatch):
    model = fill(vitzoo.create(small | {"num_classes": 1}))
    model.labels, model.output_activation = ("age",), "identity"
    saved = vitzoo.save(model, tmp_path / "age.safetensors")
    ((_, _, value),) = vitzoo.predict(model, photos)[0].classes
    _, out, _ = run("predict", saved, photos)
    assert out.splitlines()[0].split("\t") == ["image", "rank", "label", "number"]
    assert float(out.splitlines()[1].split("\t")[3]) == pytest.approx(value, rel=1e-5)
    _, out, _ = run("predict", saved, photos, "--json")
    (found,) = json.loads(out)[0]["classes"]
    assert found == {"index": 0, "label": "age", "number": pytest.approx(value, rel=1e-5)}
    monkeypatch.setattr("vitzoo.apps.predict.command.on_terminal", lambda: True)
    monkeypatch.setattr("vitzoo.cli.output.on_terminal", lambda: True)
    _, out, _ = run("predict", saved, photos)
    says(out, "number", f"{value:.4g}")
    assert "probability" not in out


def test_a_model_without_data_is_refused(run, photos):
    code, out, err = run("predict", "vit_digits", photos, "--device", "meta")
    assert (code, out) == (2, "")
    says(err, "'meta'", "no numbers", "'cpu'")


@cases("value", [0, -1, 10**30, 2.5, "8"])
@cases("name", ["top", "batch_size"])
def test_absurd_numbers(classifier, photos, name, value):
    with refuses(InvalidOption, name, "from 1", value):
        predict(classifier, [photos], **{name: value})


@pytest.mark.parametrize("batch_size", [1, 16])
def test_predict_gives_what_the_model_gives(classifier, photos, batch_size):
    found = predict(classifier, [photos], top=3, batch_size=batch_size)
    assert [p.image.name for p in found] == ["china.png", "flower.png"]
    for prediction, photo in zip(found, PHOTOS, strict=True):
        shares = expected(classifier, photo)
        assert [i for i, _, _ in prediction.classes] == shares.topk(3).indices.tolist()
        for index, label, probability in prediction.classes:
            assert label == vitzoo.labels("imagenet-1k")[index]
            assert probability == pytest.approx(shares[index].item(), abs=1e-6)


def test_paths_may_be_strings(classifier, photos):
    (found,) = predict(classifier, [str(photos / "china.png")])
    assert found.image == photos / "china.png"


def test_one_image_of_any_kind_needs_no_list(classifier, photos):
    path, pixels = photos / "china.png", np.asarray(PHOTOS[0])
    ((_, classes),) = found_by(classifier, [path])
    for image in (path, str(path)):
        assert found_by(classifier, image) == [(path, classes)]
    for image in (path.read_bytes(), PHOTOS[0], pixels):
        assert found_by(classifier, image) == [(Path("image 0"), classes)]
    names = [name for name, _ in found_by(classifier, [pixels, photos, PHOTOS[0]])]
    assert names == [Path("image 0"), path, photos / "flower.png", Path("image 2")]
    assert len(found_by(classifier, np.stack([pixels, pixels]))) == 2


def found_by(classifier, images):
    return [(one.image, one.classes) for one in predict(classifier, images)]


def test_an_image_without_a_name_is_named_by_its_index(classifier):
    wrong = np.zeros((4, 4), np.int32)
    with refuses(ImageError, "image 1:", "int32", "expected uint8"):
        predict(classifier, [PHOTOS[0], wrong])
    with refuses(ImageError, "image 0 is empty", "expected an image file"):
        predict(classifier, b"")


def test_classes_without_names_are_numbered(classifier, photos):
    classifier.labels = ()
    for prediction in predict(classifier, [photos], top=1):
        ((index, label, _),) = prediction.classes
        assert label == f"class {index}"


def test_another_number_of_names_is_refused(classifier, photos):
    classifier.labels = ("a", "b")
    with refuses(InvalidOption, "model.labels", "2 names", "1000 classes"):
        predict(classifier, [photos])


def test_a_classifier_that_is_not_trained_is_named(classifier, photos, tmp_path, caplog):
    assert predict(classifier, [photos], top=1)
    assert caplog.text == ""
    vitzoo.save(vitzoo.create("vit_digits", num_classes=3), tmp_path / "fresh.safetensors")
    predict(tmp_path / "fresh.safetensors", [photos])
    says(caplog.text, "same probabilities", "all zero", "train it", "trained weights")


def test_predict_without_a_classifier():
    model = vitzoo.create("vit_digits", pretrained=True, num_classes=0)
    with refuses(InvalidOption, "no classifier"):
        predict(model, [])


def test_an_unreadable_image_raises_after_the_others(classifier, photos):
    (photos / "broken.png").write_bytes(b"no image")
    with refuses(ImageError, "broken.png", "predictions", "all 3 images") as caught:
        predict(classifier, photos, batch_size=1)
    found = pickle.loads(pickle.dumps(caught.value)).predictions
    assert isinstance(found, vitzoo.Predictions)
    assert names_and_counts(found) == [("broken.png", 0), ("china.png", 5), ("flower.png", 5)]
    assert "not an image" in found[0].error
    assert "not an image" in repr(found).splitlines()[1]
    same = vitzoo.Predictor(classifier).predict(photos)
    assert [one.error for one in same] == [one.error for one in found]


def test_several_unreadable_images_are_listed(classifier, tmp_path):
    files = [tmp_path / f"{i}.png" for i in range(7)]
    with refuses(ImageError, "7 images", *map(str, files[:5]), "and 2 more") as caught:
        predict(classifier, files)
    assert "6.png" not in str(caught.value)
    assert "has the results" not in str(caught.value)  # there are none
    assert len(caught.value.predictions) == 7


@pytest.mark.parametrize("stream", [False, True])
def test_a_handler_gets_each_error(classifier, photos, tmp_path, stream):
    (photos / "broken.png").write_bytes(b"no image")
    empty = tmp_path / "empty"
    empty.mkdir()
    errors = []
    given = [photos, empty, "nope.jpg"]
    found = predict(classifier, given, batch_size=2, on_error=errors.append, stream=stream)
    assert [name for name, count in names_and_counts(found) if not count] == [
        "broken.png", "empty", "nope.jpg"
    ]  # fmt: skip
    assert [type(error) for error in errors] == [ImageError] * 3
    for error, text in zip(errors, ("broken.png", "contains no images", "nope.jpg"), strict=True):
        says(str(error), text)


def test_a_stream_yields_batch_by_batch_and_raises_at_the_end(classifier, photos):
    calls = []
    classifier.register_forward_hook(lambda *_: calls.append(1))
    found = predict(classifier, ["nope.jpg", photos], batch_size=1, stream=True)
    assert (next(found).image.name, calls) == ("nope.jpg", [])
    assert (next(found).image.name, calls) == ("china.png", [1])
    assert next(found).image.name == "flower.png"
    with refuses(ImageError, "nope.jpg") as caught:
        next(found)
    assert names_and_counts(caught.value.predictions) == [("nope.jpg", 0)]


def names_and_counts(found):
    return [(one.image.name, len(one.classes)) for one in found]


# The command


def test_the_command_prints_names_and_probabilities(run, saved, photos, classifier):
    code, out, err = run("predict", saved, photos, "--top", 2)
    assert code == 0
    assert "vitzoo: " not in err
    header, *rows = [line.split("\t") for line in out.splitlines()]
    assert header == ["image", "rank", "label", "probability"]
    assert len(rows) == 4
    shares = expected(classifier, PHOTOS[0]).topk(2)
    names = [vitzoo.labels("imagenet-1k")[i] for i in shares.indices]
    assert [row[2] for row in rows[:2]] == names
    assert [float(row[3]) for row in rows[:2]] == pytest.approx(shares.values.tolist(), abs=6e-5)


def test_the_digits_have_names_too(run):
    code, out, _ = run("predict", "vit_digits", DIGITS / "digit_7_scan_0081.png", "--top", "1")
    assert code == 0
    assert out.splitlines()[1].split("\t")[1:3] == ["1", "7"]


def test_a_terminal_shows_as_many_classes_as_asked_in_a_line_each(run, monkeypatch):
    monkeypatch.setattr("vitzoo.apps.predict.command.on_terminal", lambda: True)
    monkeypatch.setattr("vitzoo.cli.output.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    scan = DIGITS / "digit_7_scan_0081.png"
    for top in (1, 2, 8):
        _, out, _ = run("predict", "vit_digits", scan, "--top", top)
        heading, *rows = out.splitlines()
        assert heading.split() == ["image", "label", "probability"]
        assert len({row.split()[1] for row in rows}) == len(rows) == top
    _, out, _ = run("predict", "vit_digits", scan)
    heading, row = out.splitlines()
    assert ("next" in heading, row.count("%")) == (True, 5)


def test_a_terminal_of_80_columns_shows_one_line_for_each_image(run, monkeypatch, photos, saved):
    monkeypatch.setattr("vitzoo.apps.predict.command.on_terminal", lambda: True)
    monkeypatch.setattr("vitzoo.cli.output.on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    long = photos.parent / ("a_folder_with_a_long_name_" * 4)
    long.mkdir()
    shutil.copy(photos / "china.png", long / "\u6570\u6570\u6570.png")
    for files, names in (([photos], ["china.png", "flower.png"]), ([long], ["\u6570.png"])):
        code, out, _ = run("predict", saved, *files)
        heading, *rows = out.splitlines()
        assert (code, heading.split()) == (0, ["image", "label", "probability", "next"])
        assert all(name in row and "%" in row for name, row in zip(names, rows, strict=True))
        assert max(map(screen_width, [heading, *rows])) <= 80
    model = vitzoo.create(saved)
    model.labels = ("a class with a long name " * 9,) * 1000
    vitzoo.save(model, saved)
    _, out, _ = run("predict", saved, photos, "--top", 1)
    heading, *rows = out.splitlines()
    assert heading.split() == ["image", "label", "probability"]
    assert [row.count("...") for row in rows] == [2, 2]
    assert max(map(len, [heading, *rows])) <= 80


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_one_unreadable_image_does_not_end_the_run(run, saved, photos, form):
    (photos / "a.png").write_bytes(b"")
    os.mkfifo(photos / "d.png")
    code, out, err = run("predict", saved, photos, *form)
    assert code == 1
    first, second = (line for line in err.splitlines() if line.startswith("vitzoo: "))
    says(first, f"{photos}/a.png", "empty")
    says(second, f"{photos}/d.png", "named pipe")
    assert "china.png" in out
    assert "flower.png" in out
    assert "a.png" not in out.replace("china.png", "")
    if form:
        assert [len(row["classes"]) for row in json.loads(out)] == [5, 5]


def test_a_file_that_is_not_there_does_not_end_the_run(run, saved, photos):
    code, out, err = run("predict", saved, "nope.jpg", photos, "--json")
    assert code == 1
    found = [Path(row["image"]).name for row in json.loads(out)]
    assert found == ["china.png", "flower.png"]
    (line,) = (line for line in err.splitlines() if line.startswith("vitzoo: "))
    says(line, "nope.jpg")


def test_an_embedding_is_no_class(classifier, photos):
    classifier.head.embedding = True
    try:
        with refuses(InvalidOption, "1000 numbers", "not classes"):
            predict(classifier, [photos])
    finally:
        del classifier.head.embedding


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_single_unreadable_file_is_the_message_alone(run, saved, tmp_path, form):
    (tmp_path / "a.png").write_bytes(b"no image")
    code, out, err = run("predict", saved, tmp_path / "a.png", *form)
    assert (code, out) == (1, "")
    says(err, f"vitzoo: {tmp_path}/a.png")
    assert "Traceback" not in err


def test_the_help_says_what_unreadable_images_do(run):
    _, out, _ = run("predict", "--help")
    says(" ".join(out.split()), "the other images", "exit code is 1")


def test_an_empty_folder_is_an_error(run, tmp_path):
    code, out, err = run("predict", "vit_digits", tmp_path)
    assert (code, out) == (1, "")
    says(err, f"folder {tmp_path}", "no images", ".png, .jpg")


@pytest.mark.needs("names")
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_names_from_outside_cannot_write_to_the_terminal(run, classifier, tmp_path, form):
    classifier.labels = ("\x1b[31mred\n",) * 1000
    net = vitzoo.save(classifier, tmp_path / "net.safetensors")
    PHOTOS[0].save(tmp_path / "a.png")
    folder = os.fsencode(tmp_path) + b"/\x1b[2J\xff"
    os.mkdir(folder)  # noqa: PTH102  # bytes are no path
    shutil.copy(tmp_path / "a.png", folder + b"/a.png")
    code, out, err = run("predict", net, os.fsdecode(folder), *form)
    assert code == 0
    if form:
        (said,) = json.loads(out)
        assert said["image"] == os.fsdecode(folder + b"/a.png")
        assert said["classes"][0]["label"] == classifier.labels[0]
    else:
        assert r"\x1b[2J\xff/a.png" in out
        assert r"\x1b[31mred\n" in out
    assert (out + err).replace("\n", "").replace("\t", "").isprintable()


def test_hidden_files_are_no_images_and_others_are_counted(saved, photos, run, caplog):
    shutil.copy(photos / "china.png", photos / "._china.png")
    (photos / ".DS_Store").write_bytes(b"")
    for name in ("a.heic", "b.HEIC"):
        (photos / name).write_bytes(b"")
    code, out, err = run("predict", saved, photos, "--top", "1")
    assert (code, len(out.splitlines())) == (0, 3)
    says(err, "2 files are left out", ".heic (2)")
    found = vitzoo.Predictor(saved).predict(photos)
    assert [one.image.name for one in found] == ["china.png", "flower.png"]
    assert found.left_out == {".heic": 2}
    with caplog.at_level("INFO", "vitzoo"):
        assert len(predict(saved, photos)) == 2
    assert "2 files are left out" in caplog.text
    assert [row.image.name for row in predict(saved, photos / "._china.png")] == ["._china.png"]
