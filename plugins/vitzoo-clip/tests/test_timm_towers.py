"""Towers of timm in models of open_clip: their pool and projection, against open_clip itself."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch

import vitzoo
from encoders import close, draw
from helpers import says
from tables import cases
from vitzoo.errors import CheckpointError
from vitzoo_clip.open_clip import open_clip_timm

TINY, GAP = "vit_tiny_patch16_224", "vit_wee_patch16_reg1_gap_256"
WIDTH = 6
TOWERS = {
    "BiomedCLIP": {"timm_pool": "", "timm_proj": "linear"},
    "usual": {},  # the mean and a linear projection
    "class": {"timm_pool": "token", "timm_proj": "linear"},
    "bias": {"timm_pool": "token", "timm_proj_bias": True},
    "MLP": {"timm_pool": "token", "timm_proj": "mlp"},
    "MLP, bias": {"timm_pool": "", "timm_proj": "mlp", "timm_proj_bias": True},
    "classifier": {"timm_pool": "token", "timm_proj": ""},
    "mean, classifier": {"timm_pool": "avg", "timm_proj": ""},
    "no projection": {"timm_pool": "avg", "timm_proj": "none"},
    "norm after the mean": {"timm_model_name": GAP, "image_size": 256},
}


def write(folder, tower):
    """Write a model of open_clip, with tensors of a text tower; return its image tower."""
    from open_clip.model import CLIPVisionCfg
    from open_clip.timm_model import TimmModel

    stated = {"timm_model_name": TINY, "image_size": 224} | tower
    cfg = CLIPVisionCfg(**stated)
    torch.manual_seed(6)
    network = TimmModel(
        cfg.timm_model_name, WIDTH, cfg.image_size, cfg.timm_pool, cfg.timm_proj, cfg.timm_proj_bias
    )
    tensors = {
        f"visual.{key}": tensor for key, tensor in draw(network, "drawn").state_dict().items()
    }
    tensors |= {"text.proj.0.weight": torch.ones(2, 2), "logit_scale": torch.ones(())}
    safetensors.torch.save_file(tensors, folder / "open_clip_model.safetensors")
    config = {"model_cfg": {"embed_dim": WIDTH, "vision_cfg": stated, "text_cfg": {}}}
    folder.joinpath("open_clip_config.json").write_text(json.dumps(config))
    return network


@pytest.mark.long
@pytest.mark.slow
@cases("case", TOWERS)
@torch.inference_mode()
def test_the_image_embedding_is_that_of_open_clip(tmp_path, case):
    network = write(tmp_path, TOWERS[case])
    model = vitzoo.create(tmp_path).eval()
    images = torch.randn(1, 3, *model.image_size)
    close(model.forward_features(images), network.trunk.forward_features(images))
    close(model(images), network(images))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["class", "bias", "MLP"])
def test_there_and_back(tmp_path, case):
    write(tmp_path, TOWERS[case])
    tensors = vitzoo.create(tmp_path).state_dict()
    written = open_clip_timm.from_model(tensors)
    assert open_clip_timm.matches(written)
    again = open_clip_timm.to_model(written)
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[key], tensor) for key, tensor in tensors.items())


REFUSED = {
    "a projection": ({"timm_proj": "deep"}, ["timm_proj", "'linear', 'mlp'", "'deep'"]),
    "a pool": ({"timm_pool": "rot_attn"}, ["global_pool", "token, avg, map", "'rot_attn'"]),
    "a pool that the tower gets after it was built": (
        {"timm_model_name": GAP, "timm_pool": "token"},
        ["timm_pool", "'avg'", "'token'"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_vitzoo_cannot_compute_is_refused(tmp_path, case):
    tower, words = REFUSED[case]
    write(tmp_path, {"timm_pool": "token", "timm_proj": "linear"})
    path = tmp_path / "open_clip_config.json"
    config = json.loads(path.read_text())
    config["model_cfg"]["vision_cfg"] |= tower
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        vitzoo.create(tmp_path)
    says(str(caught.value), *words)
