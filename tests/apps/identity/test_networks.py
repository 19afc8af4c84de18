"""The NETWORK of some networks never changes; the tier `lowest` has the lowest torch compute it."""

import numpy as np
import pytest
import torch

import vitzoo
from vitzoo.apps.identity.identity import Identity

NETWORKS = {
    "vit_ti16": "5jnz4eitqgbm7qzpgw7yrbpost",
    "deit/deit_ti16_distilled": "afd4s5too56chizooiam2s3xzy",
    "dinov2/vit_s14": "okqn6bjc2duxquvxdofaaiqwzb",
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_the_same_in_every_version(name):
    model = vitzoo.create(name)
    draws = np.random.default_rng(0)
    with torch.no_grad():
        for tensor in model.state_dict().values():  # integers, which no version rounds
            tensor.copy_(torch.from_numpy(draws.integers(-8, 8, tensor.shape)))
    model.preprocessing = vitzoo.Preprocessing(crop_pct=0.9)
    assert Identity.parse(vitzoo.identity(model)).network == NETWORKS[name]


def test_the_bundled_network_is_the_same_in_every_version():
    found = Identity.parse(vitzoo.identity("vit_digits")).network
    assert found == "yd5myjhfmjjc4izupfmlr4i4ul"
