"""Fixtures of the tests of loading: a registered network, and weights files."""

import pytest
import safetensors.torch
from safetensors.torch import save_file

import vitzoo
from helpers import SPEC
from load_helpers import fill
from registered import saved as saved, zoo as zoo


@pytest.fixture
def augreg(zoo):
    """Register weights with 5 and with 11 classes; return (name, models by weights name)."""
    models, rows = {}, {}
    for seed, (weights, classes) in enumerate({"in1k": 5, "in21k": 11}.items()):
        models[weights] = fill(vitzoo.create(SPEC | {"num_classes": classes}), seed)
        data = safetensors.torch.save(models[weights].state_dict())
        labels = [f"{weights}-{i}" for i in range(classes)]
        rows[weights] = (
            data,
            {"num_classes": classes, "default": weights == "in1k", "labels": labels},
        )
    return zoo(rows), models


@pytest.fixture
def weights(local_registry, randomise, tmp_path):
    """Change the tensors of `local/net`, write them to a file and return its path."""
    local_registry()

    def write(change=None):
        tensors = dict(randomise(vitzoo.create("local/net")).state_dict())
        if change:
            change(tensors)
        path = tmp_path / "weights.safetensors"
        save_file(tensors, path)
        return path

    return write
