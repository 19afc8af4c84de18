"""`save`, and `create` from the saved file: equal bit by bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import vitzoo
from create_helpers import logits, refused
from helpers import refuses, says
from vitzoo.checkpoint import writers
from vitzoo.errors import CheckpointError, InvalidOption, StoreError

pytestmark = pytest.mark.usefixtures("_one_thread")


def all_equal(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(first[k], second[k]) and first[k].dtype == second[k].dtype for k in first
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_classes": 0},
        {"head": {"name": "mlp", "hidden_dim": 16}, "num_classes": 3},
        {"head": "tanh", "in_chans": 1},
        {"image_size": (16, 48)},
        {"pos_embed": "sincos_2d", "pool": "mean"},
        {"pool": {"name": "mean", "norm_first": False}, "pos_embed": "none"},
        {"patch_embed": "unfold", "drop_path": 0.1, "dropout": 0.1},
        {"block": {"qkv_bias": False, "activation": "quick_gelu", "norm_eps": 1e-5}},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float16},
    ],
    ids=str,
)
def test_a_saved_model_is_restored_bit_by_bit(small, tmp_path, randomise, arguments):
    model = randomise(vitzoo.create(small, **arguments))
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert again.spec == model.spec
    assert all_equal(again, model)
    assert torch.equal(logits(again), logits(model))
    assert logits(again).abs().max() > 0


def test_a_restored_model_has_its_labels_and_preprocessing(small, tmp_path):
    model = vitzoo.create(small)
    model.labels = ("a", "b", "c", "d", "é")
    model.preprocessing = vitzoo.Preprocessing(mean=(0.1, 0.2, 0.3), crop_mode="squash")
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert again.labels == model.labels == vitzoo.labels(again)
    assert again.preprocessing == model.preprocessing


def test_a_restored_model_can_be_saved_and_restored_again(small, tmp_path, randomise):
    model = randomise(vitzoo.create(small))
    first = vitzoo.create(vitzoo.save(model, tmp_path / "a.safetensors"))
    second = vitzoo.create(vitzoo.save(first, tmp_path / "b.safetensors"))
    assert second.spec == model.spec
    assert all_equal(second, model)


def test_a_restored_variant_remembers_its_name(tmp_path):
    model = vitzoo.create("vit_digits")
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert again.spec == model.spec
    assert again.spec.variant == "vit_digits"


def test_a_saved_local_variant_needs_no_registry_file(
    local_registry, tmp_path, randomise, monkeypatch
):
    local_registry()
    model = randomise(vitzoo.create("local/net"))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    monkeypatch.delenv("VITZOO_REGISTRY")
    again = vitzoo.create(path)
    assert again.spec.variant is None
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"pretrained": "no"}, ["pretrained", "True", "False", "'no'", "(str)"]),
        ({"dtype": "float16"}, ["dtype", "floating", "torch.bfloat16", "'float16'"]),
        ({"dtype": torch.int64}, ["dtype", "floating", "torch.bfloat16", "torch.int64"]),
        ({"device": "cdua"}, ["device", "'cdua'", "cpu"]),
    ],
    ids=str,
)
def test_arguments_beside_the_network_are_checked(small, arguments, parts):
    says(refused(InvalidOption, small, **arguments), *parts)


def test_preprocessing_is_checked_before_it_is_saved(small, tmp_path):
    model = vitzoo.create(small)
    model.preprocessing = {"mean": 0.5}
    with refuses(InvalidOption, "vitzoo.Preprocessing", "None", "{'mean': 0.5}"):
        vitzoo.save(model, tmp_path / "net.safetensors")


def test_a_restored_model_reports_its_file(small, tmp_path):
    model = vitzoo.create(small)
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    report = vitzoo.create(path).load_report
    assert report.source == str(path)
    assert len(report.sha256) == 64
    assert set(report.kept) == set(model.state_dict())
    assert not report.reinitialised
    assert not report.dropped


def test_a_saved_model_may_be_restored_with_other_classes(small, tmp_path, randomise):
    model = vitzoo.create(small)
    model.labels = tuple("abcde")
    path = vitzoo.save(randomise(model), tmp_path / "net.safetensors")
    again = vitzoo.create(path, num_classes=3)
    assert set(again.load_report.reinitialised) == {"head.weight", "head.bias"}
    assert set(again.load_report.dropped) == {"head.weight", "head.bias"}
    assert again.labels == ()
    assert logits(again).shape == (2, 3)


def test_a_saved_model_may_be_restored_for_another_size(small, tmp_path, randomise):
    path = vitzoo.save(randomise(vitzoo.create(small)), tmp_path / "net.safetensors")
    again = vitzoo.create(path, image_size=48)
    assert again.load_report.resampled == ("pos_embed",)
    assert again.pos_embed.shape == (1, 37, 32)


def test_a_saved_model_may_be_restored_in_another_dtype(small, tmp_path):
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    again = vitzoo.create(path, dtype=torch.bfloat16)
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}
    assert len(again.load_report.converted) == len(again.state_dict())


def test_a_fresh_head_has_the_dtype_of_the_file(small, tmp_path, randomise):
    model = randomise(vitzoo.create(small, dtype=torch.bfloat16))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    assert logits(vitzoo.create(path, num_classes=3)).dtype == torch.bfloat16


def test_the_sines_of_a_restored_model_have_its_dtype(small, tmp_path, randomise):
    model = randomise(vitzoo.create(small, dtype=torch.bfloat16, pos_embed="sincos_2d"))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    assert torch.equal(logits(vitzoo.create(path)), logits(model))


def test_a_saved_file_brings_its_own_weights(small, tmp_path):
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    message = refused(InvalidOption, path, weights=path)
    says(message, path, "weights=")


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_save_replaces_an_existing_file(small, tmp_path, randomise):
    path = tmp_path / "net.safetensors"
    vitzoo.save(vitzoo.create(small), path)
    model = randomise(vitzoo.create(small))
    vitzoo.save(model, path)
    assert all_equal(vitzoo.create(path), model)
    assert names(tmp_path) == ["net.safetensors"]


def test_save_leaves_other_peoples_files_alone(small, tmp_path):
    others = [tmp_path / f".net.safetensors.{end}" for end in ("swp", "bak", "1.2", "12345.bak")]
    ours = tmp_path / ".net.safetensors.4711.1763636400000000000"
    for path in (*others, ours):
        path.touch()
        os.utime(path, (1, 1))
    vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    assert all(path.exists() for path in others)
    assert not ours.exists()


def test_save_leaves_the_old_file_if_it_fails(small, tmp_path, monkeypatch):
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    model = vitzoo.create(small, num_classes=3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with refuses(StoreError, path, "No space left on device", "make room"):
            vitzoo.save(model, path)
    assert path.read_bytes() == before
    done = []

    def ends(tensor: torch.Tensor) -> torch.Tensor:
        done.append(tensor)
        return full() if len(done) > 5 else tensor.contiguous()

    monkeypatch.setattr(writers, "_on_cpu", ends)
    for target in (path, tmp_path / "new.safetensors"):
        done.clear()
        with refuses(StoreError, target, "No space left on device", "make room"):
            vitzoo.save(model, target)
        assert path.read_bytes() == before
        assert names(tmp_path) == ["net.safetensors"]


def test_save_needs_an_existing_folder(small, tmp_path):
    with refuses(InvalidOption, "no folder", tmp_path / "none"):
        vitzoo.save(vitzoo.create(small), tmp_path / "none" / "net.safetensors")
    assert names(tmp_path) == []


def test_save_needs_a_folder_it_may_write_to(small, tmp_path, monkeypatch):
    def denied(*_: object, **__: object) -> None:  # root may write everywhere, so injected
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with refuses(StoreError, tmp_path / "net.safetensors", "Permission denied", "folder"):
        vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    assert names(tmp_path) == []


def test_save_does_not_replace_a_folder(small, tmp_path):
    path = tmp_path / "net.safetensors"
    path.mkdir()
    with refuses(InvalidOption, path, "is a folder", "name a file"):
        vitzoo.save(vitzoo.create(small), path)
    assert names(tmp_path) == ["net.safetensors"]


def test_a_saved_file_has_the_usual_permissions(small, tmp_path):
    usual = tmp_path / "usual"
    usual.touch()
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    assert path.stat().st_mode == usual.stat().st_mode
    path.chmod(0o640)
    vitzoo.save(vitzoo.create(small), path)
    assert path.stat().st_mode & 0o777 == 0o640


def test_tensors_in_any_memory_are_saved(small, tmp_path, randomise):
    """Tensors that are transposed, slices, shared by two layers, with one number, or empty."""
    model = randomise(vitzoo.create(small))
    first, second = model.blocks[0].mlp, model.blocks[1].mlp
    first.fc1.weight = nn.Parameter(first.fc1.weight.detach().t().contiguous().t())
    first.fc2.weight = nn.Parameter(torch.randn(1000, first.fc2.in_features)[7:39])
    second.fc1.weight = first.fc1.weight
    second.fc2.bias = nn.Parameter(torch.randn(1).expand(32))
    assert not first.fc1.weight.is_contiguous()
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    assert all_equal(vitzoo.create(path), model)
    numbers = sum(tensor.numel() for tensor in model.state_dict().values())
    assert 4 * numbers < path.stat().st_size < 4 * numbers + 10_000
    read = safetensors.torch.load_file(path)
    assert all(torch.equal(read[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_model_on_a_gpu_is_saved(small, tmp_path, randomise):
    model = randomise(vitzoo.create(small))
    here = vitzoo.save(model, tmp_path / "cpu.safetensors").read_bytes()
    assert vitzoo.save(model.cuda(), tmp_path / "gpu.safetensors").read_bytes() == here


@pytest.mark.parametrize(
    ("tensor", "parts"),
    [
        (torch.empty(32, device="meta"), ["meta", "no values", "another device"]),
        (torch.zeros(32, dtype=torch.complex128), ["torch.complex128", "safetensors"]),
        (torch.zeros(32).to_sparse(), ["torch.sparse_coo", "safetensors", "dense"]),
    ],
    ids=["meta", "complex128", "sparse"],
)
def test_a_tensor_that_cannot_be_saved_is_named(small, tmp_path, tensor, parts):
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    before = path.read_bytes()
    model = vitzoo.create(small)
    model.norm.bias = nn.Parameter(tensor, requires_grad=False)
    with refuses(CheckpointError, "norm.bias", *parts):
        vitzoo.save(model, path)
    assert path.read_bytes() == before
    assert names(tmp_path) == ["net.safetensors"]


GROWTH = """
import sys
from pathlib import Path
import vitzoo

