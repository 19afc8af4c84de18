"""Weights that do not fit, paths taken for names: the error says what would do."""

import pytest
import torch
from safetensors.torch import save_file

import vitzoo
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
    with pytest.raises(CheckpointError, match=r"; the file has 7 classes: pass num_classes=7$"):
        vitzoo.create(small | {"head": head}, weights=path)
    vitzoo.create(small | {"head": head}, weights=path, num_classes=7)


def test_no_classifier(small, write):
    path = write(vitzoo.create(small, num_classes=0))
    text = r"; the file has no classifier: pass num_classes=, 0 for none or K for a fresh one$"
    with pytest.raises(CheckpointError, match=text):
        vitzoo.create(small, weights=path)
    vitzoo.create(small, weights=path, num_classes=0)


def test_another_variant_is_suggested(write):
    path = write(vitzoo.create("vit_ti16", num_classes=3))
    with pytest.raises(CheckpointError, match=r"; the tensors fit vit_ti16( or \w+)*$"):
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
    with pytest.raises(WeightsUnavailable, match="names no variant"):
        vitzoo.create(small, weights="nowhere")


def test_weights_of_the_variant_come_before_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = vitzoo.describe("vit_digits").weights[0].name
    (tmp_path / name).mkdir()
    assert vitzoo.create("vit_digits", weights=name).load_report.source == f"vit_digits:{name}"


def test_a_folder_as_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf_base").mkdir()
    text = (
        r"hf_base is a folder, which does not say which network its weights belong to; name the "
        r"variant: create\('vit_b16', weights='.*hf_base/'\)"
    )
    for name in ("hf_base", tmp_path / "hf_base"):
        with pytest.raises(CheckpointError, match=text):
            vitzoo.create(name)
    with pytest.raises(UnknownName, match="hf_bass"):
        vitzoo.create("hf_bass")


def test_a_pickle_as_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": torch.ones(2)}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"x\.pt is no .npz file .looks like .*pickle"):
        vitzoo.create("x.pt")


def test_weights_without_their_ending_as_a_name(small, write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(vitzoo.create(small), "weights.bin")
    with pytest.raises(CheckpointError, match=r"create\('vit_b16', weights='weights.bin'\)"):
        vitzoo.create("weights.bin")


def test_a_repository_as_weights():
    text = (
        r"google/vit-base-patch16-224: there is no such file; one on the Hub is written with its "
        r"revision and name: weights='hf://google/vit-base-patch16-224@main/model.safetensors'"
    )
    with pytest.raises(CheckpointError, match=text):
        vitzoo.create("vit_b16", weights="google/vit-base-patch16-224")
    with pytest.raises(
        CheckpointError, match=r"such\.safetensors: there is no such file"
    ) as caught:
        vitzoo.create("vit_b16", weights="no/such.safetensors")
    assert "hf://" not in str(caught.value)
