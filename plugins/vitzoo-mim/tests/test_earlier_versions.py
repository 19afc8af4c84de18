"""A network with a part of this plugin, saved by an earlier version: tests/fixtures of the core."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vitzoo

FIXTURES = Path(__file__).parents[3] / "tests" / "fixtures" / "ec83163"


@pytest.mark.parametrize("source", ["the file", "its spec"])
def test_a_saved_network_computes_what_it_did(source):
    stated = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))["mim"]
    file = FIXTURES / "mim.safetensors"
    whole = source == "the file"
    model = (vitzoo.create(file) if whole else vitzoo.create(stated["spec"], weights=file)).eval()
    assert model.spec.pos_embed.name == "mim/relative"
    images = (torch.arange(2 * 3 * 8 * 8) * 37 % 101).view(2, 3, 8, 8).float() / 50 - 1
    with np.load(FIXTURES / "expected.npz") as expected, torch.no_grad():
        for key, actual in (("tokens", model.forward_features(images)), ("logits", model(images))):
            stored = torch.from_numpy(expected[f"mim/{key}"])
            torch.testing.assert_close(actual, stored, rtol=0, atol=2e-5)
