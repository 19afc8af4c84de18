"""`lora`: what LoRA adapts in each network, and what `create` refuses to adapt."""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitzoo
from helpers import SPEC, fill, refuses
from vitzoo.errors import InvalidOption


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
    with refuses(InvalidOption, "r must be a whole number from 1 to the width 32", repr(r)):
        vitzoo.lora(vitzoo.create(SPEC), r=r)


def test_models_that_are_not_adapted():
    model = fill(vitzoo.create(SPEC))
    for wrong in (nn.Linear(2, 2), nn.DataParallel(model)):
        with refuses(InvalidOption, type(wrong).__name__, "target_modules"):
            vitzoo.lora(wrong)
    model.blocks[0].attn.qkv.base_layer = nn.Linear(32, 96)
    with refuses(InvalidOption, "adapters already", "merge_and_unload()"):
        vitzoo.lora(model)
