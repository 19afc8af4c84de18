"""What changes the numbers of a network is in its fingerprint, or other processes refuse it."""

import json
import pickle
import shutil
import types
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import vitzoo
from helpers import refuses
from tables import cases
from vitzoo.apps.predict.arithmetic import changed_settings, matmul_precision
from vitzoo.apps.predict.fingerprint import device_in, hash_tensors, versions
from vitzoo.errors import InvalidOption

pytestmark = pytest.mark.usefixtures("_one_thread")
ROOT = Path(__file__).parents[3]
STORED = Path(__file__).parent / "embedded_digits"  # as commit ec83163 wrote it
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def digits():
    return vitzoo.create("vit_digits", pretrained=True)


def fingerprint(model):
    return vitzoo.Predictor(model).fingerprint()


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


class Scaled(nn.Module):
    """A head with a number that is no tensor."""

    def __init__(self, by):
        super().__init__()
        self.by, self.num_classes, self.pre_logits_dim = by, 3, 64

    def forward(self, pooled):
        return pooled[:, :3] * self.by


# Changes that the spec does not state: how to make one, and what the error says of it.


def change_numbers(model):
    for module in model.modules():
        if isinstance(module, nn.GELU):
            module.approximate = "tanh"
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-2


def replace_method(model):
    model.forward_features = types.MethodType(type(model).forward_features, model)


CHANGES = {
    "numbers": (change_numbers, ("norm1.eps is 0.01, expected 1e-06", "'tanh'")),
    "one number as a tensor": (
        lambda model: setattr(model.norm, "eps", torch.tensor([1e-2, 1e-3])),
        ("norm.eps", "expected 1e-06"),
    ),
    "hook": (
        lambda model: model.norm.register_forward_hook(lambda *_: None),
        ("norm has a forward hook",),
    ),
    "hook before": (
        lambda model: model.register_forward_pre_hook(lambda *_: None),
        ("the model has a forward hook",),
    ),
    "parametrization": (
        lambda model: parametrize.register_parametrization(model.norm, "weight", Doubled()),
        ("norm.weight is missing", "norm.parametrizations.weight.original is unexpected"),
    ),
    "method": (replace_method, ("the model.forward_features is replaced",)),
    "forward": (
        lambda model: setattr(model.norm, "forward", torch.tanh),
        ("norm.forward is replaced",),
    ),
    "compiled part": (lambda model: model.norm.compile(), ("norm is compiled",)),
    "activation": (
        lambda model: setattr(model.blocks[1].mlp, "act", nn.ReLU()),
        ("blocks.1.mlp.act", "ReLU", "GELU"),
    ),
}


