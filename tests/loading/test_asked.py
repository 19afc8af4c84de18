"""No tensor is newly initialised unless the call, or the user's spec, asks for it."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import vitzoo
from create_helpers import refused
from helpers import SPEC, close, fill, says, write
from internals import network
from load_helpers import CLASSIFIER, PRE_LOGITS
from tables import check_all
from vitzoo.errors import CheckpointError
from vitzoo.testing import PluginTests, Sizes, checkpoint_formats

PLUGINS = Path(__file__).parents[2] / "plugins"
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
MODELS = {
    "vit": ("ViT", {}),
    "deit": ("DeiT", {"num_registers": 1}),
}
NOTE = "the file has no pre-logits (pooler): head = linear, not tanh"
TANH = {"variant": "vit_b16_in21k", **SPEC, "num_classes": 21843, "head": "tanh"}
EPS = {"norm_eps": 1e-12}


@pytest.fixture(params=MODELS)
def pooled(request, tmp_path, transformers):
    """Write the folder of a transformers model; return it, the model and the spec of its sizes."""
    name, changes = MODELS[request.param]
    model, config = (getattr(transformers, f"{name}{kind}") for kind in ("Model", "Config"))

    def make(weights="scaled", pooler=False):
        torch.manual_seed(1)
        reference = fill(model(config(**SIZES), add_pooling_layer=pooler), weights)
        reference.save_pretrained(tmp_path)
        assert (
            "pooler.dense.weight" in safetensors.torch.load_file(tmp_path / "model.safetensors")
        ) == pooler
        return tmp_path, reference, changes

    return make


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["own", "scaled"])
@torch.inference_mode()
def test_a_file_without_pooler_has_no_pre_logits(pooled, images, weights):
    """The model returns the normed class token, each time, whatever names the network."""
    folder, reference, changes = pooled(weights)
    expected = reference(images).last_hidden_state[:, 0]
    file = folder / "model.safetensors"
    calls = {
        "folder": (folder, {}),
        "folder without classes": (folder, {"num_classes": 0}),
        "file": (file, {}),
        "name": (TANH | changes, {"weights": folder, "num_classes": 0}),
        "name and file": (TANH | changes, {"weights": file, "num_classes": 0}),
        "spec": (SPEC | changes | {"head": "tanh"}, {"weights": file, "head": "linear"}),
    }

    def check(call):
        name, given = call
        for _ in range(2):
            model = vitzoo.create(name, **{"num_classes": 0, **given}).eval()
            close(model(images), expected)
            assert model.load_report.reinitialised == model.load_report.dropped == ()
            assert (NOTE in model.load_report.assumed) == ("head" not in given)
        assert model.spec.num_classes == 0

    check_all({k: v for k, v in calls.items() if k != "folder"}, check)
    model = vitzoo.create(folder).eval()
    close(model(images), expected)
    assert NOTE in model.load_report.assumed
    (folder / "config.json").unlink()
    check((TANH | changes, {"weights": file}))


def test_classes_without_pooler_are_one_linear_layer(pooled, images):
    folder, reference, changes = pooled()
    for name, given in ((folder, {}), (TANH | changes, {"weights": folder})):
        model = vitzoo.create(name, num_classes=3, **given).eval()
        assert model.load_report.reinitialised == CLASSIFIER
        assert not model(images).any()
        with torch.no_grad():
            model.head.weight.copy_(torch.eye(3, 32))
            close(model(images), reference(images).last_hidden_state[:, 0, :3])


def test_a_head_that_is_asked_for_is_new(pooled):
    folder, _, changes = pooled()
    for name, given in ((folder, {}), (TANH | changes, {"weights": folder})):
        report = vitzoo.create(name, head="tanh", num_classes=0, **given).load_report
        assert set(report.reinitialised) == set(PRE_LOGITS)
        assert NOTE not in report.assumed


@torch.inference_mode()
def test_the_pooler_of_a_file_is_kept(pooled, images):
    folder, reference, _ = pooled(pooler=True)
    expected = reference(images).pooler_output
    for given in ({}, {"num_classes": 0}):
        model = vitzoo.create(folder, **given).eval()
        close(model(images), expected)
        assert NOTE not in model.load_report.assumed
    report = vitzoo.create(folder, num_classes=3).load_report
    assert set(report.reinitialised) == {"head.fc.weight", "head.fc.bias"}


def test_a_name_with_its_classifier_needs_one(pooled):
    folder, _, changes = pooled()
    message = refused(CheckpointError, TANH | changes, weights=folder)
    says(message, "missing", "head.weight", "num_classes=")


def test_pre_logits_are_never_new_by_a_number_of_classes(tmp_path):
    """A file with a classifier and no pre-logits, for a network with both."""
    file = write(tmp_path / "net.safetensors", fill(vitzoo.create(SPEC)).state_dict())
    for spec in (SPEC | {"head": "tanh"}, TANH):
        for classes in (0, 3):
            message = refused(CheckpointError, spec, weights=file, num_classes=classes)
            says(message, "2 missing", "head.pre_logits.weight", "head='linear'", "head= with")
        assert vitzoo.create(spec, weights=file, num_classes=0, head="linear")


@pytest.mark.parametrize("gone", ["head.pre_logits.weight", "head.pre_logits.bias"])
def test_a_saved_model_without_its_pre_logits(tmp_path, gone):
    path = vitzoo.save(vitzoo.create(SPEC | {"head": "tanh"}), tmp_path / "net.safetensors")
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = safetensors.torch.load_file(path)
    del tensors[gone]
    safetensors.torch.save_file(tensors, path, metadata)
    for given in ({}, {"num_classes": 0}, {"num_classes": 3}):
        says(refused(CheckpointError, path, **given), "1 missing", gone, "head=")
    vitzoo.create(path, head="tanh")


def test_pre_logits_of_another_width(tmp_path):
    spec = SPEC | {"head": {"name": "tanh", "hidden_dim": 16}}
    file = write(tmp_path / "net.safetensors", vitzoo.create(spec).state_dict())
    message = refused(CheckpointError, SPEC | {"head": "tanh"}, weights=file, num_classes=0)
    says(message, "head.pre_logits.weight is (16, 32)", "(32, 32)")


def networks():
    """Return changes of small networks by the format that writes them."""
    found = {name: [{}, {"head": "tanh"}, {"head": "mlp"}] for name in checkpoint_formats()}
    tests = [
        Path(__file__).parents[1],
        *(path.parent for path in PLUGINS.glob("*/tests/test_conformance.py")),
    ]
    for folder in tests:
        for value in runpy.run_path(str(folder / "test_conformance.py")).values():
            if isinstance(value, type) and issubclass(value, PluginTests):
                for name, rows in value.networks.items():
                    found.setdefault(name, []).extend([rows] if isinstance(rows, dict) else rows)
    return {
        f"{name} {changes}": (layout, changes)
        for name, layout in checkpoint_formats().items()
        for changes in found[name]
    }


@pytest.mark.conformance
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.long), 3])
def test_no_format_gives_a_tensor_that_was_not_asked_for(tmp_path, every):
    """Remove the head, the pool, each tensor of both, from a file of every format."""
    loaded, chosen = 0, dict(list(networks().items())[::every])

    def check(case):
        nonlocal loaded
        layout, changes = case[0].with_heads(2), case[1]
        spec = network(Sizes(grid_size=(2, 2)), changes)
        state = fill(vitzoo.create(spec)).state_dict()
        try:
            whole = layout.from_model(state)
        except CheckpointError:
            return
        ends = [n for n in state if n.startswith(("head.", "attn_pool.", "fc_norm.", "norm."))]
        for gone in ([], [n for n in ends if n.startswith("head.")], ends, *([n] for n in ends)):
            kept = without(layout, whole, state, gone)
            path = tmp_path / f"net{layout.suffix}"
            if layout.suffix == ".npz":
                np.savez(path, **{k: t.numpy() for k, t in kept.items()})
            else:
                write(path, kept)
            for given in ({}, {"num_classes": 0}, {"num_classes": 3}):
                try:
                    model = vitzoo.create(spec, weights=path, **given)
                except CheckpointError:
                    continue
                loaded += 1
                new = model.load_report.reinitialised
                wrong = [n for n in new if model.state_dict()[n].shape[0] != given["num_classes"]]
                assert not wrong, (given, gone, wrong)

    assert {layout for layout, _ in chosen.values()} == set(checkpoint_formats().values())
    check_all(chosen, check)
    assert loaded > 100


def without(layout, whole, state, gone):
    """Return a file without the keys that contain these tensors of the model."""
    left = {name: tensor for name, tensor in state.items() if name not in gone}
    try:
        return layout.from_model(left)
    except CheckpointError:
        lost = {k for k in whole if not layout.to_model({k: whole[k]}).keys() <= left.keys()}
        return {key: tensor for key, tensor in whole.items() if key not in lost}
