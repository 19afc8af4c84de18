"""`lora`: what LoRA adapts in each network, and what `create` refuses to adapt."""

import copy
import json
import logging
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitzoo
from helpers import SPEC, fill, refuses, write
from tables import cases, check_all
from vitzoo.errors import InvalidOption
from vitzoo.parts import LearnedPositions, linear_head


def test_the_record_states_the_base_and_the_network():
    model = vitzoo.create("vit_digits", pretrained=True)
    found = vitzoo.lora(model, r=4)
    assert found["revision"].startswith(f"sha256:{model.load_report.sha256} {{")
    assert (found["r"], found["lora_alpha"], found["modules_to_save"]) == (4, 4, ["head"])
    assert vitzoo.lora(model, lora_alpha=16)["lora_alpha"] == 16
    model.labels = ("one", "two")
    with refuses(InvalidOption, "2 names for 10 classes"):
        vitzoo.lora(model)


def test_a_model_without_head_trains_none():
    model = vitzoo.create("vit_digits", pretrained=True, num_classes=0)
    assert vitzoo.lora(model)["modules_to_save"] is None


def test_random_weights_are_no_base(caplog):
    with caplog.at_level(logging.WARNING, "vitzoo"):
        assert vitzoo.lora(vitzoo.create(SPEC))["revision"] is None
    assert "vitzoo.save" in caplog.text


def test_a_model_that_was_trained_after_loading_is_not_the_base_that_it_states(tmp_path):
    model = vitzoo.create("vit_digits", pretrained=True, num_classes=3, image_size=42)
    model.set_input_size(28)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = vitzoo.lora(model)
    F.cross_entropy(model(torch.ones(2, 1, 28, 28)), torch.tensor([0, 1])).backward()
    model.norm.bias.grad.fill_(1.0)  # the head is zero, so its gradient alone is not
    optimizer.param_groups[0]["params"] = [*model.head.parameters()]
    optimizer.step()
    assert vitzoo.lora(model) == before  # the adapter contains the head
    optimizer.param_groups[0]["params"] = [model.norm.bias]
    optimizer.step()
    with refuses(InvalidOption, "norm.bias", "vitzoo.save(model, 'base.safetensors')"):
        vitzoo.lora(model)
    base = vitzoo.create(vitzoo.save(model, tmp_path / "base.safetensors"))
    assert base.load_report.sha256 in vitzoo.lora(base)["revision"]


@pytest.mark.parametrize("r", [0, -1, 33, True, 2.0, "8"])
def test_ranks_that_are_not_possible(r):
    with refuses(InvalidOption, "r must be", "1 to", "32", repr(r)):
        vitzoo.lora(vitzoo.create(SPEC), r=r)


def test_models_that_are_not_adapted():
    model = fill(vitzoo.create(SPEC))
    for wrong in (nn.Linear(2, 2), nn.DataParallel(model)):
        with refuses(InvalidOption, type(wrong).__name__, "target_modules"):
            vitzoo.lora(wrong)
    model.blocks[0].attn.qkv.base_layer = nn.Linear(32, 96)
    with refuses(InvalidOption, "adapters already", "merge_and_unload()"):
        vitzoo.lora(model)


@torch.no_grad()
def add(model):
    model.blocks[1].mlp.fc1.weight.data.add_(1e-3)


def replace(model):
    model.blocks[1].mlp.fc1.weight.data = model.blocks[1].mlp.fc1.weight.data * 1.001


def assign(model):
    name = "blocks.1.mlp.fc1.weight"
    tensors = model.state_dict() | {name: model.state_dict()[name] * 1.001}
    model.load_state_dict(tensors, assign=True)


def one_bit(model):
    model.blocks[1].mlp.fc1.weight.data.view(torch.int32)[3, 3] ^= 1


def rebind(model):
    model.blocks[1].mlp.fc1 = nn.Linear(64, 128)


@pytest.mark.slow
@cases("change", [add, replace, assign, one_bit, rebind])
@cases("way", ["registered", "saved", "file"])
def test_every_change_of_the_base_is_found(tmp_path, change, way):
    model = made(tmp_path, way)
    vitzoo.lora(model)
    model.head.weight.data.add_(1)
    model.head = nn.Linear(64, 3)
    vitzoo.lora(model)
    change(model)
    with refuses(
        InvalidOption, "changed after it was loaded", "blocks.1.mlp.fc1.weight", "base.safetensors"
    ):
        vitzoo.lora(model)


def made(tmp_path, way="registered", **given):
    model = vitzoo.create("vit_digits", pretrained=True)
    if way == "saved":
        return vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"), **given)
    if way == "file":
        path = write(tmp_path / "net.safetensors", model.state_dict())
        return vitzoo.create("vit_digits", weights=path, **given)
    return vitzoo.create("vit_digits", pretrained=True, **given)


