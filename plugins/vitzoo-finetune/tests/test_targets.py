"""What a network learns: classes, labels or a number; whole runs on scikit-learn's digits."""

import csv
import json
import tomllib

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from pyarrow import parquet

import vitzoo
from helpers import refuses, says
from tables import cases
from vitzoo.errors import InvalidOption
from vitzoo_finetune.images import read_data
from vitzoo_finetune.targets import Classes, Labels, Number

SHORT = {"epochs": 2, "batch_size": 24, "progress": False}


def train(data, out, **options):
    from vitzoo_finetune import finetune

    return finetune("vit_digits", data, out, **SHORT | options)


def test_classes_take_indices_and_mixed_targets():
    target, outputs = Classes("abc", ()), torch.tensor([[1.0, 2, 3], [3, 0, 0]])
    hard = torch.tensor([2, 1])
    expected = F.cross_entropy(outputs, hard, label_smoothing=0.1)
    torch.testing.assert_close(target.losses(outputs, hard, 0.1).mean(), expected)
    soft = F.one_hot(hard, 3).float()
    torch.testing.assert_close(target.losses(outputs, soft, 0.1).mean(), expected)
    found = target.answers(outputs).double().numpy()
    assert target.score(found, [2, 1]) == 0.5
    assert target.wrong(found[0], 2) == ""
    assert target.wrong(found[1], 1) == "b\nas a"
    assert target.confusion(found, [2, 1]).tolist() == [[0, 0, 0], [1, 0, 0], [0, 0, 1]]
    assert target.weights([0, 0, 1]) == [0.5, 0.5, 1]


def test_labels_are_measured_by_precision_of_the_classes_that_occur():
    target = Labels(("a", "b", "c"), ())
    assert target.encode((0, 2)).tolist() == [1, 0, 1]
    found = np.array([[0.9, 0.1, 0.5], [0.8, 0.6, 0.5], [0.1, 0.7, 0.5]])
    true = [(0,), (), (0, 1)]
    # a: 1 of 1, then 2 of 3; b: 1 of 1; c does not occur
    assert target.score(found, true) == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2)
    assert target.score(found, [(0,), (), ()]) == 1
    assert target.score(found, [(), (), ()]) == 0
    assert target.wrong(found[2], (0, 1)) == "without a"
    assert target.wrong(found[1], ()) == "with a, b"
    assert target.weights(true) == [0.5, 1.0, 1.0]


def test_numbers_are_learned_with_mean_0_and_deviation_1():
    target = Number(("age",), [10.0, 30.0])
    assert [target.encode(x).item() for x in (10.0, 30.0)] == [-1, 1]
    found = target.answers(torch.tensor([[0.5], [1.0]])).numpy()
    assert found.tolist() == [[25], [30]]
    assert target.score(found, [10.0, 30.0]) == 7.5
    with refuses(InvalidOption, "10", "different"):
        Number(("age",), [10.0, 10.0])


@pytest.mark.slow
def test_labels(digits, tmp_path, run):
    made = train(digits, tmp_path / "run", target="labels", label_column="kinds")
    assert made.classes == ("even", "round", "small")
    model = vitzoo.create(made.path)
    assert (model.labels, model.output_activation) == (made.classes, "sigmoid")
    with (tmp_path / "run" / "metrics.csv").open() as file:
        scores = [float(line["val_mAP"]) for line in csv.DictReader(file)]
    assert made.val_score == max(scores) == scores[made.best_epoch - 1]
    columns = dict.fromkeys(("image_column", "split_column")) | {"label_column": "kinds"}
    data = read_data(digits, columns, vitzoo.transform(model), "labels")
    assert any(not answer for _, answer in data.train)
    files = [image.image for image, _ in data.test]
    found = [dict(one.classes[i][1:] for i in range(3)) for one in vitzoo.predict(model, files)]
    table = np.array([[one[name] for name in made.classes] for one in found])
    expected = data.target.score(table, [answer for _, answer in data.test])
    assert made.test_score == pytest.approx(expected, abs=1e-6)
    assert {path.name for path in (tmp_path / "run").iterdir()} & {
        "confusion.png",
        "curves.png",
        "mistakes.png",
    } == {"curves.png", "mistakes.png"}
    code, text, _ = run("predict", tmp_path / "run", files[0], "--json")
    assert code == 0
    assert json.loads(text)[0]["image"] == str(files[0])
    shown = {one["label"]: one["probability"] for one in json.loads(text)[0]["classes"]}
    assert shown == pytest.approx(found[0], abs=1e-5)


@pytest.mark.slow
def test_labels_are_mixed(digits, tmp_path):
    options = {"target": "labels", "label_column": "kinds", "mixup": 0.8, "cutmix": 1.0}
    made = train(digits, tmp_path / "run", **options, epochs=1)
    assert made.settings.mixup == 0.8


@pytest.mark.slow
@cases("method", ["full", "lora"])
def test_a_number(digits, tmp_path, run, method):
    made = train(digits, tmp_path / "run", target="number", label_column="value", method=method)
    model = vitzoo.create(made.path)
    assert (model.labels, model.output_activation) == (("value",), "identity")
    with digits.open() as file:
        lines = [one for one in csv.DictReader(file) if one["split"] == "test"]
    files = [digits.parent / one["path"] for one in lines]
    found = [one.classes[0][2] for one in vitzoo.predict(model, files)]
    errors = [abs(x - float(one["value"])) for x, one in zip(found, lines, strict=True)]
    assert made.test_score == pytest.approx(np.mean(errors), rel=1e-4)
    table = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert table["result"]["val_MAE"] == made.val_score
    with (tmp_path / "run" / "metrics.csv").open() as file:
        assert min(float(one["val_MAE"]) for one in csv.DictReader(file)) == made.val_score
    if method == "lora":
        adapted = vitzoo.create("vit_digits", adapter=tmp_path / "run" / "adapter")
        again = [one.classes[0][2] for one in vitzoo.predict(adapted, files[:2])]
        assert again == pytest.approx(found[:2], rel=1e-4)
    code, text, _ = run("predict", tmp_path / "run", files[0])
    says(text, "number", f"{found[0]:.6g}")
    assert code == 0


def test_targets_that_are_refused(digits, tmp_path):
    columns = dict.fromkeys(("image_column", "split_column", "label_column"))
    prepare = vitzoo.transform("vit_digits")
    with refuses(InvalidOption, digits, "120 of 120 rows", "no number in kinds"):
        read_data(digits, columns | {"label_column": "kinds"}, prepare, "number")
    rows = digits.parent / "rows.parquet"
    for cells, value in (([["a"], ["b"]], "list<"), ([0.5, 1.5], "0.5")):
        parquet.write_table(pa.table({"path": ["0.png", "1.png"], "label": cells}), rows)
        with refuses(InvalidOption, rows, value, "--target labels", "--target number"):
            read_data(rows, columns, prepare)
    with refuses(InvalidOption, "target", "'label'", "'labels'"):
        train(digits, tmp_path / "x", target="label")
    with refuses(InvalidOption, "label_smoothing", "0.1", "labels"):
        train(
            digits,
            tmp_path / "x",
            target="labels",
            label_column="kinds",
            label_smoothing=0.1,
        )
