"""What the libraries' distilled networks cannot compute, they are not given."""

import pytest
import torch

import vitzoo
from tables import cases
from vitzoo import convert
from vitzoo.errors import CheckpointError

SPEC = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 5,
    "embed_dim": 32,
    "depth": 2,
    "num_heads": 2,
    "num_registers": 1,
    "pool": {"name": "prefix", "tokens": 2},
    "head": "deit/distilled",
}
LAYOUTS = ("deit/timm_distilled", "deit/transformers")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_distilled_network_is_written(tmp_path, layout):
    model = vitzoo.create(SPEC)
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    convert(path, layout, tmp_path / "out.safetensors")
    again = vitzoo.create(SPEC, weights=tmp_path / "out.safetensors")
    assert all(torch.equal(again.state_dict()[n], t) for n, t in model.state_dict().items())


@cases(
    ("changes", "problem"),
    [
        ({"num_registers": 2}, "has num_registers = 2"),
        ({"pool": "mean", "head": "linear"}, "pool = mean, head = linear"),
        ({"pos_embed": "rope"}, "pos_embed = rope"),
        ({"block": {"qk_scale": 1.5}}, "block.qk_scale = 1.5"),
        ({"block": {"parallel": True}}, "block.parallel = true"),
    ],
    ids=str,
)
@cases("layout", LAYOUTS)
def test_other_networks_are_refused(tmp_path, layout, changes, problem):
    path = vitzoo.save(vitzoo.create(SPEC | changes), tmp_path / "net.safetensors")
    with pytest.raises(CheckpointError, match=problem):
        convert(path, layout, tmp_path / "out.safetensors")


def test_transformers_reads_the_class_token_alone_too(tmp_path):
    spec = SPEC | {"pool": "class", "head": "linear"}
    path = vitzoo.save(vitzoo.create(spec), tmp_path / "net.safetensors")
    convert(path, "deit/transformers", tmp_path / "out.safetensors")


@pytest.mark.parametrize("layout", ["timm", "google", "torchvision", "transformers_vit"])
def test_a_vit_is_no_distilled_network(tmp_path, layout):
    path = vitzoo.save(vitzoo.create(SPEC), tmp_path / "net.safetensors")
    ending = ".npz" if layout == "google" else ".safetensors"
    with pytest.raises(CheckpointError, match=r"pool = prefix \(tokens = 2\)"):
        convert(path, layout, tmp_path / f"out{ending}")
