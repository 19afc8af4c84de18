"""Classes in configs: equal names, and answers that are those of transformers' pipeline."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from helpers import randn, refuses, says
from vitzoo.errors import InvalidOption
from vitzoo.foreign.labels import activation_in, labels_in, problem_of
from vitzoo.registry.label_sets import synsets

PHOTO = Image.fromarray(np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3))
PROBLEMS = [
    *((None, 3), (None, 1), ("single_label_classification", 3)),
    *(("multi_label_classification", 3), ("multi_label_classification", 1)),
    *(("regression", 3), ("regression", 1)),
]


@pytest.fixture
def folder(tmp_path, transformers):
    """Write a network of transformers with this problem type and number of classes."""

    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    def write(problem, classes, **more):
        config = transformers.ViTConfig(
            hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
            image_size=32, patch_size=8, problem_type=problem,
            id2label={i: f"kind {i}" for i in range(classes)}, **more,
        )  # fmt: skip
        model = transformers.ViTForImageClassification(config)
        with torch.no_grad():
            model.classifier.weight.copy_(randn(classes, 32))
        model.save_pretrained(tmp_path)
        ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
        return tmp_path

    return write


@pytest.mark.parametrize(("problem", "classes"), PROBLEMS)
def test_answers_are_those_of_the_pipeline(
    folder, problem, classes, tmp_path, monkeypatch, transformers
):
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    written = folder(problem, classes)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    processor = ViTImageProcessorPil.from_pretrained(written)
    ask = transformers.pipeline(
        "image-classification", str(written), image_processor=processor, device="cpu"
    )
    expected = {row["label"]: row["score"] for row in ask(PHOTO, top_k=classes)}
    model = vitzoo.create(written)
    saved = vitzoo.save(model, tmp_path / "saved.safetensors")
    assert ("output_activation" in saved_metadata(saved)) == (model.output_activation != "softmax")
    for one in (model, saved):
        predicted = vitzoo.predict(one, PHOTO, top=classes)[0].classes
        (row,) = vitzoo.Predictor(one, outputs="labels", top=classes)([PHOTO])
        for found in (predicted, row.outputs["labels"]):
            assert [name for _, name, _ in found] == list(expected)
            values = [value for *_, value in found]
            np.testing.assert_allclose(values, list(expected.values()), rtol=2e-6, atol=2e-6)


def saved_metadata(path):
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return json.loads(json.loads(file.read(size))["__metadata__"]["vitzoo"])


def test_a_new_classifier_has_no_statement_of_the_old_one(folder):
    written = folder("multi_label_classification", 3)
    assert vitzoo.create(written).output_activation == "sigmoid"
    assert vitzoo.create(written, num_classes=5).output_activation == "softmax"
    one = vitzoo.create(written, num_classes=1)
    with refuses(InvalidOption, "'sigmoid'", "'identity'"):
        vitzoo.predict(one, PHOTO)
    model = vitzoo.create(written)
    model.reset_classifier(4)
    assert model.output_activation == "softmax"


@pytest.mark.parametrize("value", ["multilabel", 3, ["regression"], ""])
def test_an_unknown_problem_type_is_named_and_not_used(folder, value):
    written = folder(None, 3)
    config = json.loads((written / "config.json").read_text())
    (written / "config.json").write_text(json.dumps(config | {"problem_type": value}))
    model = vitzoo.create(written)
    (note,) = (row for row in model.load_report.assumed if "problem_type" in row)
    says(note, "problem_type", repr(value), "multi_label_classification")
    assert model.output_activation == "softmax"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"id2label": {"0": "cat"}}, "sigmoid"),
        ({"num_labels": 1}, "sigmoid"),
        ({"num_labels": 2}, ""),
        ({}, ""),
        ({"architecture": "vit_tiny_patch16_224", "num_classes": 1, "label_names": ["cat"]}, ""),
        (
            {"architecture": "vit_tiny_patch16_224", "model_type": "timm_wrapper", "num_labels": 1},
            "sigmoid",
        ),
        ({"architecture": "vit_tiny_patch16_224", "problem_type": "regression"}, "identity"),
    ],
    ids=str,
)
def test_one_class_has_a_sigmoid_in_a_config_of_transformers_alone(config, expected):
    assert activation_in(config) == (expected, ())
    assert activation_in({"num_labels": 5} | problem_of(expected))[0] == expected


NAMES = ["crane", "kite", "crane"]
TOLD_APART = ("crane (0)", "kite", "crane (2)")


@pytest.mark.parametrize(
    "config",
    [
        {"id2label": {str(i): name for i, name in enumerate(NAMES)}},
        {"label_names": NAMES},
        {"pretrained_cfg": {"label_names": NAMES}},
        {"architecture": "vit_tiny_patch16_224", "labels": NAMES},
    ],
    ids=["transformers", "timm", "timm, inside", "timm, before"],
)
def test_classes_of_one_name_keep_it(config):
    assert labels_in(config) == (TOLD_APART, ())


def test_the_two_cranes_of_imagenet():
    texts = [", ".join(names) for _, names in synsets("imagenet-1k")]  # as in transformers
    names, notes = labels_in({"id2label": {str(i): name for i, name in enumerate(texts)}})
    same = vitzoo.labels("imagenet-1k")
    assert (names[134], names[517], notes) == (same[134], same[517], ())
    assert [name for i, name in enumerate(names) if i not in (134, 517)] == [
        text for i, text in enumerate(texts) if i not in (134, 517)
    ]


def test_a_config_with_the_names_of_21841_classes(folder):
    names = [f"{', '.join(each)} {wnid}" for wnid, each in synsets("imagenet-22k")]
    names = [f"{name:40}." for name in names]
    written = folder(None, 3)
    config = json.loads((written / "config.json").read_text())
    tables = {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    (written / "config.json").write_text(json.dumps(config | tables, indent=2))
    assert (written / "config.json").stat().st_size > 2**20 * 1.7
    assert vitzoo.labels(written) == tuple(names)
