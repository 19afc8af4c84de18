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
from helpers import SPEC
from internals import WithoutData, layer

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
    assert sum(count[name] for name in FILLS) == made < len(FILLED)
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


def test_create_imports_little_beside_torch():
    command = [sys.executable, "-c", IMPORTED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout)
    top = {name.partition(".")[0] for name in modules}
    others = top - set(sys.stdlib_module_names)
    assert {"vitzoo"} <= others <= {"vitzoo", "torch", "pluggy", "filelock", "rtoml", "_rtoml"}
    assert {name for name in modules if name.startswith("torch")} <= {"torch.utils._device"}
