"""`save`, and `create` from the saved file: equal bit by bit."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.optim.swa_utils import AveragedModel

import vitzoo
from create_helpers import logits, refused
from helpers import SPEC, refuses, says
from tables import cases
from vitzoo.checkpoint import writers
from vitzoo.errors import CheckpointError, InvalidOption, StoreError
from vitzoo.files import access

pytestmark = pytest.mark.usefixtures("_one_thread")


def all_equal(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(first[k], second[k]) and first[k].dtype == second[k].dtype for k in first
    )


@cases(
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


def test_a_file_states_the_weights_before_fine_tuning(tmp_path):
    model = vitzoo.create("vit_digits", pretrained=True)
    own = vitzoo.create(vitzoo.save(model, tmp_path / "own.safetensors"))
    for before, name in ((model, "vit_digits:digits_v1"), (own, "own.safetensors")):
        path = vitzoo.save(model, tmp_path / "net.safetensors", made_from=before.load_report)
        report = vitzoo.create(path).load_report
        assert report.made_from == name
        assert report.made_from_sha256 == before.load_report.sha256
        assert str(tmp_path).encode() not in path.read_bytes()
        says(str(report), report.made_from, report.made_from_sha256[:12])
        again = vitzoo.create(vitzoo.save(vitzoo.create(path), tmp_path / "again.safetensors"))
        assert again.load_report.made_from == name
    for text in ("acme/vit:base_v1", "a file of the Hub"):  # as a file may state them
        stated = dataclasses.replace(again.load_report, made_from=text)
        again.load_report = stated
        twice = vitzoo.create(vitzoo.save(again, tmp_path / "twice.safetensors"))
        assert twice.load_report.made_from == text
    with refuses(InvalidOption, "made_from", "'x'", "load_report"):
        vitzoo.save(model, path, made_from="x")


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


@pytest.mark.parametrize("pos_embed", ["sincos_2d", "rope"])
def test_what_no_file_contains_has_the_dtype_of_the_rest(small, tmp_path, pos_embed):
    """The sines of positions are buffers."""
    path = vitzoo.save(vitzoo.create(small, pos_embed=pos_embed), tmp_path / "net.safetensors")
    for dtype in (torch.bfloat16, torch.float32):
        buffers = list(vitzoo.create(path, dtype=dtype).buffers())
        assert {buffer.dtype for buffer in buffers} == {dtype}


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
        patch.setattr(access.system, "replace", full)
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
            vitzoo.save(model, target, check_finite=False)
        assert path.read_bytes() == before
        assert names(tmp_path) == ["net.safetensors"]


def test_save_needs_an_existing_folder(small, tmp_path):
    with refuses(InvalidOption, tmp_path / "none"):
        vitzoo.save(vitzoo.create(small), tmp_path / "none" / "net.safetensors")
    assert names(tmp_path) == []


def test_save_needs_a_folder_it_may_write_to(small, tmp_path, monkeypatch):
    def denied(*_: object, **__: object) -> None:  # root may write everywhere, so injected
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(access, "open", denied, raising=False)
    with refuses(StoreError, tmp_path / "net.safetensors", "Permission denied", "folder"):
        vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    assert names(tmp_path) == []


def test_save_does_not_replace_a_folder(small, tmp_path):
    path = tmp_path / "net.safetensors"
    path.mkdir()
    with refuses(InvalidOption, path, "name a file"):
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
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
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
    vitzoo.convert(path, "google", folder / f"out{depth}.npz", num_heads=8)""",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "most"), [("save", 0.12), pytest.param("convert", 2.4, marks=pytest.mark.long)]
)
def test_tensors_are_written_one_by_one(tmp_path, call, most):
    """Beyond a model `save` holds one tensor, the largest has 0.06 of the file.

    `convert` holds the source once and maps the new file, to compare them. Queries, keys and values
    that one of the formats joins are a quarter more.
    """
    code = GROWTH.replace("{call}", CALLS[call])
    command = [sys.executable, "-c", code, str(tmp_path)]
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed is given back
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < most


