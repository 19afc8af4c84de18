"""Networks whose classes torch replaced: FSDP2, parametrizations. They take images of any size."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import vitzoo
from helpers import SMALL, fill, randn
from internals import of_any_size
from tables import cases

POSITIONS = {
    "learned": "learned",
    "learned parameters": {"name": "rope_mixed", "absolute": True},
    "decomposed": {"name": "decomposed", "absolute": True},
}
IMAGES = randn(2, 3, 48, 24, seed=1)
SIZES = [randn(3, 48, 24, seed=2), randn(3, 32, 32, seed=3), randn(3, 48, 24, seed=4)]
CALLS = {
    "forward": lambda model: [model(IMAGES)],
    "own size": lambda model: [model(randn(2, 3, 32, 32))],
    "features": lambda model: list(
        model.features(IMAGES, ["embed", "blocks.1", "logits"]).values()
    ),
    "attention_maps": lambda model: list(model.attention_maps(IMAGES).values()),
    "packed": lambda model: [model.forward_packed(SIZES)],
    "packed tokens": lambda model: model.forward_features_packed(SIZES),
    "backbone": lambda model: vitzoo.backbone(model, out=[0, -1])(IMAGES),
    "native size": lambda model: [of_any_size(model)(IMAGES)],
}


class Double(nn.Module):
    def forward(self, x):
        return 2 * x


def made(positions):
    return fill(vitzoo.create(SMALL, pos_embed=POSITIONS[positions], dynamic=True))


def doubled(model):
    """Let several modules have parameters that are computed, the network itself among them."""
    parametrize.register_parametrization(model, "pos_embed", Double())
    parametrize.register_parametrization(model.blocks[0].attn.qkv, "weight", Double())
    for name, _ in [*model.positions.named_parameters(recurse=False)]:
        parametrize.register_parametrization(model.positions, name, Double())
    return model


def halved(model):
    """Divide what `doubled` doubles."""
    with torch.no_grad():
        model.pos_embed.div_(2)
        model.blocks[0].attn.qkv.weight.div_(2)
        for parameter in model.positions.parameters(recurse=False):
            parameter.div_(2)
    return model


@pytest.mark.slow
@cases("call", CALLS)
@cases("positions", POSITIONS)
@torch.no_grad()
def test_a_parametrized_network_takes_any_size(positions, call):
    model = made(positions)
    expected = CALLS[call](copy.deepcopy(model))
    found = CALLS[call](doubled(halved(model)))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_gradients_reach_weight_norm_at_another_size():
    model = made("learned")
    parametrizations.weight_norm(model.patch_embed.proj)
    parametrizations.weight_norm(model.blocks[1].mlp.fc1)
    expected = copy.deepcopy(model)
    expected.set_input_size((48, 24))
    for one in (model, expected):
        one(IMAGES).square().sum().backward()
    for (name, found), other in zip(model.named_parameters(), expected.parameters(), strict=True):
        if name != "pos_embed":
            torch.testing.assert_close(found.grad, other.grad, rtol=0, atol=1e-4, msg=name)
    assert model.pos_embed.grad.any()


@pytest.fixture
def mesh(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/sync", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.fixture
def sharded(mesh):
    """A function that shards a model and its blocks, for calls of these methods, too."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    def shard(model, *methods):
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for name in methods:
            register_fsdp_forward_method(model, name)

    return shard


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view")  # of all networks
@pytest.mark.parametrize("positions", POSITIONS)
def test_fsdp2_takes_any_size(sharded, positions):
    model = made(positions)
    plain = copy.deepcopy(model)
    sharded(model, "forward_features", "forward_packed", "forward_intermediates")
    for images in (IMAGES, randn(2, 3, 32, 32), IMAGES):
        torch.testing.assert_close(model(images), plain(images), rtol=0, atol=1e-5)
    for name in ("forward_features", "forward_intermediates"):
        found, expected = getattr(model, name)(IMAGES), getattr(plain, name)(IMAGES)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        model.forward_packed(SIZES), plain.forward_packed(SIZES), rtol=0, atol=1e-5
    )
    found = vitzoo.backbone(model, out=[0, -1])(IMAGES)
    torch.testing.assert_close(found, vitzoo.backbone(plain, out=[0, -1])(IMAGES))
    for one in (model, plain):
        one.zero_grad()
        one(IMAGES).square().sum().backward()
    grads = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
    for name, parameter in model.named_parameters():
        if name in grads:
            grad = parameter.grad.full_tensor()
            torch.testing.assert_close(grad, grads[name], rtol=0, atol=1e-4, msg=name)


def frozen(model):
    """Return the names of the parameters that a backbone with a frozen block does not train."""
    found = vitzoo.backbone(model, frozen=1)
    return {name for name, one in found.named_parameters() if not one.requires_grad}


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_backbone_of_a_sharded_network_freezes_blocks(sharded, positions):
    model = made(positions)
    expected = frozen(copy.deepcopy(model))
    sharded(model, "forward_intermediates")
    assert frozen(model) == expected


@pytest.mark.parametrize("norm", ["weight_norm", "spectral_norm"])
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_backbone_freezes_the_parameters_of_a_norm_that_a_hook_computes(norm):
    model = made("learned")
    expected = frozen(copy.deepcopy(model))
    getattr(nn.utils, norm)(model.blocks[0].mlp.fc1)
    model(IMAGES)  # which keeps a weight that has a graph
    weight = "network.blocks.0.mlp.fc1.weight"
    parts = {"_orig"} if norm == "spectral_norm" else {"_g", "_v"}
    assert frozen(model) == expected - {weight} | {weight + part for part in parts}
    assert model.blocks[0].mlp.fc1.weight.grad_fn is not None
