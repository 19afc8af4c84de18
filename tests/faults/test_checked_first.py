"""No request is made before every check that needs no remote data has passed."""

import pytest
import torch

import vitzoo
from vitzoo.errors import InvalidOption, UnknownName, UnknownOption, WeightsUnavailable

ADDRESS = "hf://acme/net@main/model.safetensors"
WRONG = {
    "an argument's name": (UnknownOption, {"num_clases": 3}),
    "an argument's type": (InvalidOption, {"num_classes": "3"}),
    "an unregistered head": (UnknownName, {"head": "linaer"}),
    "an unregistered patch embedder": (UnknownName, {"patch_embed": "convv"}),
    "an unregistered pool": (UnknownName, {"pool": "maen"}),
    "an option of a part": (UnknownOption, {"head": {"name": "mlp", "hidden": 8}}),
    "an option of the blocks": (UnknownOption, {"block": {"norm_esp": 1e-5}}),
    "the blocks' type": (InvalidOption, {"block": "gelu"}),
    "an image size of no whole patches": (InvalidOption, {"image_size": 33}),
    "a device that is not here": (InvalidOption, {"device": "nowhere"}),
    "a type of whole numbers": (InvalidOption, {"dtype": torch.int64}),
    "pretrained of another type": (InvalidOption, {"pretrained": "yes"}),
}


@pytest.mark.parametrize(("error", "arguments"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("weights", [ADDRESS, "main"])
def test_wrong_argument_costs_no_request(net, hub, weights, error, arguments):
    with pytest.raises(error):
        vitzoo.create(net.name, weights=weights, **arguments)
    assert hub.requests == []


def test_wrong_spec_costs_no_request(net, hub):
    with pytest.raises(InvalidOption, match="num_heads"):
        vitzoo.create(net.spec | {"num_heads": 3}, weights=ADDRESS)
    assert hub.requests == []


def test_wrong_names_of_weights_cost_no_request(net, hub):
    with pytest.raises(WeightsUnavailable, match="main"):
        vitzoo.create(net.name, weights="mian")
    with pytest.raises(InvalidOption, match="hf://owner/repo@revision/file"):
        vitzoo.create(net.name, weights="hf://acme@main")
    assert hub.requests == []


def test_right_arguments_fetch_both(net, hub):
    with pytest.warns(vitzoo.FirstUseWarning):
        net.assert_right(vitzoo.create(net.name, weights=ADDRESS))
    assert hub.requests != []
    net.assert_right(vitzoo.create(net.name, weights="main"))
