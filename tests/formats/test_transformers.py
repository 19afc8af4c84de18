"""The layout of transformers, against its own networks."""

import pytest
import safetensors.torch
import torch

import vitzoo
from helpers import SPEC, close, fill, refuses, same, write
from layouts import vit_config
from vitzoo.errors import CheckpointError
from vitzoo.formats import transformers_vit

WEIGHTS = ("own", "scaled")


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("written", ["by save_pretrained", "as a state dict"])
@torch.no_grad()
def test_transformers_there_and_back(tmp_path, images, weights, written, transformers):
    network = fill(transformers.ViTForImageClassification(vit_config()), weights)
    network.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    saved = safetensors.torch.load_file(path)
    assert "vit.encoder.layer.1.attention.attention.query.weight" in saved
    if written == "as a state dict":
        write(path, network.state_dict())
        assert "vit.layers.1.attention.q_proj.weight" in network.state_dict()
    model = vitzoo.create(SPEC, weights=path).eval()
    close(model(images), network(images).logits)
    assert model.load_report.format == "transformers_vit"
    assert set(model.load_report.kept) == set(model.state_dict())
    same(transformers_vit.from_model(model.state_dict()), saved)


@torch.no_grad()
def test_transformers_backbone_there_and_back(tmp_path, images, transformers):
    network = fill(transformers.ViTModel(vit_config(), add_pooling_layer=True))
    network.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    model = vitzoo.create(SPEC | {"head": "tanh", "num_classes": 0}, weights=path).eval()
    close(model(images), network(images).pooler_output)
    same(transformers_vit.from_model(model.state_dict()), safetensors.torch.load_file(path))
    network.load_state_dict(transformers_vit.from_model(model.state_dict()), strict=False)


def test_transformers_reads_what_is_written(tmp_path, images, transformers):
    """The library itself loads the inverse and computes our numbers."""
    model = fill(vitzoo.create(SPEC, block={"norm_eps": 1e-12}))
    write(tmp_path / "model.safetensors", transformers_vit.from_model(model.state_dict()))
    vit_config().save_pretrained(tmp_path)
    network = transformers.ViTForImageClassification.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        close(model(images), network(images).logits)


# Another image size: every library resamples positions in its own way.


@torch.no_grad()
def test_transformers_at_another_size(tmp_path, transformers):
    network = fill(transformers.ViTForImageClassification(vit_config()))
    path = write(tmp_path / "vit.safetensors", network.state_dict())
    images = torch.randn(2, 3, 48, 64)
    model = vitzoo.create(SPEC, weights=path, image_size=(48, 64)).eval()
    close(model(images), network(images, interpolate_pos_encoding=True).logits)
    assert model.load_report.assumed[-1] == "pos_embed.resample = bicubic"


def test_transformers_has_no_classifier_behind_a_pooler():
    state = vitzoo.create(SPEC, head="tanh").state_dict()
    with refuses(CheckpointError, "2 tensors: head.fc.bias, head.fc.weight", "timm"):
        transformers_vit.from_model(state)
