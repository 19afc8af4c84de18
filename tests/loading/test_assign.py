"""Assigning loaded tensors, with torch's `load_state_dict(assign=True)` as the reference."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

import vitzoo
from create_helpers import operations
from helpers import SPEC, says
from tables import cases
from vitzoo.loading.assign import Slots
from vitzoo.parts.init import WithoutData

NETWORKS = {
    "plain": {},
    "many parts": {
        "num_registers": 2,
        "pre_norm": True,
        "head": "tanh",
        "block": {"mlp": "swiglu", "qk_norm": True, "layer_scale": 0.1, "qkv_bias": "qv"},
    },
    "tables": {"pos_embed": "relative", "block": {"parallel": True, "norm": "rms"}},
    "rotation": {"pos_embed": "rope", "pool": "attention", "block": {"mlp": "swiglu_packed"}},
    "hybrid": {"patch_embed": "hybrid/resnet_stem"},
}


class Custom(nn.Linear):
    """Has its own code for loading: a file may have the bias under another name."""

    def _load_from_state_dict(self, state_dict, prefix, *args):
        state_dict[f"{prefix}bias"] = state_dict[f"{prefix}bias"] + 1
        super()._load_from_state_dict(state_dict, prefix, *args)


class Extra(nn.Linear):
    def get_extra_state(self):
        return torch.ones(3)

    def set_extra_state(self, state):
        self.extra = state


class Transposed(nn.Module):
    def forward(self, x):
        return x.T


class Special(nn.Parameter):
    pass


def hooked():
    module = nn.Linear(3, 2)

    def double(_, state_dict, prefix, *__):
        state_dict[f"{prefix}weight"] = state_dict[f"{prefix}weight"] * 2

    module.register_load_state_dict_pre_hook(double)
    return module


def hooked_after():
    module = nn.Linear(3, 2)

    def freeze(module, _):
        module.bias.requires_grad_(False)

    module.register_load_state_dict_post_hook(freeze)
    return module


def renamed():
    module = nn.Linear(3, 2)
    module.register_state_dict_post_hook(
        lambda _, state, prefix, __: state.update({f"{prefix}b": state.pop(f"{prefix}bias")})
    )
    module.register_load_state_dict_pre_hook(
        lambda _, state, prefix, *__: state.update({f"{prefix}bias": state.pop(f"{prefix}b")})
    )
    return module


def with_own_method():
    module = nn.Linear(3, 2)
    load = module._load_from_state_dict

    def negated(state_dict, prefix, *args):
        load({**state_dict, f"{prefix}bias": -state_dict[f"{prefix}bias"]}, prefix, *args)

    module._load_from_state_dict = negated
    return module


def parametrized():
    module = nn.Linear(3, 3)
    register_parametrization(module, "weight", Transposed())
    return module


def with_special_parameter():
    module = nn.Linear(3, 2)
    module.bias = Special(module.bias.detach())
    return module


def tied():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    return module


def shared():
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def frozen():
    module = nn.Linear(3, 2)
    module.weight.requires_grad_(False)
    return module


def with_buffers():
    module = nn.Linear(3, 2, bias=False)
    module.register_buffer("kept", torch.ones(2))
    module.register_buffer("computed", torch.ones(3, device="cpu"), persistent=False)
    module.register_buffer("none", None)
    return module


MODULES = {
    "own code": lambda: Custom(3, 2),
    "extra state": lambda: Extra(3, 2),
    "a hook before": hooked,
    "a hook after": hooked_after,
    "names changed by hooks": renamed,
    "own code of one module": with_own_method,
    "another class of parameter": with_special_parameter,
    "batch norm": lambda: nn.BatchNorm2d(3),
    "recurrent": lambda: nn.LSTM(3, 2),  # keeps lists of its parameters
    "parametrization": parametrized,
    "attention": lambda: nn.MultiheadAttention(4, 2),
    "tied parameters": tied,
    "a shared module": shared,
    "a frozen parameter": frozen,
    "buffers": with_buffers,
}


def state_of(model, seed):
    """Return random tensors for the state dict of a model, floats of several types."""
    generator = torch.Generator().manual_seed(seed)
    types = (torch.float32, torch.bfloat16, torch.float64)
    return {
        name: torch.randn(tensor.shape, generator=generator).to(
            types[(i + seed) % 3] if tensor.is_floating_point() else tensor.dtype
        )
        for i, (name, tensor) in enumerate(model.state_dict().items())
    }


def tensors_of(model):
    """Return every tensor by each of its names, those of lists in modules too."""
    found = dict(model.named_parameters(remove_duplicate=False))
    found |= model.named_buffers(remove_duplicate=False)
    for name, module in model.named_modules():
        if isinstance(module, nn.LSTM):
            found |= {f"{name}.flat.{i}": t for i, t in enumerate(module._flat_weights)}
        if isinstance(module, Extra):
            found |= {f"{name}.extra": module.extra}
    return found


def check_against_torch(make, seed=0):
    """Load one state into two equal networks, and compare all of their tensors."""
    ours, by_torch = make(), make()
    state = state_of(ours, seed)
    by_torch.load_state_dict(state, strict=True, assign=True)
    slots = Slots(ours)
    assert list(slots.expected) == list(by_torch.state_dict())
    slots.assign(state)
    loaded = {tensor.data_ptr() for tensor in state.values()}
    found, expected = tensors_of(ours), tensors_of(by_torch)
    assert list(found) == list(expected)
    assert set(map(id, slots.buffers())) == set(map(id, ours.buffers()))
    assert slots.without_data() == [name for name, t in ours.named_buffers() if t.is_meta]
    for name, tensor in expected.items():
        mine = found[name]
        for of in (type, *map(property_of, ("dtype", "requires_grad", "_version", "is_leaf"))):
            assert of(mine) == of(tensor), name
        assert mine.is_meta == tensor.is_meta, name
        assert tensor.is_meta or torch.equal(mine, tensor), name
        assert (mine.data_ptr() in loaded) == (tensor.data_ptr() in loaded), name
    aliases = [[a for a in found if found[a] is found[b]] for b in found]
    assert aliases == [[a for a in expected if expected[a] is expected[b]] for b in expected]


def property_of(name):
    return lambda tensor: getattr(tensor, name)


@cases("seed", [0, 1])
@cases("network", NETWORKS)
def test_networks(network, seed):
    check_against_torch(lambda: vitzoo.create(SPEC | NETWORKS[network], device="meta"), seed)


@cases("seed", [0, 1])
@cases("place", ["meta", "cpu"])
@cases("module", MODULES)
def test_modules(module, place, seed):
    def make():
        with WithoutData() if place == "meta" else torch.device(place):
            return nn.ModuleDict({"a": MODULES[module](), "b": nn.Linear(2, 2)})

    check_against_torch(make, seed)


def test_loading_has_few_operations_per_tensor(tmp_path):
    """Two tensors without data are made, for network and header, and a view of the file."""
    counts = []
    for depth in (2, 6):
        spec, file = SPEC | {"depth": depth}, tmp_path / f"{depth}.safetensors"
        model = vitzoo.create(spec)
        vitzoo.save(model, file)
        count = operations(partial(vitzoo.create, file, check_finite=False))
        counts.append((count, len(model.state_dict())))
    (few, fewer), (many, more) = counts
    added = {name: count / (more - fewer) for name, count in (many - few).items()}
    assert added["empty"] == 2
    assert added["view"] == 1
    assert added["detach"] <= 4  # for two parameters, twice in the profile
    assert added.keys() <= {"empty", "detach", "reshape", "view"}


def test_torch_swaps_tensors_if_the_user_has_chosen_so(monkeypatch):
    model = nn.Linear(3, 2)
    weight, state = model.weight, state_of(model, 0)
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    Slots(model).assign(state)
    assert model.weight is weight
    assert torch.equal(weight, state["weight"])


@pytest.mark.parametrize("odd", [{"weight": torch.ones(5)}, {"extra": torch.ones(1)}, {}])
def test_torch_explains_what_does_not_fit(odd):
    model = nn.Linear(3, 2)
    state = state_of(model, 0) | odd
    if not odd:
        del state["bias"]
    messages = []
    for load in (Slots(model).assign, model.load_state_dict):
        with pytest.raises(RuntimeError) as caught:
            load(state)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


class OwnHead(vitzoo.parts.LinearHead):
    """Has its own code for loading."""

    def __init__(self):
        super().__init__(in_dim=SPEC["embed_dim"], num_classes=SPEC["num_classes"])

    def _load_from_state_dict(self, state_dict, prefix, *args):
        state_dict[f"{prefix}bias"] = state_dict[f"{prefix}bias"] + 1
        super()._load_from_state_dict(state_dict, prefix, *args)


def test_a_head_with_its_own_code_is_loaded_by_it(tmp_path):
    source = vitzoo.create(SPEC)
    vitzoo.save(source, tmp_path / "net.safetensors")
    head = OwnHead()
    model = vitzoo.create(SPEC, head=head, weights=tmp_path / "net.safetensors")
    assert model.head is head
    assert torch.equal(head.bias, source.head.bias + 1)


def test_a_part_that_leaves_a_buffer_without_data(tmp_path):
    class Head(vitzoo.parts.LinearHead):
        def __init__(self):
            super().__init__(in_dim=32, num_classes=5)
            self.register_buffer("scale", torch.ones(3, device="meta"), persistent=False)

    vitzoo.save(vitzoo.create(SPEC), tmp_path / "net.safetensors")
    with pytest.raises(vitzoo.InvalidOption) as caught:
        vitzoo.create(SPEC, head=Head(), weights=tmp_path / "net.safetensors")
    says(str(caught.value), "head.scale", "device='cpu'")
