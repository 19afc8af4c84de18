"""`model.output_activation`: how logits become answers, and where it is stated."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from torch import nn
from torch.optim.swa_utils import AveragedModel

import vitzoo
from helpers import SMALL, fill, randn, refuses
from vitzoo.apps.predict.fingerprint import hash_data
from vitzoo.errors import CheckpointError, InvalidOption

PHOTO = np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)
TEXTS = {"class_embeddings": randn(5, 48), "logit_scale": 3.0}
ANSWERS = {
    "softmax": lambda logits: logits.softmax(-1),
    "sigmoid": torch.sigmoid,
    "identity": lambda logits: logits,
}


@pytest.fixture
def model():
    return fill(vitzoo.create(SMALL)).eval()


def metadata(model, path):
    with safe_open(vitzoo.save(model, path), "pt") as file:
        return json.loads(file.metadata()["vitzoo"])


def labels_of(model, **options):
    (row,) = vitzoo.Predictor(model, outputs="labels", **options)([PHOTO])
    return row.outputs["labels"]


@pytest.mark.parametrize("name", ANSWERS)
def test_every_way_to_answers(model, name, tmp_path):
    model.output_activation = name
    classes = model.num_classes
    with torch.no_grad():
        logits = model(vitzoo.transform(model)(Image.fromarray(PHOTO))[None])[0]
    best = ANSWERS[name](logits).topk(classes)
    expected = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    saved = vitzoo.save(model, tmp_path / "net.safetensors")
    for one in (model, vitzoo.create(saved).eval(), copy.deepcopy(model), AveragedModel(model)):
        predicted = vitzoo.predict(one, PHOTO, top=classes)[0].classes
        wrapped = isinstance(one, AveragedModel)
        for rows in (predicted, *([] if wrapped else [labels_of(one, top=classes)])):
            assert [index for index, *_ in rows] == [index for index, _ in expected]
            np.testing.assert_allclose(
                [value for *_, value in rows], [value for _, value in expected], atol=2e-6
            )
    predictor = pickle.loads(pickle.dumps(vitzoo.Predictor(saved, outputs="labels", top=classes)))
    np.testing.assert_allclose(
        [value for *_, value in predictor([PHOTO])[0].outputs["labels"]],
        [value for _, value in expected],
        atol=2e-6,
    )


@pytest.mark.parametrize("value", ["relu", "", None, 1, "Sigmoid", ["sigmoid"]])
def test_other_values_are_refused(model, value):
    with refuses(InvalidOption, "output_activation", "'softmax'", "'identity'", repr(value)):
        model.output_activation = value
    assert model.output_activation == "softmax"


def test_a_wrong_value_in_a_file_is_refused(model, tmp_path):
    model.output_activation = "sigmoid"
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    path.write_bytes(path.read_bytes().replace(b"sigmoid", b"sigmoi!"))
    with refuses(CheckpointError, "output_activation", "sigmoi!", "softmax, sigmoid, identity"):
        vitzoo.create(path)


def test_the_usual_way_is_stated_nowhere(model, tmp_path):
    """Files and fingerprints are those of a version that knows no other way."""
    texts = vitzoo.create(SMALL | {"num_classes": 0}, **TEXTS, logit_bias=-1.0).eval()
    assert (model.output_activation, texts.output_activation) == ("softmax", "sigmoid")
    for one in (model, texts):
        assert "output_activation" not in metadata(one, tmp_path / "net.safetensors")
        predictor = vitzoo.Predictor(one, outputs="labels", top=2)
        names = [f"class {i}" for i in range(one.num_classes)]
        assert predictor.fingerprint().labels == hash_data([names, 2])
        one.output_activation = "identity"
        stated = vitzoo.Predictor(one, outputs="labels", top=2).fingerprint()
        assert stated.labels != predictor.fingerprint().labels
        assert metadata(one, tmp_path / "net.safetensors")["output_activation"] == "identity"
        assert stated.changes == ()


def test_a_new_head_has_its_usual_way(model):
    model.output_activation = "sigmoid"
    model.head = nn.Sequential(model.head)  # a wrapper of the same head
    assert model.output_activation == "sigmoid"
    model.head = nn.Linear(48, 3)
    assert model.output_activation == "softmax"
    model.output_activation = "identity"
    model.reset_classifier(2)
    assert model.output_activation == "softmax"


def test_one_class_needs_a_statement(tmp_path, run, core_image):
    model = fill(vitzoo.create(SMALL | {"num_classes": 1})).eval()
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    assert vitzoo.Predictor(path, outputs="logits")([PHOTO])[0].outputs["logits"].shape == (1,)
    for call in (
        lambda: vitzoo.predict(path, PHOTO),
        lambda: vitzoo.Predictor(path, outputs=("pooled", "labels")),
        lambda: vitzoo.Predictor(path).predict(PHOTO),
    ):
        with refuses(InvalidOption, "'sigmoid'", "'identity'", "output_activation"):
            call()
    code, out, err = run("predict", path, core_image)
    assert (code, out) == (2, "")
    assert "'identity'" in err
    model.output_activation = "identity"
    ((_, name, number),) = labels_of(model)
    code, out, _ = run("predict", vitzoo.save(model, path), core_image)
    assert code == 0
    assert f"\t{name}\t{number:.4f}" in out
    one_text = TEXTS | {"class_embeddings": randn(1, 48)}
    texts = vitzoo.create(SMALL | {"num_classes": 0}, **one_text, logit_bias=0.0)
    assert labels_of(texts.eval()) == ((0, "class 0", 1.0),)  # as open_clip's softmax of one text


@pytest.fixture
def core_image(tmp_path):
    Image.fromarray(PHOTO).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_a_regression_is_shown_as_a_number(model):
    model.output_activation = "identity"
    found = vitzoo.Predictor(model).predict(PHOTO)
    assert "%" not in repr(found)
    assert f"{found[0].classes[0][2]:.4g}" in repr(found)
    model.output_activation = "sigmoid"
    assert "%" in repr(vitzoo.Predictor(model).predict(PHOTO))