@pytest.mark.parametrize("name", ["net.pt", "net", "net.safetensors.bak", ".safetensors"])
def test_save_wants_a_safetensors_ending(small, tmp_path, name):
    with refuses(InvalidOption, ".safetensors", name):
        vitzoo.save(vitzoo.create(small), tmp_path / name)


def test_save_wants_a_model_of_create(tmp_path):
    with refuses(InvalidOption, "Linear", "vitzoo.create"):
        vitzoo.save(nn.Linear(1, 1), tmp_path / "net.safetensors")


def test_save_wants_one_label_per_class(small, tmp_path):
    model = vitzoo.create(small)
    model.labels = ("a", "b")
    with refuses(InvalidOption, "model.labels", "2 names", "5 classes"):
        vitzoo.save(model, tmp_path / "net.safetensors")


# Wrappers, and models that the spec does not describe.


@pytest.fixture
def one_process():
    """A process group of this process alone, for DistributedDataParallel."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def compile_blocks(model):
    for i, block in enumerate(model.blocks):
        model.blocks[i] = torch.compile(block, backend="eager")
    model.head = torch.compile(model.head, backend="eager")
    return model


def checkpoint_blocks(model):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    for i, block in enumerate(model.blocks):
        model.blocks[i] = checkpoint_wrapper(block)
    return model


WRAPPERS = {
    "nothing": lambda model: model,
    "compile": lambda model: torch.compile(model, backend="eager"),
    "compile in place": lambda model: [model.compile(backend="eager"), model][1],
    "compiled blocks": compile_blocks,
    "checkpointed blocks": checkpoint_blocks,
    "DataParallel": nn.DataParallel,
    "AveragedModel": AveragedModel,
    "DistributedDataParallel": nn.parallel.DistributedDataParallel,
    "two": lambda model: nn.DataParallel(torch.compile(model, backend="eager")),
}


@pytest.mark.usefixtures("one_process")
@cases("wrap", WRAPPERS)
def test_wrapped_models_are_saved(small, tmp_path, randomise, wrap):
    model = randomise(vitzoo.create(small))
    model.labels = tuple("abcde")
    state, expected = {n: t.clone() for n, t in model.state_dict().items()}, logits(model)
    again = vitzoo.create(vitzoo.save(WRAPPERS[wrap](model), tmp_path / "net.safetensors"))
    assert again.state_dict().keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())
    assert again.labels == tuple("abcde")
    assert again.spec == model.spec
    assert torch.equal(logits(again), expected)


class Adapted(nn.Module):
    """What PEFT returns: the layers hold the trained weight as `base_layer`, beside the adapter."""

    def __init__(self, model):
        super().__init__()
        self.base_model = model
        for block in model.blocks:
            block.attn.proj = Lora(block.attn.proj)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)

    def forward(self, images):
        return self.base_model(images)

    def merge_and_unload(self):
        for block in self.base_model.blocks:
            layer = block.attn.proj
            merged = layer.base_layer.weight + layer.lora_B.weight @ layer.lora_A.weight
            layer.base_layer.weight = nn.Parameter(merged.detach())
            block.attn.proj = layer.base_layer
        return self.base_model


class Lora(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.Linear(layer.in_features, 2, bias=False)
        self.lora_B = nn.Linear(2, layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def test_adapters_are_saved_after_they_are_merged(small, tmp_path, randomise):
    model = randomise(vitzoo.create(small))
    adapted = randomise(Adapted(model))
    expected = logits(adapted)
    for given_model in (adapted, adapted.base_model, torch.compile(adapted, backend="eager")):
        with refuses(InvalidOption, "PEFT", "model.merge_and_unload()"):
            vitzoo.save(given_model, tmp_path / "net.safetensors")
    again = vitzoo.create(vitzoo.save(adapted.merge_and_unload(), tmp_path / "net.safetensors"))
    torch.testing.assert_close(logits(again), expected, rtol=0, atol=1e-4)
    assert torch.equal(logits(again), logits(model))


def two_blocks_less(model):
    model.blocks = model.blocks[:1]


def set_head(head):
    return lambda model: setattr(model, "head", head)


def set_of_block(path, value):
    return lambda model: model.blocks[1].set_submodule(path, value)


OWN = {  # a change, and what the error must say
    "a block less": (
        two_blocks_less,
        ["len(blocks) is 1, expected 2", "'depth': len(model.blocks)"],
    ),
    "a block more": (
        lambda model: model.blocks.append(model.blocks[0]),
        ["len(blocks) is 3, expected 2", "unexpected: blocks.2.norm1.weight", "'depth'"],
    ),
    "another activation": (
        set_of_block("mlp.act", nn.ReLU()),
        ["blocks.1.mlp.act", "ReLU", "expected GELU", "vitzoo.create"],
    ),
    "another kind of the same activation": (
        set_of_block("mlp.act", nn.GELU(approximate="tanh")),
        ["blocks.1.mlp.act.approximate is 'tanh', expected 'none'", "vitzoo.create"],
    ),
    "another epsilon": (
        lambda model: setattr(model.norm, "eps", 1e-3),
        ["norm.eps is 0.001, expected 1e-06", "vitzoo.create"],
    ),
    "another number of heads": (
        lambda model: setattr(model.blocks[0].attn, "num_heads", 4),
        ["blocks.0.attn.num_heads is 4, expected 2"],
    ),
    "another pool": (
        lambda model: setattr(model, "pool", vitzoo.parts.MeanPool()),
        ["pool", "MeanPool", "expected ClassPool", "vitzoo.create"],
    ),
    "no final norm": (
        lambda model: setattr(model, "norm", nn.Identity()),
        ["missing: norm.weight, norm.bias", "norm is", "Identity", "expected LayerNorm"],
    ),
    "another forward": (
        lambda model: setattr(model.blocks[0].mlp, "forward", lambda x: 2 * x),
        ["blocks.0.mlp.forward is replaced"],
    ),
    "a smaller layer": (
        set_of_block("mlp.fc1", nn.Linear(32, 63)),
        ["blocks.1.mlp.fc1.weight is (63, 32), expected (64, 32)"],
    ),
    "a head without a bias": (
        set_head(nn.Linear(32, 5, bias=False)),
        ["head", "Linear lacks num_classes, pre_logits_dim, reset", "vitzoo.parts.Head"],
    ),
    "a layer of the head": (
        lambda model: setattr(model, "head", nn.Sequential(nn.Dropout(0.1), model.head)),
        ["head.1.weight", "model.head = nn.Linear(model.embed_dim, num_classes)"],
    ),
    "a buffer": (
        lambda model: model.register_buffer("seen", torch.zeros(2)),
        ["1 unexpected: seen", "persistent=False"],
    ),
    "a decoder": (
        lambda model: model.add_module("decoder", nn.Linear(32, 2)),
        ["2 unexpected: decoder.weight, decoder.bias", "delete"],
    ),
    "a parametrisation": (
        lambda model: parametrizations.weight_norm(model.blocks[0].mlp.fc1),
        [
            "blocks.0.mlp.fc1.parametrizations.weight.original0",
            "torch.nn.utils.parametrize.remove_parametrizations",
        ],
    ),
    "pruning": (
        lambda model: prune.random_unstructured(model.blocks[0].mlp.fc1, "weight", 0.5),
        ["weight_orig", "torch.nn.utils.prune.remove"],
    ),
    "other numbers of the part": (
        lambda model: setattr(model, "num_prefix_tokens", 3),
        ["the model.num_prefix_tokens is 3, expected 1"],
    ),
}


@cases("change", OWN)
def test_a_model_that_its_spec_does_not_describe_is_refused(small, tmp_path, change):
    model = vitzoo.create(small)
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    before = path.read_bytes()
    act, parts = OWN[change]
    act(model)
    with refuses(InvalidOption, *parts):
        vitzoo.save(model, path)
    assert path.read_bytes() == before
    assert names(tmp_path) == ["net.safetensors"]


def test_the_fix_for_fewer_blocks_works(small, tmp_path, randomise):
    model = randomise(vitzoo.create(small))
    two_blocks_less(model)
    smaller = vitzoo.create({**model.spec.to_data(), "depth": len(model.blocks)})
    smaller.load_state_dict(model.state_dict())
    again = vitzoo.create(vitzoo.save(smaller, tmp_path / "net.safetensors"))
    assert torch.equal(logits(again), logits(model))


def test_tables_that_create_would_compute_anew_are_compared(small, tmp_path, randomise):
    model = randomise(vitzoo.create(small, pos_embed="sincos_2d")).half().float()
    with refuses(InvalidOption, "positions.table has other computed numbers", "set_input_size"):
        vitzoo.save(model, tmp_path / "net.safetensors")
    model.set_input_size(model.image_size)
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert torch.equal(logits(again), logits(model))
    model.norm.half()
    vitzoo.save(model, tmp_path / "net.safetensors")
    model.positions.half()
    with refuses(InvalidOption, "positions.table is torch.float16, expected torch.float32"):
        vitzoo.save(model, tmp_path / "net.safetensors")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantised_models_are_refused(small, tmp_path):
    kinds = {nn.Linear}
    model = torch.ao.quantization.quantize_dynamic(vitzoo.create(small), kinds, torch.qint8)
    with refuses(InvalidOption, "blocks.{0-1}.attn.qkv", "before it is quantised"):
        vitzoo.save(model, tmp_path / "net.safetensors")


class Packed(torch.Tensor):
    """A tensor subclass, as libraries of quantisation use it."""


def test_tensor_subclasses_are_refused(small, tmp_path):
    model = vitzoo.create(small)
    model.norm.bias = nn.Parameter(torch.zeros(32).as_subclass(Packed))
    with refuses(InvalidOption, "norm.bias is", "Packed", "safetensors.torch.save_file"):
        vitzoo.save(model, tmp_path / "net.safetensors")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn])
def test_types_that_create_refuses_are_not_saved(small, tmp_path, dtype):
    model = vitzoo.create(small)
    model.blocks[0].norm1.bias.data = torch.zeros(32).to(dtype)
    fix = "vitzoo.save(model.to(torch.float32), path)"
    with refuses(CheckpointError, f"blocks.0.norm1.bias is {dtype}", "torch.float32", fix):
        vitzoo.save(model, tmp_path / "net.safetensors")
    model.to(torch.float32)
    vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_diverged_model_is_saved_and_loaded_on_request(small, tmp_path, value):
    path = tmp_path / "net.safetensors"
    model = vitzoo.create(small)
    model.blocks[1].norm1.bias.data[3] = value
    with refuses(CheckpointError, "blocks.1.norm1.bias", "check_finite=False"):
        vitzoo.save(model, path)
    assert names(tmp_path) == []
    vitzoo.save(model, path, check_finite=False)
    says(refused(CheckpointError, path), "blocks.1.norm1.bias")
    again = vitzoo.create(path, check_finite=False)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name].isnan(), tensor.isnan()), name
        assert torch.equal(again.state_dict()[name].nan_to_num(), tensor.nan_to_num()), name


def test_a_model_of_zeros_is_saved_and_loaded_on_request(small, tmp_path):
    model = vitzoo.create(small)
    for parameter in model.parameters():
        parameter.data.zero_()
    with refuses(CheckpointError, "only zeros", "check_finite=False"):
        vitzoo.save(model, tmp_path / "net.safetensors")
    path = vitzoo.save(model, tmp_path / "net.safetensors", check_finite=False)
    assert not any(p.any() for p in vitzoo.create(path, check_finite=False).parameters())


@pytest.mark.parametrize(
    "labels",
    ["abcde", dict(enumerate("abcde")), [1, 2, 3, 4, 5], ["a", "b", "c", "d", ""], {"a"}],
    ids=str,
)
def test_labels_of_another_type_are_refused(small, tmp_path, labels):
    model = vitzoo.create(small)
    model.labels = labels
    with refuses(InvalidOption, "model.labels", type(labels).__name__, "one name per class", "()"):
        vitzoo.save(model, tmp_path / "net.safetensors")


def test_labels_may_be_a_list_or_none(small, tmp_path):
    model = vitzoo.create(small)
    for labels, expected in ((list("abcde"), tuple("abcde")), (None, ()), ([], ())):
        model.labels = labels
        again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
        assert again.labels == expected


def test_labels_that_make_the_header_too_long_are_refused(small, tmp_path):
    model = vitzoo.create(small)
    model.labels = ("x" * 9_000_000, "b", "c", "d", "e")
    with refuses(CheckpointError, 8388608, "bytes", "shorten the labels"):
        vitzoo.save(model, tmp_path / "net.safetensors")
    assert names(tmp_path) == []


@pytest.mark.parametrize("positions", ["learned", "rope_mixed", "relative"])
def test_save_draws_no_random_numbers(small, tmp_path, positions):
    model = vitzoo.create(small, pos_embed=positions, head="mlp", pool="attention")
    before = torch.get_rng_state()
    vitzoo.save(model, tmp_path / "net.safetensors")
    assert torch.equal(torch.get_rng_state(), before)


def test_parts_given_as_objects_are_saved_without_their_code(small, tmp_path, randomise):
    parts = {
        "head": vitzoo.parts.mlp_head(in_dim=32, num_classes=5),
        "pool": vitzoo.parts.MeanPool(),
        "drop_path": lambda *, depth: [0.1] * depth,
    }
    model = randomise(vitzoo.create(small, **parts))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    parts["head"] = parts["head"].reset(5)
    assert torch.equal(logits(vitzoo.create(path, **parts)), logits(model))


def later_size(model):
    model.set_input_size((48, 24))


CHANGES = {  # after `create`; `save` accepts the first ones
    "nothing": lambda _: None,
    "head": lambda model: setattr(model, "head", nn.Linear(32, 3, dtype=model.cls_token.dtype)),
    "no head": lambda model: setattr(model, "head", nn.Identity()),
    "reset": lambda model: model.reset_classifier(4),
    "image size": later_size,
    "rates": lambda model: [setattr(b.drop_path, "rate", 0.3) for b in model.blocks],
    "half and back": lambda model: model.half().float(),
    "activation": lambda model: setattr(model.blocks[0].mlp, "act", nn.Tanh()),
    "scale": lambda model: setattr(model.blocks[1].attn, "scale", 1.0),
    "norm": lambda model: setattr(model.blocks[1], "norm2", nn.LayerNorm(32, eps=0.1)),
    "method": lambda model: setattr(model.positions, "layout", "interleaved"),
}
PARTS = st.fixed_dictionaries(
    {
        "pos_embed": st.sampled_from(
            [
                *("learned", "learned_2d", "sincos_2d", "rope", "rope_mixed", "relative", "none"),
                {"name": "learned", "where": "layers"},
                {"name": "rope", "coordinates": "index", "layout": "interleaved", "absolute": True},
            ]
        ),
        "pool": st.sampled_from(
            ["class", "mean", "attention", {"name": "mean", "norm_first": False}]
        ),
        "head": st.sampled_from(["linear", "tanh", {"name": "mlp", "hidden_dim": 16}]),
        "patch_embed": st.sampled_from(["conv", "unfold", {"name": "conv", "bias": False}]),
        "drop_path": st.sampled_from([0.0, 0.2, {"name": "constant", "rate": 0.1}]),
        "block": st.fixed_dictionaries(
            {},
            optional={
                "layer_scale": st.just(0.5),
                "qk_norm": st.booleans(),
                "mlp": st.sampled_from(["mlp", "swiglu", "swiglu_packed"]),
                "norm": st.sampled_from(["layer", "rms"]),
                "activation": st.sampled_from(["gelu", "gelu_tanh", "quick_gelu"]),
                "qkv_bias": st.sampled_from([True, False, "qv"]),
                "parallel": st.booleans(),
            },
        ),
        "num_classes": st.sampled_from([0, 5]),
        "dtype": st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    }
)


@pytest.mark.slow
@given(
    parts=PARTS,
    registers=st.integers(0, 2),
    change=st.sampled_from(sorted(CHANGES)),
    wrap=st.sampled_from(sorted(WRAPPERS.keys() - {"DistributedDataParallel", "compile in place"})),
)
def test_what_save_accepts_is_restored_with_equal_outputs(parts, registers, change, wrap):
    torch.manual_seed(0)
    model = vitzoo.create(SPEC | {"num_registers": registers}, **parts).eval()
    CHANGES[change](model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape).to(parameter), alpha=0.1)
    (height, width), dtype = model.image_size, next(model.parameters()).dtype
    images = torch.randn(2, 3, height, width).to(dtype)
    with torch.no_grad():
        expected = model.forward_features(images), model(images)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.safetensors"
        with suppress(InvalidOption):
            vitzoo.save(WRAPPERS[wrap](model), path)
        if not path.exists():
            assert change in ("half and back", "activation", "scale", "norm", "method")
            return
        again = vitzoo.create(path).eval()
    assert again.spec == model.spec
    assert {n: t.dtype for n, t in again.state_dict().items()} == {
        n: t.dtype for n, t in _plain(model).items()
    }
    with torch.no_grad():
        found = again.forward_features(images), again(images)
    assert all(map(torch.equal, found, expected))
    assert expected[1].abs().max() > 0


def _plain(model):
    return {name.replace("_orig_mod.", ""): t for name, t in model.state_dict().items()}


HEAD = """\
from torch import nn

