"""`create(class_embeddings=, labels=, logit_scale=, logit_bias=)`: what it reads and refuses.

The numbers of transformers and open_clip are in plugins/vitzoo-clip/tests/test_text_head.py.
"""

import json

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

import vitzoo
from helpers import SMALL, randn, refuses
from tables import check_all
from vitzoo.errors import CheckpointError, InvalidOption, UnknownName

WIDTH = 48
SPEC = SMALL | {"num_classes": 0}
VECTORS = randn(3, WIDTH)
GOOD = {"class_embeddings": VECTORS, "logit_scale": 20.0, "logit_bias": -2.0}
LABELS = ("one", "two", "three")


def spoilt(value, row=1):
    """Return the vectors with one row of this value."""
    vectors = VECTORS.clone()
    vectors[row] = value
    return vectors


@torch.no_grad()
def test_the_formula():
    plain = vitzoo.create(SPEC).eval()
    model = vitzoo.create(SPEC, **GOOD, labels=LABELS).eval()
    model.load_state_dict(plain.state_dict(), strict=False)
    images = randn(2, 3, 32, 32, seed=1)
    cosine = F.cosine_similarity(plain(images)[:, None], VECTORS[None], dim=-1)
    torch.testing.assert_close(model(images), 20 * cosine - 2, rtol=0, atol=1e-5)
    pooled = model.forward_head(model.forward_features(images), pre_logits=True)
    torch.testing.assert_close(pooled, plain(images))
    assert model.spec.head.to_data() == {"name": "cosine", "logit_bias": True}
    assert (model.labels, model.num_classes) == (LABELS, 3)


SAME = {
    "array": VECTORS.numpy(),
    "float64": VECTORS.double().numpy(),
    "with gradients": VECTORS.clone().requires_grad_(),
    "longer": 1e30 * VECTORS,
    "shorter": 1e-30 * VECTORS,
    "columns first": np.asfortranarray(VECTORS.numpy()),
}


def test_forms_of_the_vectors_and_numbers():
    expected = vitzoo.create(SPEC, **GOOD).head.state_dict()
    for given in SAME.values():
        found = vitzoo.create(SPEC, **GOOD | {"class_embeddings": given}).head
        for name, tensor in found.state_dict().items():
            torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-7)
    numbers = {"logit_scale": np.float32(20), "logit_bias": torch.tensor([-2.0])}
    assert vitzoo.create(SPEC, **GOOD | numbers).head.logit_bias.item() == -2


def test_the_call_overrides_the_file(tmp_path):
    file = tmp_path / "texts.safetensors"
    numbers = {"logit_scale": torch.tensor([20.0]), "logit_bias": torch.tensor(0.0)}
    metadata = {"labels": json.dumps(LABELS)}
    safetensors.torch.save_file({"class_embeddings": VECTORS} | numbers, file, metadata)
    model = vitzoo.create(SPEC, class_embeddings=file)
    assert (model.labels, model.head.logit_bias, model.head.sigmoid) == (LABELS, None, False)
    others = {"labels": ["x", "y", "z"], "logit_scale": 5, "logit_bias": 0.5}
    model = vitzoo.create(SPEC, class_embeddings=str(file), **others, num_classes=3)
    assert model.labels == ("x", "y", "z")
    assert [model.head.logit_scale.item(), model.head.logit_bias.item()] == [5, 0.5]
    many = {"class_embeddings": randn(1000, WIDTH), "labels": "imagenet-1k"}
    assert vitzoo.create(SPEC, **GOOD | many).labels[207] == "golden retriever"


def test_classes_of_one_name_keep_it():
    labels = ["sunglasses", "kite", "sunglasses"]
    model = vitzoo.create(SPEC, **GOOD, labels=labels)
    assert model.labels == ("sunglasses (0)", "kite", "sunglasses (2)")
    many = {"class_embeddings": randn(100_000, WIDTH), "labels": ["a"] * 100_000}
    assert vitzoo.create(SPEC, **GOOD | many).labels[-1] == "a (99999)"  # minutes, if quadratic


