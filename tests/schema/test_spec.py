"""Specs are data: what they say, and that every way of writing them says the same."""

from __future__ import annotations

import itertools
import json
import tomllib
from pathlib import Path

import pytest
import safetensors.torch
import torch

import vitzoo
from create_helpers import refused
from helpers import says
from internals import LIMITS, Reader
from tables import cases
from vitzoo import BlockSpec, Spec
from vitzoo.errors import CheckpointError, InvalidOption, UnknownOption

pytestmark = pytest.mark.usefixtures("_one_thread")


PATCH_EMBEDS = ("conv", "unfold")
POS_EMBEDS = (
    "learned",
    {"name": "learned", "where": "layers", "prefix": False, "resample": "zoom"},
    {"name": "learned_2d", "where": "layers_shared"},
    {"name": "sincos_2d", "temperature": 100.0},
    {"name": "rope", "layout": "interleaved", "absolute": True},
    "none",
)
HEADS = (
    "linear",
    "tanh",
    {"name": "mlp", "hidden_dim": 16},
    {"name": "cosine", "width": 16, "logit_bias": True},
    "none",
)
POOLS = (
    "class",
    "mean",
    {"name": "mean", "norm_first": False},
    {"name": "attention", "num_heads": 2},
)
DROP_PATHS = ("none", {"name": "linear", "rate": 0.2}, {"name": "constant", "rate": 0.1})
OPTIONS = {
    "patch_embed": PATCH_EMBEDS,
    "pos_embed": POS_EMBEDS,
    "head": HEADS,
    "pool": POOLS,
    "drop_path": DROP_PATHS,
}


def pairs(networks):
    """Return every pair of values of two options that occurs in a network."""
    return {
        ((one, network[one]), (other, network[other]))
        for network in networks
        for one, other in itertools.combinations(OPTIONS, 2)
    }


def pairwise():
    """Choose, of all networks, the first with the most new pairs of values until all occur."""
    indices = [range(len(values)) for values in OPTIONS.values()]
    every = [dict(zip(OPTIONS, chosen, strict=True)) for chosen in itertools.product(*indices)]
    offered, missing, chosen = [pairs([network]) for network in every], pairs(every), []
    while missing:
        new = [len(offer & missing) for offer in offered]
        chosen.append(new.index(max(new)))
        missing -= offered[chosen[-1]]
    return [every[i] for i in chosen]


NETWORKS = pairwise()


def test_every_pair_of_values_occurs_in_a_network():
    wanted = {
        ((one, i), (other, j))
        for one, other in itertools.combinations(OPTIONS, 2)
        for i in range(len(OPTIONS[one]))
        for j in range(len(OPTIONS[other]))
    }
    assert pairs(NETWORKS) == wanted
    assert len(NETWORKS) <= 32


@cases("network", NETWORKS, ids=lambda network: "-".join(map(str, network.values())))
def test_the_spec_of_a_model_creates_its_equal(small, network):
    parts = {option: values[network[option]] for option, values in OPTIONS.items()}
    small["num_classes"] = 0 if parts["head"] == "none" else 5
    model = vitzoo.create(small, **parts, device="meta")
    again = vitzoo.create(model.spec, device="meta")
    assert again.spec == model.spec
    assert repr(again) == repr(model)
    assert {k: v.shape for k, v in again.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }


def test_the_fixture_leaves_nothing_at_its_default(spec):
    same = [name for name, value in vars(Spec()).items() if value == getattr(spec, name)]
    assert same == ["variant", "options"]
    usual = BlockSpec()
    same = [name for name, v in vars(usual).items() if v == getattr(spec.block, name)]
    assert same == ["post_norm", "merge"]  # they do not go with parallel


def test_a_spec_survives_json(spec):
    data = json.loads(json.dumps(spec.to_data()))
    assert Spec.read(Reader(data, "spec")) == spec


def test_a_spec_survives_toml(spec, to_toml):
    data = tomllib.loads(to_toml(spec.to_data()))
    assert Spec.read(Reader(data, "spec")) == spec


@cases("variant", vitzoo.variants(namespace="core"), ids=lambda v: v.name)
def test_the_spec_of_every_variant_survives_json(variant):
    data = json.loads(json.dumps(variant.spec.to_data()))
    assert Spec.read(Reader(data, "spec"), Spec(variant=variant.name)) == variant.spec


def test_a_square_size_is_written_as_one_number(small):
    data = Spec.read(Reader(small, "spec")).to_data()
    assert (data["image_size"], data["patch_size"]) == (32, 8)


def test_a_spec_may_start_from_a_variant():
    model = vitzoo.create({"variant": "vit_ti16", "depth": 2, "head": "tanh"}, device="meta")
    assert (model.spec.variant, model.spec.embed_dim, model.spec.depth) == ("vit_ti16", 192, 2)
    assert len(model.blocks) == 2


