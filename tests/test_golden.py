"""Small networks of every family against outputs that the references gave once.

`python tests/golden/update.py` makes those outputs. Here a plugin's registry row names a file in
the family's own layout, so that layout, facts of the row and network are all in what is compared.
"""

import hashlib
import json
import runpy
import tomllib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import tomlkit
import torch

import vitzoo
from tables import cases

HERE = Path(__file__).with_name("golden")
FAMILIES = tomllib.loads((HERE / "families.toml").read_text())
COMMON = FAMILIES.pop("common")
RESIZED = [name for name, family in FAMILIES.items() if "resized" in family]
FLIPS = [(name, i) for name, family in FAMILIES.items() for i in range(len(family["flips"]))]
drawn = runpy.run_path(str(HERE / "drawn.py"))
ROW = {
    "pin": "confirmed",
    "license": "MIT",
    "source": "made by the test",
    "default": True,
    "preprocessing": {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"},
}


@pytest.fixture
def registered(distribution, monkeypatch, new_registry):
    """Install a plugin whose only variant is a family's network, and return how to create it."""
    site = distribution("golden", "golden = golden:registry.toml", {"golden/__init__.py": ""})
    package = site / "golden"
    (package / "data").mkdir()
    monkeypatch.syspath_prepend(str(site))

    def register(name, facts):
        family = FAMILIES[name]
        tensors = drawn["tensors"](expected(name)["tensors"])
        path = package / "data" / "file"
        if any("/" in key for key in tensors):
            with path.open("wb") as file:
                np.savez(file, **{key: tensor.numpy() for key, tensor in tensors.items()})
        else:
            safetensors.torch.save_file(tensors, path)
        data = path.read_bytes()
        row = ROW | {
            "file": "file",
            "format": family["format"],
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        about = {"summary": "small", "source": "made", "params": 1}
        variant = {**COMMON, **family.get("spec", {}), **about, "weights": {"made": row | facts}}
        text = tomlkit.dumps({"api": 1, "variants": {"net": variant}})
        (package / "registry.toml").write_text(text)
        new_registry()
        return vitzoo.create("golden/net", pretrained=True).eval()

    return register


def expected(name):
    return json.loads((HERE / f"{name}.json").read_text())


@torch.inference_mode()
def outputs(model, size=32):
    model.set_input_size(size)
    return model(drawn["images"](size))


def distance(result, wanted):
    """Return the largest difference as a share of what is allowed."""
    wanted = torch.tensor(wanted)
    assert result.shape == wanted.shape
    return (result - wanted).abs().max().item() / (5e-5 * max(1, wanted.abs().max().item()))


@cases("name", FAMILIES)
def test_outputs_are_those_of_the_reference(registered, name):
    model = registered(name, FAMILIES[name].get("row", {}))
    assert distance(outputs(model), expected(name)["outputs"]) <= 1
    assert not model.load_report.assumed


@cases("name", RESIZED)
def test_outputs_at_another_size_too(registered, name):
    model = registered(name, FAMILIES[name].get("row", {}))
    result = outputs(model, FAMILIES[name]["resized"])
    assert distance(result, expected(name)["resized_outputs"]) <= 1


@pytest.mark.slow
@cases(("name", "flip"), FLIPS)
def test_a_fact_told_wrongly_is_seen(registered, name, flip):
    """Either no network comes out, or one with other outputs at one of the sizes."""
    facts = FAMILIES[name].get("row", {}) | FAMILIES[name]["flips"][flip]
    try:
        model = registered(name, facts)
    except vitzoo.CheckpointError:
        return
    found = distance(outputs(model), expected(name)["outputs"])
    if name in RESIZED:
        result = outputs(model, FAMILIES[name]["resized"])
        found = max(found, distance(result, expected(name)["resized_outputs"]))
    assert found > 2


@pytest.mark.parity
@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_the_references_still_give_these_outputs(name):
    _, tensors, answer = runpy.run_path(str(HERE / "update.py"))["REFERENCES"][name]()
    assert {key: list(t.shape) for key, t in tensors.items()} == expected(name)["tensors"]
    assert distance(answer((32, 32)), expected(name)["outputs"]) <= 1


def test_every_file_belongs_to_a_family():
    assert {path.stem for path in HERE.glob("*.json")} == {*FAMILIES, "contract"}


def test_the_kinds_of_facts_that_are_flipped():
    """Activation, epsilon, pooling, head, norm before the blocks, resampling."""
    flips = [flip for family in FAMILIES.values() for flip in family["flips"]]
    blocks = {option for flip in flips for option in flip.get("block", {})}
    parts = [flip["pos_embed"] for flip in flips if isinstance(flip.get("pos_embed"), dict)]
    assert blocks >= {"activation", "norm_eps"}
    assert {key for flip in flips for key in flip} >= {"pool", "head", "pre_norm", "pos_embed"}
    assert any("resample" in part for part in parts)