REFUSED = {
    "no scale": ({"logit_scale": None}, ["logit_scale is not given", "model.logit_scale.exp()"]),
    "no bias": (
        {"logit_bias": None},
        ["logit_bias is not given", "model.logit_bias.item()", "CLIP"],
    ),
    "scale": ({"logit_scale": -4.6}, ["a positive number", "-4.6", "not its logarithm"]),
    "scales": ({"logit_scale": torch.ones(2)}, ["logit_scale must be a positive number"]),
    "bias": ({"logit_bias": float("nan")}, ["logit_bias must be one number", "nan"]),
    "text": ({"logit_bias": "0"}, ["logit_bias must be one number", "'0'"]),
    "list": ({"class_embeddings": [[1.0]]}, ["a tensor or an array", ".npz", "[[1.0]]"]),
    "integers": ({"class_embeddings": VECTORS.long()}, ["floating-point", "torch.int64"]),
    "meta": ({"class_embeddings": VECTORS.to("meta")}, ["floating-point", "meta"]),
    "one vector": ({"class_embeddings": VECTORS[0]}, ["(classes, width)", "(48,)"]),
    "no class": ({"class_embeddings": VECTORS[:0]}, ["(classes, width)", "(0, 48)"]),
    "zero": ({"class_embeddings": spoilt(0)}, ["not zero", "row 1", "1 of 3 rows"]),
    "infinite": ({"class_embeddings": spoilt(float("inf"), 2)}, ["finite", "row 2"]),
    "width": ({"class_embeddings": randn(3, 8)}, ["the width 8", "the width 48", "text tower"]),
    "labels": ({"labels": ["a", "b"]}, ["2 names for 3 class_embeddings"]),
    "sparse": ({"class_embeddings": VECTORS.to_sparse()}, ["dense", "sparse_coo", "to_dense()"]),
    "no text": ({"labels": ["a", "", "c"]}, ["texts that are not empty", "''"]),
    "a set": ({"labels": {"a"}}, ["a list of texts", "{'a'}"]),
    "bytes": ({"labels": b"abc"}, ["texts that are not empty", "b'abc'"]),
    "one number": ({"labels": 3}, ["texts that are not empty", "3"]),
    "label set": ({"labels": "imagenet-1k"}, ["1000 names for 3 class_embeddings"]),
    "num_classes": ({"num_classes": 4}, ["num_classes is 4", "3 classes"]),
    "head": ({"head": "mlp"}, ["head='mlp'", "leave one of both out"]),
    "address": ({"class_embeddings": "hf://a/b"}, ["hf://a/b", "download"]),
    "alone": ({"class_embeddings": None}, ["logit_scale needs class_embeddings"]),
}


def test_values_that_are_refused():
    def check(case):
        changes, words = case
        with refuses(InvalidOption, *words):
            vitzoo.create(SPEC, **GOOD | changes)

    nested = torch.nested.nested_tensor([randn(2, 8), randn(3, 8)], layout=torch.jagged)
    check_all(
        REFUSED
        | {"nested": ({"class_embeddings": nested}, ["one width", "nested", "torch.stack"])},
        check,
    )
    with refuses(UnknownName, "imagenet-2k", "imagenet-1k"):
        vitzoo.create(SPEC, **GOOD, labels="imagenet-2k")


NETWORKS = {
    "classes": (SMALL, ["the width 7", "embedding"]),
    "two layers": (SPEC | {"head": "mlp"}, ["one linear layer", "PreLogitsHead"]),
    "two vectors": (SPEC | {"pool": "class_mean"}, ["pool gives 2 vectors"]),
}


def test_networks_that_are_refused(tmp_path):
    def check(case):
        spec, words = case
        with refuses(InvalidOption, *words):
            vitzoo.create(spec, **GOOD)

    check_all(NETWORKS, check)
    model = vitzoo.create(SMALL)
    model.labels = tuple("abcdefg")
    with torch.no_grad():
        model.head.weight.fill_(1)
    path = vitzoo.save(model, tmp_path / "classes.safetensors")
    with refuses(InvalidOption, "7 named classes"):
        vitzoo.create(path, **GOOD | {"class_embeddings": randn(3, 7)})


def test_files_that_are_refused(tmp_path):
    file = tmp_path / "texts.safetensors"
    with refuses(CheckpointError, "none.npz"):
        vitzoo.create(SPEC, class_embeddings=tmp_path / "none.npz")
    safetensors.torch.save_file({"text_embeds": VECTORS}, file)
    with refuses(CheckpointError, file, "no tensor 'class_embeddings'", "text_embeds"):
        vitzoo.create(SPEC, class_embeddings=file)
    saved = vitzoo.save(vitzoo.create(SPEC, **GOOD), tmp_path / "saved.safetensors")
    with refuses(CheckpointError, saved, "a file of vitzoo.save", "create(path)"):
        vitzoo.create(SPEC, class_embeddings=saved)
    for text, error, words in (
        ("one, two", CheckpointError, ["labels", "JSON"]),
        ('["a", 2, "c"]', InvalidOption, ["2 (int)"]),
    ):
        safetensors.torch.save_file({"class_embeddings": VECTORS}, file, {"labels": text})
        with refuses(error, *words):
            vitzoo.create(SPEC, class_embeddings=file, logit_scale=1, logit_bias=0)
    with refuses(InvalidOption, "logit_scale is not given", file, "no tensor 'logit_scale'"):
        vitzoo.create(SPEC, class_embeddings=file)


@pytest.mark.parametrize("bias", [False, True])
def test_the_head_by_its_name(bias):
    head = {"name": "cosine", "width": 16, "logit_bias": bias}
    model = vitzoo.create(SMALL, head=head).eval()
    assert model(randn(1, 3, 32, 32)).tolist() == [[0.0] * 7]
    assert model.head.sigmoid is bias
    assert vitzoo.create(model.spec).spec == model.spec
    for wrong, word in (({"width": 0}, "width"), ({"logit_bias": 1}, "logit_bias")):
        with refuses(InvalidOption, word, "got"):
            vitzoo.create(SMALL, head=head | wrong)