@pytest.mark.slow
@cases(("change", "words"), CHANGES.values(), ids=CHANGES)
def test_what_the_spec_does_not_state_is_in_the_fingerprint_and_refused(change, words, tmp_path):
    before, changed = digits(), digits()
    change(changed)
    assert fingerprint(changed).sha256 != fingerprint(before).sha256
    assert fingerprint(changed).to_data()["changes"]
    predictor = vitzoo.Predictor(changed)
    with refuses(InvalidOption, "model.spec", *words, "create the model with these settings"):
        pickle.dumps(predictor)
    with refuses(InvalidOption, *words):
        vitzoo.embed(changed, ROOT / "docs/examples/digits", tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_two_changes_have_two_fingerprints():
    def changed(eps):
        model = digits()
        model.norm.eps = eps
        return fingerprint(model).sha256

    assert changed(1e-2) != changed(1e-3)
    assert changed(1e-6) == fingerprint(digits()).sha256


TRAINED = {
    "in place": lambda weight: weight.mul_(3),
    "data in place": lambda weight: weight.data.mul_(3),
    "other data": lambda weight: setattr(weight, "data", 3 * weight.data),
}


@pytest.mark.parametrize("train", TRAINED.values(), ids=TRAINED)
def test_other_weights_than_those_of_the_name_are_refused(train, tmp_path):
    """A worker would load those of the name."""
    predictor = vitzoo.Predictor("vit_digits")
    before = predictor.fingerprint()
    with torch.no_grad():
        train(predictor.model.blocks[0].mlp.fc1.weight)
    after = predictor.fingerprint()
    assert after.weights == hash_tensors(predictor.model) != before.weights
    for act in (
        lambda: pickle.dumps(predictor),
        lambda: vitzoo.embed(predictor, ROOT / "docs/examples/digits", tmp_path / "out"),
    ):
        with refuses(InvalidOption, "tensors were changed after they were loaded"):
            act()


def test_the_order_of_blocks_is_compared():
    model = digits()
    blocks = dict(reversed(model.blocks._modules.items()))
    model.blocks._modules.clear()
    model.blocks._modules.update(blocks)
    with refuses(InvalidOption, "blocks has the order 3, 2, 1, 0, expected 0, 1, 2, 3"):
        pickle.dumps(vitzoo.Predictor(model))


def test_a_model_in_training_mode_is_refused():
    predictor = vitzoo.Predictor(digits())
    predictor.model.blocks[0].train()
    with refuses(InvalidOption, "blocks.0 is in training mode"):
        pickle.dumps(predictor)


def test_a_hook_on_every_module_is_refused():
    predictor = vitzoo.Predictor(digits())
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with refuses(InvalidOption, "every module has a forward hook"):
            pickle.dumps(predictor)
    finally:
        hook.remove()
    pickle.dumps(predictor)


@pytest.mark.slow
def test_a_compiled_model_is_refused():
    with refuses(InvalidOption, "the model is compiled", "remove", "torch.compile"):
        pickle.dumps(vitzoo.Predictor(torch.compile(digits())))


def test_an_active_autocast_is_refused(tmp_path):
    predictor = vitzoo.Predictor("vit_digits")
    expected = predictor.fingerprint()
    with torch.autocast("cpu", torch.bfloat16):
        assert predictor.fingerprint() == expected  # it changes no number of a Predictor
        for act in (
            lambda: pickle.dumps(predictor),
            lambda: vitzoo.embed(predictor, ROOT / "docs/examples/digits", tmp_path / "out"),
        ):
            with refuses(
                InvalidOption, "autocast to torch.bfloat16 is active", "dtype=torch.bfloat16"
            ):
                act()


def test_numbers_of_a_part_that_was_given_as_an_object_are_in_the_fingerprint():
    def made(by):
        model = digits()
        model.head = Scaled(by)
        return fingerprint(model)

    assert made(1.0).sha256 == made(1.0).sha256 != made(2.0).sha256
    (stated,) = made(1.0).to_data()["parts"]
    name, _, table = stated.partition(" {")
    assert name == f"head: {__name__}.Scaled"
    assert json.loads("{" + table)["by"] == 1.0


@cases(
    "changes",
    [
        {},
        {"num_classes": 3},
        {"num_classes": 0},
        {"image_size": 56},
        {"dtype": torch.bfloat16},
        {"pos_embed": "rope"},
        {"block": {"layer_scale": 1e-4, "qk_norm": True}},
        {"drop_path": 0.3, "dropout": 0.1},
        {"dynamic": True},
        {"head": "mlp"},
    ],
    ids=str,
)
def test_a_model_of_create_has_no_new_keys(changes):
    found = fingerprint(vitzoo.create("vit_digits", **changes)).to_data()
    assert list(found) == list(stored_fingerprint())


# Settings of torch


@contextmanager
def set_to(holder, name, value):
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


CPU_SETTINGS = [
    (torch.backends, "fp32_precision", "tf32"),
    (torch.backends.mkldnn, "enabled", False),
    (torch.backends.mkldnn, "deterministic", True),
]


@pytest.mark.parametrize(("holder", "name", "value"), CPU_SETTINGS)
def test_settings_of_the_cpu_are_in_the_fingerprint(holder, name, value):
    if not hasattr(holder, name):
        pytest.skip("this torch has no such setting")
    predictor = vitzoo.Predictor("vit_digits")
    default = predictor.fingerprint().to_data()
    with set_to(holder, name, value):
        found = predictor.fingerprint().to_data()
        assert value in found.pop("settings").values()
    assert found.keys() == default.keys()
    assert predictor.fingerprint().to_data() == default


def test_attention_without_its_fused_kernel_is_in_the_fingerprint():
    predictor = vitzoo.Predictor("vit_digits")
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        found = predictor.fingerprint()
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert found.settings == {"cuda.flash_sdp_enabled": False}


def test_settings_of_cuda_are_not_in_a_fingerprint_of_the_cpu():
    predictor = vitzoo.Predictor("vit_digits")
    expected, before = predictor.fingerprint(), changed_settings(CUDA)
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    with set_to(matmul, "allow_tf32", True), set_to(cudnn, "allow_tf32", False):
        assert predictor.fingerprint() == expected
        found = changed_settings(CUDA)
        assert matmul_precision(CUDA) == "high"
    assert found == {**before, "cudnn.conv.fp32_precision": "none"}
    assert changed_settings(CUDA) == before


def test_precisions_of_the_newer_interface_are_read():
    """Beside a precision that this interface sets, the older one only raises an error."""
    matmul = torch.backends.mkldnn.matmul
    predictor = vitzoo.Predictor("vit_digits")
    try:
        matmul.fp32_precision = "bf16"
    except AttributeError:
        pytest.skip("this torch has no such setting")
    try:
        assert predictor.fingerprint().versions["float32_matmul_precision"] == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert matmul_precision(CPU) == "highest"


@pytest.mark.slow
def test_workers_have_the_settings_of_their_parent(tmp_path):
    """A worker compares its fingerprint, and would refuse to compute."""
    scans = tmp_path / "scans.txt"
    scans.write_text("\n".join(map(str, sorted((ROOT / "docs/examples/digits").iterdir()) * 20)))
    with set_to(torch.backends.mkldnn, "enabled", False):
        done = vitzoo.embed("vit_digits", scans, tmp_path / "out", workers=2)
    assert (done.computed, done.errors) == (200, 0)
    stated = json.loads((tmp_path / "out" / "_manifest.json").read_text())["fingerprint"]
    assert stated["settings"] == {"mkldnn.enabled": False}


def test_flushed_denormals_change_no_number():
    predictor = vitzoo.Predictor("vit_digits")
    image = torch.full((1, 28, 28), 1e-42)
    (expected,) = predictor.compute([image])
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    try:
        (found,) = predictor.compute([image])
    finally:
        torch.set_flush_denormal(False)
    assert found["pooled"].tobytes() == expected["pooled"].tobytes()


# A folder that an earlier commit wrote


def stored_fingerprint():
    return json.loads((STORED / "_manifest.json").read_text())["fingerprint"]


def with_versions_of_this_machine(folder):
    """Copy the stored folder, with the versions of this machine in its fingerprint."""
    shutil.copytree(STORED, folder)
    manifest = json.loads((folder / "_manifest.json").read_text())
    manifest["fingerprint"]["versions"] = versions(CPU)
    (folder / "_manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    (part,) = folder.glob("*.parquet")
    table = pq.read_table(part)
    text = json.dumps(manifest["fingerprint"], sort_keys=True).encode()
    metadata = {**table.schema.metadata, b"vitzoo.fingerprint": text}
    pq.write_table(table.replace_schema_metadata(metadata), part)
    return part


def test_a_stored_folder_has_the_fingerprint_of_today(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    vitzoo.embed("vit_digits", "docs/examples/digits", tmp_path / "new", workers=1)
    old, new = (
        json.loads((folder / "_manifest.json").read_text()) for folder in (STORED, tmp_path / "new")
    )
    assert new["fingerprint"].pop("versions").keys() == old["fingerprint"].pop("versions").keys()
    assert new.pop("device") == "cpu"  # which earlier versions did not state
    assert new.pop("identity").keys() == new.pop("canary").keys() == {"pooled"}
    assert json.dumps(new) == json.dumps(old)  # every other key, in the same order
    found = vitzoo.Predictor("vit_digits").fingerprint().to_data()
    del found["versions"]
    assert json.dumps(found) == json.dumps(old["fingerprint"])


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"cpu": "AVX2"}, "cpu"),
        ({"cpu": "AVX2", "cuda": "NVIDIA H200"}, "cuda (NVIDIA H200)"),
        ({"mps": ""}, "mps"),  # torch 2.6 states no name
        ({"cpu": "AVX2", "device": "xpu"}, "xpu"),
        (None, "cpu"),  # a damaged manifest
    ],
)
def test_versions_state_the_device(stated, expected):
    assert device_in(stated) == expected


