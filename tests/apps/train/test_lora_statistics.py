"""Adapters of networks whose pool or head keeps statistics, which training changes."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitzoo
from helpers import SPEC, fill, randn, refuses
from vitzoo.errors import CheckpointError

PARTS = """\
import torch
from torch import nn
from vitzoo.parts import linear_head

class Mean(nn.Module):
    norm_first = True

    def __init__(self, *, embed_dim, affine=True):
        super().__init__()
        self.norm = nn.BatchNorm1d(embed_dim, affine=affine)

    def forward(self, tokens, num_prefix_tokens, grid_size):
        return self.norm(tokens.mean(dim=1))

class Follow(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("average", torch.zeros(width))

    def forward(self, x):
        if self.training:
            self.average.lerp_(x.detach().mean(dim=0), 0.5)
        return x - self.average

class Head(nn.Module):
    def __init__(self, *, in_dim, num_classes):
        super().__init__()
        self.num_classes, self.pre_logits_dim = num_classes, in_dim
        self.norm = nn.BatchNorm1d(in_dim, affine=False)
        self.fc = nn.Linear(in_dim, num_classes)

    def reset(self, num_classes):
        return Head(in_dim=self.pre_logits_dim, num_classes=num_classes)

    def forward(self, x, pre_logits=False):
        return self.norm(x) if pre_logits else self.fc(self.norm(x))

class FollowingMean(Mean):
    def __init__(self, *, embed_dim):
        super().__init__(embed_dim=embed_dim)
        self.norm = Follow(embed_dim)
"""
MANIFEST = """\
api = 1
pools.mean = { target = "acme.parts:Mean", summary = "batch norm of the mean" }
pools.following = { target = "acme.parts:FollowingMean", summary = "less an average" }
heads.normed = { target = "acme.parts:Head", summary = "batch norm and a linear layer" }
"""
FILES = {"acme/__init__.py": "", "acme/parts.py": PARTS, "acme/registry.toml": MANIFEST}
NETWORKS = {
    "pool with factors": ({"pool": "acme/mean"}, "attn_pool.norm.running_mean"),
    "pool without": (
        {"pool": {"name": "acme/mean", "affine": False}, "num_classes": 0},
        "pool.norm.running_mean",
    ),
    "head": ({"head": "acme/normed"}, "head.norm.running_mean"),
    "another statistic": ({"pool": "acme/following"}, "pool.norm.average"),
}


def trained(model):
    """Return a model of PEFT after a few steps of training."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    peft_model = get_peft_model(model, LoraConfig(**vitzoo.lora(model, r=2)))
    optimizer = torch.optim.SGD([p for p in peft_model.parameters() if p.requires_grad], lr=0.1)
    peft_model.train()
    for step in range(3):
        images = 3 * randn(8, 3, *model.image_size, seed=step) + 1
        peft_model(images).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return peft_model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
@torch.enable_grad()
def test_the_statistics_are_in_the_adapter(install, tmp_path, kind):
    install("acme-parts", "acme = acme:registry.toml", FILES)
    changes, name = NETWORKS[kind]
    base = fill(vitzoo.create(SPEC | changes))
    file = vitzoo.save(base, tmp_path / "base.safetensors")
    peft_model = trained(vitzoo.create(file))
    peft_model.save_pretrained(tmp_path / "adapter")
    again = vitzoo.create(file, adapter=tmp_path / "adapter").eval()
    images = randn(4, 3, *again.image_size, seed=9)
    with torch.no_grad():
        found, expected, before = again(images), peft_model(images), base.eval()(images)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (expected - before).abs().max() > 0.05
    assert again.state_dict()[name].any()
    assert name in again.load_report.merged
    merged = peft_model.merge_and_unload().state_dict()
    assert all(torch.equal(t, merged[n]) for n, t in again.state_dict().items())


@pytest.mark.slow
def test_a_count_of_another_type_is_refused(install, tmp_path):
    install("acme-parts", "acme = acme:registry.toml", FILES)
    file = vitzoo.save(
        fill(vitzoo.create(SPEC | {"pool": "acme/mean"})), tmp_path / "a.safetensors"
    )
    trained(vitzoo.create(file)).save_pretrained(tmp_path / "adapter")
    tensors = tmp_path / "adapter" / "adapter_model.safetensors"
    state = load_file(tensors)
    name = "base_model.model.attn_pool.norm.num_batches_tracked"
    save_file(state | {name: state[name].float()}, tensors)
    with refuses(CheckpointError, name, "F32"):
        vitzoo.create(file, adapter=tmp_path / "adapter")
    without = {key: t for key, t in state.items() if key != name}
    save_file(without, tensors)
    with refuses(CheckpointError, "missing", name):
        vitzoo.create(file, adapter=tmp_path / "adapter")


def test_constants_of_the_patch_embedder_are_not_trained(tmp_path):
    embedder = {"name": "radio/normalised", "mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2]}
    model = fill(vitzoo.create(SPEC | {"patch_embed": embedder}))
    model = vitzoo.create(vitzoo.save(model, tmp_path / "base.safetensors"))
    assert vitzoo.lora(model)["modules_to_save"] == ["head"]
