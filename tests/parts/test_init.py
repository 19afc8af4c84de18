"""Initial weights: none are computed without data, and seeds give those of torch's layers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import vitzoo
from create_helpers import operations
from helpers import SPEC, refuses
from internals import WithoutData, layer
from vitzoo.parts import LinearHead

FILLED = ("zeros", "ones", "full", "arange", "tensor")  # such as the class token
FILLS = ("uniform_", "normal_", "fill_", "zero_", "copy_", "erfinv_")
NETWORKS = {
    "plain": SPEC,
    "many parts": SPEC
    | {"num_registers": 2, "head": "tanh", "pool": "attention"}
    | {"block": {"mlp": "swiglu", "qk_norm": True, "norm": "rms"}},
    "relative": SPEC | {"pos_embed": "relative", "block": {"mlp": "swiglu_packed"}},
    "resnet": SPEC | {"patch_embed": "hybrid/resnet_stem"},
}


@pytest.mark.parametrize("network", NETWORKS)
def test_nothing_is_filled_without_data(network):
    spec = NETWORKS[network]
    count = operations(lambda: vitzoo.create(spec, device="meta"))
    made = sum(count[name] for name in FILLED)
    assert sum(count[name] for name in FILLS) <= made < len(FILLED)
    model = vitzoo.create(spec, device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())
    assert count["empty"] >= len(list(model.parameters())) - made


@pytest.mark.parametrize("seed", [0, 1])
def test_a_layer_has_the_weights_of_torchs(seed):
    for kind, arguments in ((nn.Linear, (6, 4)), (nn.LayerNorm, (6,)), (nn.RMSNorm, (6,))):
        made = []
        for construct in (kind, lambda *args, kind=kind: layer(kind, *args)):
            torch.manual_seed(seed)
            made.append((construct(*arguments).state_dict(), torch.random.get_rng_state()))
        (ours, after), (by_torch, state) = made[1], made[0]
        assert ours.keys() == by_torch.keys()
        assert all(torch.equal(ours[name], tensor) for name, tensor in by_torch.items())
        assert torch.equal(after, state)
        assert vars(layer(kind, *arguments)).keys() == vars(kind(*arguments)).keys()


def test_tensors_with_data_are_filled():
    with WithoutData():
        assert torch.nn.init.ones_(torch.empty(3)).is_meta
        assert nn.init.ones_(torch.empty(3, device="cpu")).tolist() == [1, 1, 1]
        with torch.device("cpu"):
            linear = layer(nn.Linear, 40, 40)
            assert linear.weight.std() > 0.01
        assert nn.Linear(3, 2).weight.is_meta
    assert not torch.empty(3).is_meta


def test_loading_draws_no_random_numbers(tmp_path):
    vitzoo.save(vitzoo.create(SPEC), tmp_path / "net.safetensors")
    state = torch.random.get_rng_state()
    vitzoo.create(tmp_path / "net.safetensors")
    assert torch.equal(state, torch.random.get_rng_state())


IMPORTED = """
import json, sys
import torch
before = set(sys.modules)
import vitzoo
model = vitzoo.create("vit_digits", pretrained=True)
vitzoo.create("vit_b16", device="meta")
with torch.inference_mode():
    model(torch.zeros(1, 1, 28, 28))
print(json.dumps(sorted(set(sys.modules) - before)))
"""


@pytest.mark.slow
def test_create_imports_little_beside_torch():
    command = [sys.executable, "-c", IMPORTED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout)
    top = {name.partition(".")[0] for name in modules}
    others = top - set(sys.stdlib_module_names)
    assert {"vitzoo"} <= others <= {"vitzoo", "torch", "pluggy", "filelock", "rtoml", "_rtoml"}
    assert {name for name in modules if name.startswith("torch")} <= {"torch.utils._device"}


# The initialisation that a spec names


def standard_deviations(spec, **options):
    torch.manual_seed(0)
    state = vitzoo.create(WIDE | {"init": "trunc_normal"} | spec, **options).state_dict()
    return {
        name: float(tensor.std()) if tensor.numel() > 1 else 0 for name, tensor in state.items()
    }


WIDE = SPEC | {"embed_dim": 96, "num_heads": 3, "depth": 1, "num_classes": 50, "head": "tanh"}


def test_a_spec_names_truncated_normals():
    found = standard_deviations({"num_registers": 3, "block": {"layer_scale": 0.5}})
    fan_out = (2 / (96 * SPEC["patch_size"] ** 2)) ** 0.5
    for name, std in found.items():
        if name in ("cls_token", "reg_token", "pos_embed"):
            expected = 0.02
        elif name == "patch_embed.proj.weight":
            expected = fan_out
        else:  # biases 0, gains 1
            expected = 0.01 if name.endswith("weight") and "norm" not in name else 0
        assert abs(std - expected) <= 0.2 * expected, name
    state = vitzoo.create(WIDE | {"init": "trunc_normal"}).state_dict()
    assert (state["blocks.0.norm1.weight"] == 1).all()


def test_the_usual_initialisation_stays():
    torch.manual_seed(3)
    usual = vitzoo.create(SPEC).state_dict()
    torch.manual_seed(3)
    named = vitzoo.create(SPEC | {"init": "vit_jax"}).state_dict()
    assert all(torch.equal(named[name], tensor) for name, tensor in usual.items())


def test_a_part_given_as_an_object_keeps_its_weights():
    head = LinearHead(in_dim=96, num_classes=50)
    model = vitzoo.create(WIDE | {"init": "trunc_normal"}, head=head)
    assert not model.head.weight.any()  # as `LinearHead` draws it
    assert model.cls_token.any()


def test_another_initialisation_is_refused_with_the_known_ones():
    with refuses(vitzoo.InvalidOption, "init", "vit_jax", "trunc_normal", "'trunc'"):
        vitzoo.create(SPEC | {"init": "trunc"})
