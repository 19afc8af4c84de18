"""Fixtures of the tests of loading and of config overrides."""

import hashlib

import pytest
import safetensors.torch
import tomlkit

import vitzoo
from helpers import SPEC
from load_helpers import PREPROCESSING, fill


@pytest.fixture
def zoo(distribution, monkeypatch, new_registry):
    """Register a network `small/net` whose weights are bundled files, without the Hub."""
    site = distribution("small", "small = small:registry.toml", {"small/__init__.py": ""})
    package = site / "small"
    (package / "data").mkdir()
    monkeypatch.syspath_prepend(str(site))

    def register(weights, **spec):
        rows = {}
        for name, (data, row) in weights.items():
            (package / "data" / f"{name}.safetensors").write_bytes(data)
            rows[name] = {
                "file": f"{name}.safetensors",
                "pin": "confirmed",
                "size": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
                "format": "timm",
                "license": "MIT",
                "source": "made by the test",
                "preprocessing": PREPROCESSING,
            } | row
        variant = SPEC | {"summary": "small", "source": "made", "params": 1, "weights": rows} | spec
        text = tomlkit.dumps({"api": 1, "variants": {"net": variant}})
        (package / "registry.toml").write_text(text)
        new_registry()
        return "small/net"

    return register


@pytest.fixture
def saved(tmp_path):
    """Save a transformers model and return the path of its weights file."""

    def save(model, *, with_config=True):
        folder = tmp_path / "saved"
        model.save_pretrained(folder)
        if not with_config:
            (folder / "config.json").unlink()
        return folder / "model.safetensors"

    return save


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
        safetensors.torch.save_file(tensors, path)
        return path

    return write
