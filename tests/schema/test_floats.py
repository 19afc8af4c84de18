"""Numbers of a spec that float32 does not hold are refused by name, wherever they come from."""

import json
import math

import pytest
import safetensors

import vitzoo
from create_helpers import refused
from helpers import SPEC, says
from internals import Reader
from tables import cases, check_all
from vitzoo import Spec
from vitzoo.errors import (
    CheckpointError,
    InvalidOption,
    RegistryError,
    UnknownOption,
    VitzooError,
)

WRONG = (1e308, -1e308, 3.5e38, 1e-40, 5e-324, float("inf"), float("-inf"), float("nan"))
PLACES = {
    "norm_eps": lambda x: {"block": {"norm_eps": x}},
    "layer_scale": lambda x: {"block": {"layer_scale": x}},
    "qk_scale": lambda x: {"block": {"qk_scale": x}},
    "attention_dropout": lambda x: {"block": {"attention_dropout": x}},
    "dropout": lambda x: {"dropout": x},
    "drop_path": lambda x: {"drop_path": x},
    "drop_path.rate": lambda x: {"drop_path": {"name": "linear", "rate": x}},
    "pool.norm_eps": lambda x: {"pool": {"name": "attention", "norm_eps": x}},
    "pos_embed.temperature": lambda x: {"pos_embed": {"name": "rope", "temperature": x}},
    "pos_embed.periods": lambda x: {"pos_embed": {"name": "rope", "periods": [1.0, x]}},
    "patch_embed.norm_eps": lambda x: {
        "patch_embed": {"name": "conv", "norm": "layer", "norm_eps": x}
    },
}


@cases("place", PLACES)
def test_a_number_beyond_float32(place):
    for wrong in WRONG:
        named = place == "pos_embed.periods" and not math.isfinite(wrong)  # no number, so a choice
        error = UnknownOption if named else InvalidOption
        for given in (PLACES[place](wrong), None):
            name = SPEC if given else SPEC | PLACES[place](wrong)
            message = refused(error, name, **(given or {}))
            says(message, place.rpartition(".")[2], repr(wrong))
            if 0 < abs(wrong) < 1e-39 or 3.4e38 < wrong < float("inf"):
                says(message, "1.2e-38", "3.4e38")


def test_numbers_that_float32_holds():
    for value in (1.2e-38, 3.4e38):
        model = vitzoo.create(SPEC, block={"layer_scale": value})
        assert model.blocks[0].ls1.gamma.isfinite().all()
        assert model.blocks[0].ls1.gamma.all()
    vitzoo.create(SPEC, dropout=0.0, drop_path=0)


def test_a_saved_file_with_such_a_number(tmp_path):
    path = vitzoo.save(vitzoo.create(SPEC, block={"layer_scale": 0.5}), tmp_path / "n.safetensors")
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    tensors = safetensors.torch.load_file(path)
    (key,) = (k for k in metadata if k.startswith("vitzoo"))

    def check(wrong):
        data = json.loads(metadata[key])
        data["spec"]["block"]["layer_scale"] = wrong
        safetensors.torch.save_file(tensors, path, metadata | {key: json.dumps(data)})
        says(refused(CheckpointError, path), "layer_scale", wrong, "3.4e38")

    check_all({str(x): x for x in (1e308, 1e-300)}, check)


@pytest.mark.parametrize("error", [InvalidOption, CheckpointError, RegistryError])
def test_the_error_is_that_of_its_source(error):
    for change in PLACES.values():
        with pytest.raises(VitzooError) as caught:
            Spec.read(Reader(SPEC | change(1e308), "here", error))
        assert type(caught.value) is error
        says(str(caught.value), "here", "1e+308")