def resident(row="VmRSS"):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(row))

sizes = dict(embed_dim=512, num_heads=8, mlp_dim=2048, patch_size=8, image_size=32)
folder = Path(sys.argv[1])
for depth in (1, 6):  # the first run imports what it needs
    model = vitzoo.create({**sizes, "depth": depth})
    path = folder / f"{depth}.safetensors"
    before = resident()
    {call}
size = path.stat().st_size
assert size > 70e6
print((resident("VmHWM") - before) / size)
"""
CALLS = {
    "save": "vitzoo.save(model, path)",
    "convert": """vitzoo.save(model, path)
    del model
    before = resident()
    vitzoo.convert(path, "transformers_vit", folder / f"out{depth}.safetensors", num_heads=8)""",
}


@pytest.mark.parametrize(("call", "most"), [("save", 0.25), ("convert", 2.5)])
def test_tensors_are_written_one_by_one(tmp_path, call, most):
    """`save` and `convert` never hold the whole new file in memory."""
    code = GROWTH.replace("{call}", CALLS[call])
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < most


@pytest.mark.parametrize("name", ["net.pt", "net", "net.safetensors.bak", ".safetensors"])
def test_save_wants_a_safetensors_ending(small, tmp_path, name):
    with refuses(InvalidOption, "end in .safetensors", name):
        vitzoo.save(vitzoo.create(small), tmp_path / name)


def test_save_wants_a_model_of_create(tmp_path):
    with refuses(InvalidOption, "Linear", "vitzoo.create"):
        vitzoo.save(nn.Linear(1, 1), tmp_path / "net.safetensors")


def test_save_wants_one_label_per_class(small, tmp_path):
    model = vitzoo.create(small)
    model.labels = ("a", "b")
    with refuses(InvalidOption, "model.labels", "2 names", "5 classes"):
        vitzoo.save(model, tmp_path / "net.safetensors")