def test_a_stored_folder_is_continued_and_extended(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    part = with_versions_of_this_machine(tmp_path / "out")
    before = part.read_bytes()
    done = vitzoo.embed("vit_digits", "docs/examples/digits", tmp_path / "out", workers=1)
    assert (done.inputs, done.computed) == (10, 0)
    shutil.copy("docs/examples/digits/digit_7_scan_0081.png", tmp_path / "copy.png")
    sources = ["docs/examples/digits", tmp_path / "copy.png"]
    done = vitzoo.embed("vit_digits", sources, tmp_path / "out", workers=1, extend=True)
    assert (done.inputs, done.computed, done.errors) == (11, 1, 0)
    assert part.read_bytes() == before
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert np.allclose(rows[10]["pooled"], rows[7]["pooled"], atol=1e-5)
    part.unlink()
    vitzoo.embed("vit_digits", sources, tmp_path / "out", workers=1)
    again = pq.read_table(tmp_path / "out").to_pylist()
    assert again[10]["pooled"] == again[7]["pooled"]
    for new, old in zip(again, rows, strict=True):
        assert np.allclose(new["pooled"], old["pooled"], atol=1e-5)
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    assert {"identity", "canary"}.isdisjoint(manifest)
    for file in (tmp_path / "out").glob("*.parquet"):
        assert b"vitzoo.identity" not in pq.read_schema(file).metadata


def test_other_kinds_of_devices_are_not_the_cpu():
    assert device_in(versions(torch.device("xpu"))) == "xpu"
    assert "device" not in versions(torch.device("cpu"))
