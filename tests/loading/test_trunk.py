"""A file with only a classifier: `create` finds its trunk by name, in its folder or by path."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import vitzoo
from helpers import randn, refuses, says
from internals import Trunk, changed, data_file, save_classifier
from vitzoo.errors import CheckpointError, HashMismatch, InvalidOption

CLASSES = ("cat", "dog", "horse")
DIGITS = vitzoo.describe("vit_digits").default_weights
REGISTERED = Trunk(DIGITS.sha256, weights="vit_digits:digits_v1")


def written(path, model, trunk):
    """Write a classifier on a model; return its head."""
    spec = changed(model.spec, {"num_classes": 3, "head": "linear"})
    head = {"head.weight": randn(3, spec.embed_dim), "head.bias": randn(3, seed=1)}
    save_classifier(path, spec, head, trunk, labels=CLASSES, preprocessing=model.preprocessing)
    return head


def logits(model, head, images):
    """Compute the logits from the pooled features of another model."""
    with torch.no_grad():
        features = model.eval().features(images, ["pool"])["pool"]
    return features @ head["head.weight"].T + head["head.bias"]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "classifier.safetensors"


@pytest.fixture
def digits():
    return vitzoo.create("vit_digits", pretrained=True)


@pytest.fixture
def own(small, randomise, tmp_path):
    """A saved network with another head, and its trunk."""
    model = randomise(vitzoo.create(small | {"head": "tanh", "num_classes": 9}))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    return model, Trunk(hashlib.sha256(path.read_bytes()).hexdigest(), file=path.name)


def same_logits(model, expected):
    with torch.no_grad():
        found = model.eval()(expected[0])
    assert expected[1].abs().max() > 0.1
    torch.testing.assert_close(found, expected[1], rtol=0, atol=1e-5)


def test_a_classifier_of_registered_weights(file, digits):
    head = written(file, digits, REGISTERED)
    assert file.stat().st_size < 4096
    model, images = vitzoo.create(file), randn(4, 1, 28, 28)
    same_logits(model, (images, logits(digits, head, images)))
    assert vitzoo.labels(file) == vitzoo.labels(model) == CLASSES
    assert vitzoo.transform(file).preprocessing == digits.preprocessing
    report = model.load_report
    assert (report.source, report.license) == (str(file), "Apache-2.0")
    assert report.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (report.trunk, report.trunk_sha256) == ("vit_digits:digits_v1", DIGITS.sha256)
    says(str(report), "classifier on vit_digits:digits_v1", DIGITS.sha256[:12])
    assert set(report.kept) == set(model.state_dict())
    state, trunk = model.state_dict(), digits.state_dict()
    assert all(torch.equal(state[n], trunk[n]) for n in trunk if not n.startswith("head."))


def test_a_classifier_of_a_file_in_its_folder(file, own, images):
    head = written(file, own[0], own[1])
    same_logits(vitzoo.create(file), (images, logits(own[0], head, images)))
    other = file.parent / "other" / file.name
    other.parent.mkdir()
    file.rename(other)
    fix = "pass the path of net.safetensors: --weights FILE (weights=)"
    with refuses(CheckpointError, other, own[1].sha256, fix):
        vitzoo.create(other)
    for name in ("vit_digits", "net.safetensors"):
        with refuses(CheckpointError, other, f"weights={name!r}", fix):
            vitzoo.create(other, weights=name)
    model = vitzoo.create(other, weights=file.parent / "net.safetensors")
    same_logits(model, (images, logits(own[0], head, images)))


def test_a_file_name_that_is_too_long_is_no_file(file, digits):
    written(file, digits, Trunk(DIGITS.sha256, file=f"{'x' * 300}.safetensors"))
    with refuses(CheckpointError, file, DIGITS.sha256, "not in the same folder", "--weights FILE"):
        vitzoo.create(file)


@pytest.mark.workflows
def test_a_trunk_in_another_format(file, own, images, tmp_path):
    vitzoo.convert(tmp_path / "net.safetensors", "google", tmp_path / "net.npz")
    sha256 = hashlib.sha256((tmp_path / "net.npz").read_bytes()).hexdigest()
    head = written(file, own[0], Trunk(sha256, file="net.npz"))
    same_logits(vitzoo.create(file), (images, logits(own[0], head, images)))


def test_the_trunk_must_have_the_stated_sha256(file, own, digits, tmp_path):
    trunk = tmp_path / "net.safetensors"
    written(file, own[0], own[1])
    data = bytearray(trunk.read_bytes())
    data[-1] ^= 1
    trunk.write_bytes(data)
    found = hashlib.sha256(data).hexdigest()
    with refuses(HashMismatch, file, own[1].sha256, trunk, found, "weights=") as caught:
        vitzoo.create(file)
    assert caught.value.exit_code == 3
    with refuses(HashMismatch, own[1].sha256, found):
        vitzoo.create(file, weights=trunk)
    written(file, digits, Trunk("0" * 64, weights="vit_digits:digits_v1"))
    with refuses(HashMismatch, file, "0" * 64, DIGITS.sha256, "weights="):
        vitzoo.create(file)
    written(file, digits, Trunk("0" * 64, file="x.safetensors"))
    with refuses(HashMismatch, "0" * 64, DIGITS.sha256):
        vitzoo.create(file, weights=data_file("vitzoo", DIGITS.file))


@pytest.mark.parametrize("name", ["vit_none:v1", "vit_digits:v2", "acme/net:v1"])
def test_a_trunk_that_is_not_registered(file, digits, name):
    head = written(file, digits, Trunk(DIGITS.sha256, weights=name))
    fix = "pass a file with this sha256: --weights FILE (weights=)"
    with refuses(CheckpointError, file, name, DIGITS.sha256, fix):
        vitzoo.create(file)
    images = randn(2, 1, 28, 28)
    model = vitzoo.create(file, weights=data_file("vitzoo", DIGITS.file))
    same_logits(model, (images, logits(digits, head, images)))


def test_a_trunk_on_the_hub_has_to_be_passed(file, digits):
    written(file, digits, Trunk(DIGITS.sha256, weights="hf://acme/net@main/x"))
    with refuses(CheckpointError, file, "pass the address: --weights hf://acme/net@main/x"):
        vitzoo.create(file)


def test_arguments_of_create(file, digits):
    written(file, digits, REGISTERED)
    model = vitzoo.create(file, num_classes=2, image_size=56, dtype=torch.float64)
    assert model(torch.zeros(1, 1, 56, 56, dtype=torch.float64)).shape == (1, 2)
    assert model.load_report.resampled == ("pos_embed",)
    assert set(model.load_report.reinitialised) == {"head.weight", "head.bias"}
    with refuses(InvalidOption, "weights", "3", "path"):
        vitzoo.create(file, weights=3)


def test_it_is_no_weights_file_of_a_network(file, digits, tmp_path):
    written(file, digits, REGISTERED)
    with refuses(CheckpointError, file, REGISTERED, "create("):
        vitzoo.create("vit_digits", weights=file)
    with refuses(CheckpointError, file):
        vitzoo.convert(file, "timm", tmp_path / "new.safetensors")


def changed_file(file, tensors=None, **changes):
    with safe_open(file, "pt") as opened:
        data = json.loads(opened.metadata()["vitzoo"]) | changes
    save_file(tensors or load_file(file), file, {"vitzoo": json.dumps(data)})


BAD = {
    "../net.safetensors": ("file", "folders"),
    "/etc/passwd": ("file", "folders"),
    "": ("file", "printable"),
    "a\nb": ("file", "printable"),
}


@pytest.mark.parametrize("name", BAD)
def test_hostile_file_names(file, digits, name):
    written(file, digits, Trunk("0" * 64, file="net.safetensors"))
    changed_file(file, trunk={"sha256": "0" * 64, "file": name})
    with refuses(CheckpointError, file, *BAD[name]):
        vitzoo.create(file)


def test_damaged_metadata(file, digits):
    written(file, digits, REGISTERED)
    good = file.read_bytes()
    for trunk in ({}, {"sha256": "0" * 63}, {"sha256": "0" * 64, "url": "x"}, [], {"sha256": 1}):
        file.write_bytes(good)
        changed_file(file, trunk=trunk)
        with refuses(CheckpointError, file, "trunk"):
            vitzoo.create(file)
    file.write_bytes(good)
    changed_file(file, tensors={"head.weight": torch.zeros(3, 64), "cls_token": torch.zeros(64)})
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(file)
    says(str(caught.value), file, "head.bias", "cls_token")
    changed_file(file, tensors={"head.weight": torch.ones(4, 64), "head.bias": torch.ones(4)})
    with refuses(CheckpointError, file, "head.weight"):
        vitzoo.create(file)


def test_the_command_predicts_with_it(file, digits, run):
    written(file, digits, REGISTERED)
    scan = Path(__file__).parents[2] / "docs" / "examples" / "digits" / "digit_7_scan_0081.png"
    code, out, _ = run("predict", file, scan, "--top", 3)
    assert code == 0
    assert {line.split("\t")[2] for line in out.splitlines()[1:]} == set(CLASSES)