CALLS = (
    {},
    {"num_classes": 3},
    {"num_classes": 0},
    {"head": linear_head(in_dim=64, num_classes=4)},
    {"head": "tanh"},
    {"image_size": 56},
    {"in_chans": 3},
    {"dtype": torch.bfloat16, "image_size": 56},
    {"dtype": torch.float16, "in_chans": 3},
    {"dtype": torch.float64},
    {"device": "cpu", "block": {"norm_eps": 1e-5}},
    {"dropout": 0.1, "drop_path": 0.2, "dynamic": True},
    {"mmap": False, "check_finite": False},
)


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("way", ["registered", "saved", "file"])
def test_what_create_changed_is_no_change_of_the_base(tmp_path, way):
    def check(given):
        model = made(tmp_path, way, **given)
        before = vitzoo.lora(model)
        assert vitzoo.lora(copy.deepcopy(model)) == before
        assert vitzoo.lora(pickle.loads(pickle.dumps(model))) == before
        model.set_input_size(42)
        assert "revision" in vitzoo.lora(model)
        model.reset_classifier(7)
        model.labels = ()
        assert "revision" in vitzoo.lora(model)
        assert "revision" in vitzoo.lora(model.to(torch.float16))

    check_all({str(given): given for given in CALLS}, check)


def test_the_base_is_loaded_on_the_cpu(monkeypatch):
    """A large network may not fit twice on a GPU."""
    model, places = vitzoo.create("vit_digits", pretrained=True), []
    again = model.create_again
    model.create_again = lambda **given: places.append(given["device"]) or again(**given)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: places.append(x.device.type) or x)
    vitzoo.lora(model)
    assert places == ["cpu"] * (1 + len([n for n in model.state_dict() if "head." not in n]))


def test_positions_that_a_gpu_interpolated_are_no_change(monkeypatch):
    """Their last digits are not those of the CPU, which compares them."""
    model, resample = vitzoo.create("vit_digits", pretrained=True), LearnedPositions.resample

    def elsewhere(self, *given):
        return resample(self, *given) * (1 + 1e-6 * (self is model.positions))

    monkeypatch.setattr(LearnedPositions, "resample", elsewhere)
    model.set_input_size(56)
    assert "revision" in vitzoo.lora(model)
    with torch.no_grad():
        model.pos_embed[0, 3, 5] += 1e-5
    with refuses(InvalidOption, "changed after it was loaded", "pos_embed"):
        vitzoo.lora(model)


def test_the_arguments_of_create_may_change_later():
    """A mapping that described the network is the caller's."""
    spec = {"variant": "vit_digits", "num_classes": 3}
    model = vitzoo.create(spec, pretrained=True)
    spec["depth"] = 1
    vitzoo.lora(model)


def test_weights_with_nan_are_compared(tmp_path):
    model = vitzoo.create(SPEC)
    model.norm.bias.data[0] = float("nan")
    path = write(tmp_path / "net.safetensors", model.state_dict())
    model = vitzoo.create(SPEC, weights=path, check_finite=False)
    vitzoo.lora(model)
    model.norm.bias.data[0] = 1
    with refuses(InvalidOption, "norm.bias"):
        vitzoo.lora(model)


def test_a_base_that_cannot_be_compared(tmp_path):
    model = made(tmp_path, "file")
    path = tmp_path / "net.safetensors"
    data = path.read_bytes()
    path.unlink()
    with refuses(InvalidOption, path, "cannot be loaded again", "base.safetensors"):
        vitzoo.lora(model)
    write(path, {n: t + 1 for n, t in model.state_dict().items()})
    with refuses(InvalidOption, path, "sha256", model.load_report.sha256, "base.safetensors"):
        vitzoo.lora(model)
    path.write_bytes(data)
    vitzoo.lora(model)


def test_a_merged_adapter_is_a_change(tmp_path):
    """The adapter of an adapter would state the wrong base."""
    base = vitzoo.create("vit_digits", pretrained=True)
    keys = {"peft_type": "LORA", **vitzoo.lora(base, r=1)}
    state = base.head.state_dict()
    tensors = {f"base_model.model.head.{n}": t for n, t in state.items()}
    for name, module in base.named_modules():
        if isinstance(module, nn.Linear) and name.startswith("blocks"):
            wide, high = module.weight.shape[1], module.weight.shape[0]
            tensors[f"base_model.model.{name}.lora_A.weight"] = torch.ones(1, wide)
            tensors[f"base_model.model.{name}.lora_B.weight"] = torch.ones(high, 1)
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / "adapter_model.safetensors", tensors)
    (tmp_path / "a" / "adapter_config.json").write_text(json.dumps(keys))
    model = vitzoo.create("vit_digits", adapter=tmp_path / "a")
    with refuses(
        InvalidOption, "changed after it was loaded", "attn.qkv.weight", "base.safetensors"
    ):
        vitzoo.lora(model)
