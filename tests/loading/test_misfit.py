"""Weights that do not fit, paths taken for names: the error says what would do."""

import pytest
import torch
from safetensors.torch import save_file

import vitzoo
from helpers import message, refuses, says
from vitzoo.errors import CheckpointError, UnknownName, WeightsUnavailable


@pytest.fixture
def write(tmp_path):
    def write(model, name="net.safetensors"):
        save_file(model.state_dict(), tmp_path / name)
        return tmp_path / name

    return write


@pytest.mark.parametrize("head", ["linear", "tanh"])
def test_other_classes(small, write, head):
    path = write(vitzoo.create(small | {"head": head}, num_classes=7))
    with refuses(CheckpointError, "7 classes", "num_classes=7"):
        vitzoo.create(small | {"head": head}, weights=path)
    vitzoo.create(small | {"head": head}, weights=path, num_classes=7)


def test_no_classifier(small, write):
    path = write(vitzoo.create(small, num_classes=0))
    with refuses(CheckpointError, "no classifier", "num_classes=", 0):
        vitzoo.create(small, weights=path)
    vitzoo.create(small, weights=path, num_classes=0)


def test_another_variant_is_suggested(write):
    path = write(vitzoo.create("vit_ti16", num_classes=3))
    with refuses(CheckpointError, "fit vit_ti16"):
        vitzoo.create("vit_s16", weights=path)


def test_nothing_is_suggested_where_nothing_fits(small, write):
    path = write(vitzoo.create(small | {"depth": 3}))
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(small, weights=path)
    assert "fit vit" not in str(caught.value)
    assert "num_classes" not in str(caught.value)


def test_a_folder_without_a_slash(small, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    model = vitzoo.create(small)
    write(model, "folder/model.safetensors")
    again = vitzoo.create(small, weights="folder")
    assert torch.equal(again.norm.weight, model.norm.weight)
    assert again.load_report.source == "folder/model.safetensors"
    with refuses(WeightsUnavailable, "spec", "no variant"):
        vitzoo.create(small, weights="nowhere")


def test_weights_of_the_variant_come_before_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = vitzoo.describe("vit_digits").weights[0].name
    (tmp_path / name).mkdir()
    assert vitzoo.create("vit_digits", weights=name).load_report.source == f"vit_digits:{name}"


def test_a_folder_as_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf_base").mkdir()
    for name in ("hf_base", tmp_path / "hf_base"):
        fix = f"create('vit_b16', weights='{name}/')"
        with refuses(CheckpointError, name, "folder", "variant", fix):
            vitzoo.create(name)
    with refuses(UnknownName, "'hf_bass'"):
        vitzoo.create("hf_bass")


def test_a_pickle_as_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.ones(2)}, tmp_path / "x.pt")
    with refuses(CheckpointError, "x.pt", ".npz", "pickle"):
        vitzoo.create("x.pt")


def test_weights_without_their_ending_as_a_name(small, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(vitzoo.create(small), "weights.bin")
    with refuses(CheckpointError, "create('vit_b16', weights='weights.bin')"):
        vitzoo.create("weights.bin")


def test_a_repository_as_weights():
    repository = "google/vit-base-patch16-224"
    fix = f"weights='hf://{repository}@main/model.safetensors'"
    with refuses(CheckpointError, repository, "no such file", fix):
        vitzoo.create("vit_b16", weights=repository)
    text = message(CheckpointError, vitzoo.create, "vit_b16", weights="no/such.safetensors")
    says(text, "no/such.safetensors", "no such file")
    assert "hf://" not in text