class Cosine(nn.Linear):
    def __init__(self, *, in_dim, num_classes):
        super().__init__(in_dim, num_classes)
        self.num_classes, self.pre_logits_dim = num_classes, in_dim

    def reset(self, num_classes):
        return Cosine(in_dim=self.in_features, num_classes=num_classes)

    def forward(self, x, pre_logits=False):
        return x if pre_logits else super().forward(x)
"""
PLUGIN = 'api = 1\nheads.cosine = { target = "acme.parts:Cosine", summary = "s" }\n'


@pytest.mark.slow
def test_a_file_imports_the_plugin_of_a_registered_part_and_no_other_module(
    small, tmp_path, install, python
):
    """docs/trust.md states this: the metadata of a file names parts, not modules."""
    text = {"acme/__init__.py": "", "acme/parts.py": HEAD, "acme/registry.toml": PLUGIN}
    site = install("acme-parts", "acme = acme:registry.toml", text)
    for name in ("evil", "acme/evil"):
        (site / f"{name}.py").write_text("raise SystemExit('imported')")
    path = vitzoo.save(vitzoo.create(small, head="acme/cosine"), tmp_path / "net.safetensors")
    code = f"import sys, vitzoo; vitzoo.create({str(path)!r}); print('acme.parts' in sys.modules)"
    assert python(code, path=site) == "True\n"
    data = path.read_bytes()
    others = ("acme.evil:X", "evil:Hostil", "evil/Hostil", "acme/evil12")
    for i, other in enumerate(others):
        assert len(other) == len("acme/cosine")
        (tmp_path / f"{i}.safetensors").write_bytes(data.replace(b"acme/cosine", other.encode()))
    code = f"""\
import sys, vitzoo
forbidden = {{'evil', 'acme.evil', 'acme', 'acme.parts'}}
for i in range({len(others)}):
    try:
        vitzoo.create(f"{tmp_path}/{{i}}.safetensors")
    except vitzoo.VitzooError as error:
        print(type(error).__name__, *forbidden & set(sys.modules))
"""
    found = python(code, path=site).splitlines()
    assert len(found) == len(others)
    assert {*found} <= {"UnknownName", "InvalidOption", "CheckpointError"}