def test_a_spec_may_start_from_a_size():
    model = vitzoo.create({"size": "s", "depth": 1, "num_classes": 3}, device="meta")
    assert (model.spec.variant, model.embed_dim, model.num_classes) == (None, 384, 3)


def test_a_spec_has_a_variant_or_a_size():
    message = refused(UnknownOption, {"variant": "vit_ti16", "size": "s"})
    says(message, "spec", "'size'")


def test_the_mlp_is_four_times_a_changed_width_unless_given(small):
    del small["mlp_dim"]
    assert vitzoo.create(small).spec.mlp_dim == 128
    assert vitzoo.create(small | {"mlp_dim": 7}).spec.mlp_dim == 7


# Numbers are bounded: a spec may come from anyone.

TOO_LARGE = [
    ({"depth": 10**6}, ("depth", 1024, 10**6)),
    ({"embed_dim": 2**52}, ("embed_dim", 65536, 2**52)),
    ({"num_heads": 4097}, ("num_heads", 4096, 4097)),
    ({"mlp_dim": 262145}, ("mlp_dim", 262144, 262145)),
    ({"num_registers": 10**9}, ("num_registers", 4096, 10**9)),
    ({"num_classes": 2**30}, ("num_classes", 16777216, 2**30)),
    ({"in_chans": 65537}, ("in_chans", 65536, 65537)),
    ({"image_size": 65537}, ("image_size", 65536, 65537)),
    ({"patch_size": 65537}, ("patch_size", 65536, 65537)),
    ({"image_size": 65536, "patch_size": 4}, ("image_size", "65536", "patches", 262144, 2**28)),
    (
        {"image_size": 8192, "patch_size": 16, "embed_dim": 1024, "pos_embed": "rope"},
        ("embed_dim 1024", "positions", 2**27, 2**28),
    ),
    (
        {"embed_dim": 65536, "mlp_dim": 262144, "depth": 1024},
        ("depth 1024", "parameters", 2**36),
    ),
    ({"num_classes": 2**24, "embed_dim": 65536}, ("num_classes", "parameters", 2**36)),
    ({"patch_size": 32768, "image_size": 32768}, ("patch_size", "parameters", 2**36)),
    ({"head": {"name": "mlp", "hidden_dim": 2**52}}, ("head.hidden_dim", 262144, 2**52)),
    ({"pos_embed": {"name": "rope", "reference_grid": [1, -(10**9)]}}, ("reference_grid", 262144)),
]


@pytest.fixture
def _unbuilt(monkeypatch):
    def never(*_, **__):
        raise AssertionError("a network is built")

    monkeypatch.setattr("vitzoo.factory.build", never)


@pytest.mark.usefixtures("_unbuilt")
@cases(("changes", "said"), TOO_LARGE)
def test_a_number_beyond_its_limit_is_refused_before_anything_is_built(small, changes, said):
    message = refused(InvalidOption, small | changes)
    says(message, "spec", *map(str, said))


@pytest.mark.usefixtures("_unbuilt")
@cases(("changes", "said"), TOO_LARGE)
def test_a_saved_file_with_a_number_beyond_its_limit_is_refused(small, tmp_path, changes, said):
    path = tmp_path / "saved.safetensors"
    metadata = {"api": 1, "spec": small | changes, "labels": []}
    tensors = {"cls_token": torch.zeros(1)}
    safetensors.torch.save_file(tensors, path, {"vitzoo": json.dumps(metadata)})
    says(refused(CheckpointError, path), str(path), *map(str, said))
    says(refused(CheckpointError, small, weights=path), str(path), *map(str, said))


@pytest.mark.usefixtures("_unbuilt")
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_classes": 2**24 + 1}, ("num_classes", 2**24, 2**24 + 1)),
        ({"image_size": 65536}, ("image_size", "65536", "patches", 262144, 2**24)),
        ({"head": {"name": "mlp", "hidden_dim": 262145}}, ("head.hidden_dim", 262144, 262145)),
    ],
)
def test_an_argument_beyond_its_limit_is_refused(changes, said):
    says(refused(InvalidOption, "vit_ti16", **changes), *map(str, said))


def test_the_documentation_lists_every_limit():
    page = (Path(__file__).parents[2] / "docs" / "trust.md").read_text("utf-8")
    limits = page[page.index("The numbers of a network") :]
    assert [name for name, limit in LIMITS.items() if f"\n- {limit:,}: " not in limits] == []


def test_the_numbers_of_the_largest_published_networks_are_accepted():
    """ViT-22B: arXiv:2302.05442, table 1."""
    numbers = {"embed_dim": 6144, "depth": 48, "num_heads": 48, "mlp_dim": 24576}
    spec = Spec.read(Reader(numbers | {"patch_size": 14, "num_classes": 30000}, "spec"))
    assert spec.depth == 48
    wide = Reader({"image_size": 4096, "patch_size": 16, "embed_dim": 1280, "depth": 32}, "spec")
    assert Spec.read(wide).image_size == (4096, 4096)
