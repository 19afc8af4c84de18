"""Sharded networks: groups, methods, gradients with drop path and checkpointing."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

import vitzoo
from helpers import SMALL, randn, refuses, same
from vitzoo.errors import InvalidOption

pytestmark = [pytest.mark.workflows, pytest.mark.usefixtures("group")]


@pytest.fixture
def group():
    """A process group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def shard(model):
    """Shard a network as docs/fine-tuning.md does."""
    for module in (*model.blocks, model):
        fully_shard(module)
    for method in ("forward_features", "forward_head", "features", "forward_intermediates"):
        register_fsdp_forward_method(model, method)


def rates(model):
    names = {id(p): name for name, p in model.named_parameters()}
    groups = vitzoo.param_groups(model, 1e-3, layer_decay=0.7)
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}


def test_a_sharded_network_has_the_same_groups_and_methods(tmp_path):
    torch.manual_seed(1)
    model, plain = (vitzoo.create(SMALL | {"num_classes": 5}).eval() for _ in range(2))
    with torch.no_grad():
        plain.head.weight.normal_()
    model.load_state_dict(plain.state_dict())
    vitzoo.freeze(model, until=1)
    vitzoo.freeze(plain, until=1)
    shard(model)
    assert rates(model) == rates(plain)
    assert type(next(model.parameters())).__name__ == "DTensor"
    with refuses(InvalidOption, "sharded", "get_model_state_dict", "vitzoo.create(model.spec)"):
        vitzoo.save(model, tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []
    images = randn(2, 3, 32, 32)
    names = ["patch_embed", "blocks.1", "logits"]
    with torch.no_grad():
        tokens = model.forward_features(images)
        expected = plain.forward_features(images)
        same({"tokens": tokens}, {"tokens": expected})
        logits = {"logits": plain.forward_head(expected)}
        same({"logits": model.forward_head(tokens)}, logits)
        same({"logits": model(images)}, logits)  # hooks of FSDP: the last block has all tokens
        same(model.features(images, names), plain.features(images, names))
        (found,) = model.get_intermediate_layers(images)
        same({"blocks": found}, {"blocks": plain.get_intermediate_layers(images)[0]})


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo
@pytest.mark.parametrize("compiled", [False, True])
def test_a_sharded_network_trains_with_subset_drop_path_and_checkpointing(compiled):
    gradients = []
    for sharded in (False, True):
        torch.manual_seed(2)
        drop = {"name": "constant", "rate": 0.0 if compiled else 0.5, "mode": "subset"}
        model = vitzoo.create(SMALL | {"num_classes": 5}, drop_path=drop)
        model.set_grad_checkpointing(not compiled)
        for block in model.blocks if compiled and sharded else ():
            block.compile(backend="eager")
        if sharded:
            shard(model)
        torch.manual_seed(3)
        F.cross_entropy(model(randn(4, 3, 32, 32)), torch.tensor([0, 1, 2, 3])).backward()
        found = {name: p.grad for name, p in model.named_parameters()}
        gradients.append({n: g.full_tensor() if sharded else g for n, g in found.items()})
    # The hooks of FSDP2 bring back the tokens of the last block that the pool does not read.
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=2e-6)
