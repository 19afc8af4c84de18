"""The layout of torchvision, against its own networks."""

import pytest
import torch

import vitzoo
from helpers import SPEC, close, fill, same, write
from layouts import vision_transformer
from vitzoo.formats.torchvision import torchvision as torchvision_format

WEIGHTS = ("own", "scaled")


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("width", [None, 24])
@torch.no_grad()
def test_torchvision_there_and_back(tmp_path, images, weights, width):
    network = fill(vision_transformer(representation_size=width), weights)
    path = write(tmp_path / "vit.safetensors", network.state_dict())
    head = {"head": {"name": "tanh", "hidden_dim": width}} if width else {}
    model = vitzoo.create(SPEC | head, weights=path).eval()
    close(model(images), network(images))
    report = model.load_report
    assert report.format == "torchvision"
    assert report.assumed == ("norm_eps = 1e-06", "activation = gelu")
    assert set(report.kept) == set(model.state_dict())
    same(torchvision_format.from_model(model.state_dict()), network.state_dict())


def test_older_torchvision_names(tmp_path, images):
    network = fill(vision_transformer())
    older = {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): tensor
        for name, tensor in network.state_dict().items()
    }
    assert older.keys() != network.state_dict().keys()
    model = vitzoo.create(SPEC, weights=write(tmp_path / "vit.safetensors", older)).eval()
    with torch.no_grad():
        close(model(images), network(images))
    same(torchvision_format.from_model(model.state_dict()), network.state_dict())


@torch.no_grad()
def test_torchvision_at_another_size(tmp_path):
    import torchvision

    network = fill(vision_transformer())
    path = write(tmp_path / "vit.safetensors", network.state_dict())
    larger = vision_transformer(image_size=48).eval()
    state = torchvision.models.vision_transformer.interpolate_embeddings(
        48, 8, {name: tensor.clone() for name, tensor in network.state_dict().items()}
    )
    larger.load_state_dict(state)
    images = torch.randn(2, 3, 48, 48)
    model = vitzoo.create(SPEC, weights=path, image_size=48).eval()
    close(model(images), larger(images))
    assert model.load_report.assumed[-1] == "pos_embed.resample = bicubic_corners"
