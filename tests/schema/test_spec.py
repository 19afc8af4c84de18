"""Specs are data: what `create` accepts, refuses, records, saves and restores."""

from __future__ import annotations

import ast
import errno
import itertools
import json
import os
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import vitzoo
from helpers import refuses, says
from vitzoo.errors import (
    CheckpointError,
    InvalidOption,
    UnknownName,
    UnknownOption,
    VitzooError,
    WeightsUnavailable,
)
from vitzoo.schema.reader import Reader
from vitzoo.schema.spec import BlockSpec, PartSpec, Spec

PATCH_EMBEDS = ("conv", "unfold")
POS_EMBEDS = (
    "learned",
    {"name": "learned", "where": "layers", "prefix": False, "resample": "zoom"},
    {"name": "learned_2d", "where": "layers_shared"},
    {"name": "sincos_2d", "temperature": 100.0},
    {"name": "rope", "layout": "interleaved", "absolute": True},
    "none",
)
HEADS = ("linear", "tanh", {"name": "mlp", "hidden_dim": 16}, "none")
POOLS = (
    "class",
    "mean",
    {"name": "mean", "norm_first": False},
    {"name": "attention", "num_heads": 2},
)
DROP_PATHS = ("none", {"name": "linear", "rate": 0.2}, {"name": "constant", "rate": 0.1})


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Networks this small lose time to threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def refused(error: type[VitzooError], *args, **kwargs) -> str:
    """Return the message with which `create` refuses a call."""
    with pytest.raises(error) as caught:
        vitzoo.create(*args, **kwargs)
    assert type(caught.value) is error
    return str(caught.value)


def logits(model: nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    place = next(model.parameters())
    shape = (2, model.spec.in_chans, *model.spec.image_size)
    with torch.no_grad():
        return model.eval()(torch.randn(shape, generator=generator).to(place.dtype))


# Round trips of the description


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


@pytest.mark.parametrize(
    "network", NETWORKS, ids=lambda network: "-".join(map(str, network.values()))
)
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


@pytest.fixture
def spec(small) -> Spec:
    """A spec in which nothing is at its default."""
    table = small | {
        "image_size": [32, 64],
        "patch_size": [8, 16],
        "in_chans": 1,
        "class_token": False,
        "num_registers": 2,
        "pre_norm": True,
        "final_norm": False,
        "patch_embed": "unfold",
        "pos_embed": {"name": "sincos_2d", "temperature": 10.5},
        "block": {
            "norm_eps": 1e-5,
            "norm": "rms",
            "activation": "quick_gelu",
            "qkv_bias": "qv",
            "qk_scale": 0.25,
            "attention_dropout": 0.1,
            "qk_norm": True,
            "attn_norm": True,
            "layer_scale": 1e-4,
            "mlp": "swiglu",
            "mlp_norm": True,
            "parallel": True,
        },
        "pool": {"name": "mean", "norm_first": False},
        "head": {"name": "mlp", "hidden_dim": 16},
        "drop_path": {"name": "constant", "rate": 0.1, "mode": "mask"},
        "dropout": 0.1,
    }
    return Spec.read(Reader(table, "spec"))


def test_the_fixture_leaves_nothing_at_its_default(spec):
    same = [name for name, value in vars(Spec()).items() if value == getattr(spec, name)]
    assert same == ["variant", "options"]
    usual = BlockSpec()
    same = [name for name, v in vars(usual).items() if v == getattr(spec.block, name)]
    assert same == ["post_norm"]  # it does not go with parallel


def test_a_spec_survives_json(spec):
    data = json.loads(json.dumps(spec.to_data()))
    assert Spec.read(Reader(data, "spec")) == spec


def test_a_spec_survives_toml(spec, to_toml):
    data = tomllib.loads(to_toml(spec.to_data()))
    assert Spec.read(Reader(data, "spec")) == spec


@pytest.mark.parametrize("variant", vitzoo.variants(namespace="core"), ids=lambda v: v.name)
def test_the_spec_of_every_variant_survives_json(variant):
    data = json.loads(json.dumps(variant.spec.to_data()))
    assert Spec.read(Reader(data, "spec"), Spec(variant=variant.name)) == variant.spec


def test_a_square_size_is_written_as_one_number(small):
    data = Spec.read(Reader(small, "spec")).to_data()
    assert (data["image_size"], data["patch_size"]) == (32, 8)


def test_create_reads_a_toml_file(spec, to_toml, tmp_path):
    path = tmp_path / "net.toml"
    path.write_text(to_toml(spec.to_data()))
    assert vitzoo.create(path).spec == vitzoo.create(str(path)).spec == spec


def test_create_reads_a_json_file(spec, tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(spec.to_data()))
    assert vitzoo.create(path).spec == spec


@pytest.mark.parametrize(
    ("file", "text", "parts"),
    [
        ("net.toml", "depth = ", ["TOML", "Invalid value"]),
        ("net.json", "{", ["JSON", "line 1"]),
        ("net.json", "[]", ["table", "[]", "(list)"]),
        ("net.json", "[" * 100_000, ["JSON"]),
        ("net.toml", 'head = "os:system"', ["head", "'os:system'", "registered name"]),
    ],
)
def test_a_spec_file_that_is_wrong_names_itself(tmp_path, file, text, parts):
    tmp_path.joinpath(file).write_text(text)
    says(refused(InvalidOption, tmp_path / file), tmp_path / file, *parts)


def test_a_spec_file_with_an_unknown_key_names_itself(tmp_path):
    tmp_path.joinpath("net.toml").write_text("depht = 2")
    says(refused(UnknownOption, tmp_path / "net.toml"), "net.toml", "'depht'", "'depth'")


def test_a_spec_file_that_is_missing_says_so(tmp_path):
    message = refused(InvalidOption, tmp_path / "none.toml")
    says(message, f"{tmp_path}/none.toml", os.strerror(errno.ENOENT))


def test_a_path_of_another_kind_says_what_is_read(tmp_path):
    message = refused(InvalidOption, tmp_path / "net.yaml")
    says(message, "net.yaml", ".toml", ".json", ".safetensors")


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


def test_create_does_not_change_the_mapping_it_is_given(small):
    before = dict(small)
    vitzoo.create(small, num_classes=3, head="tanh", device="meta")
    assert small == before


def test_arguments_of_create_overrule_the_spec(small):
    model = vitzoo.create(
        small, num_classes=3, in_chans=1, image_size=(16, 32), drop_path=0.1, dropout=0.2
    )
    spec = model.spec
    assert (spec.num_classes, spec.in_chans, spec.image_size) == (3, 1, (16, 32))
    assert (spec.drop_path, spec.dropout) == (PartSpec("linear", (("rate", 0.1),)), 0.2)
    assert logits(model).shape == (2, 3)


def test_block_options_are_taken_one_by_one(small):
    first = vitzoo.create(small, block={"norm_eps": 1e-5}, device="meta")
    second = vitzoo.create(first.spec, block={"activation": "gelu_tanh"}, device="meta")
    assert (second.spec.block.norm_eps, second.spec.block.activation) == (1e-5, "gelu_tanh")


# What create refuses


def test_a_misspelt_argument_is_suggested(small):
    message = refused(UnknownOption, small, num_class=3)
    says(message, "create()", "'num_class'", "'num_classes'")


def test_an_unknown_argument_lists_all(small):
    message = refused(UnknownOption, small, zzz=3)
    says(message, "create()", "'zzz'", "pretrained", "weights", "num_classes", "drop_path", "block")


def test_an_unknown_argument_is_a_type_error_too(small):
    with pytest.raises(TypeError):
        vitzoo.create(small, zzz=3)


@pytest.mark.parametrize(
    ("argument", "part", "known"),
    [
        ("head", "linaer", "linear"),
        ("patch_embed", "convv", "conv"),
        ("pos_embed", "sincos", "sincos_2d"),
        ("drop_path", "linaer", "linear"),
        ("pool", "maen", "mean"),
    ],
)
def test_a_misspelt_part_is_suggested(small, argument, part, known):
    kind = {"patch_embed": "patch embedder", "pos_embed": "position embedding"}
    kind |= {"drop_path": "drop-path policy"}
    message = refused(UnknownName, small, **{argument: part})
    says(message, kind.get(argument, argument), repr(part), repr(known))


def test_a_part_like_no_other_lists_all(small):
    message = refused(UnknownName, small, head="zzz")
    start, _, known = message.rpartition(": ")
    says(start, "head", "'zzz'")
    cores = [name for name in known.split(", ") if "/" not in name]
    assert cores == ["linear", "mlp", "none", "tanh"]


@pytest.mark.parametrize(
    ("argument", "part", "parts"),
    [
        ("head", {"name": "mlp", "hidden": 8}, ["'mlp'", "'hidden'", "'hidden_dim'"]),
        ("head", {"name": "linear", "zz": 8}, ["'linear'", "'zz'", "none"]),
        ("head", {"name": "linear", "num_classes": 8}, ["'linear'", "'num_classes'", "none"]),
        ("pos_embed", {"name": "sincos_2d", "temp": 8}, ["'sincos_2d'", "'temp'", "temperature"]),
        ("pool", {"name": "mean", "norm": 1}, ["'mean'", "'norm'", "norm_first"]),
        ("drop_path", {"name": "constant", "rates": 0.1}, ["'constant'", "'rates'", "'rate'"]),
        ("block", {"norm_esp": 1e-5}, ["create()", "'norm_esp'", "'norm_eps'"]),
    ],
)
def test_a_misspelt_option_is_suggested(small, argument, part, parts):
    says(refused(UnknownOption, small, **{argument: part}), argument, *parts)


PARTS_BY_NAME = ("registered name", "'linear'", "'acme/overlap'")  # what a part must be


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"num_classes": -1}, ["num_classes", "whole number", 0, -1]),
        ({"num_classes": 2.5}, ["num_classes", "whole number", "2.5", "(float)"]),
        ({"num_classes": True}, ["num_classes", "whole number", "True", "(bool)"]),
        ({"num_classes": "5"}, ["num_classes", "whole number", "'5'", "(str)"]),
        ({"in_chans": 0}, ["in_chans", "whole number", 1, 0]),
        ({"image_size": 0}, ["image_size", "px", 1, 65536, 0]),
        ({"image_size": (32, 32, 3)}, ["image_size", "px", 1, 65536, "(32, 32, 3)"]),
        ({"image_size": "32"}, ["image_size", "px", 1, 65536, "'32'"]),
        ({"image_size": 33}, ["image_size", "33x33", "8x8", "32x32", "40x40"]),
        ({"image_size": (32, 4)}, ["image_size", "32x4", "8x8", "32x8"]),
        ({"dropout": 1.0}, ["dropout", 0, 1, "1.0"]),
        ({"dropout": -0.1}, ["dropout", 0, 1, -0.1]),
        ({"dropout": float("nan")}, ["dropout", 0, 1, "nan"]),
        ({"dropout": "0.1"}, ["dropout", "number", "'0.1'", "(str)"]),
        ({"drop_path": 1.0}, ["drop_path", 0, 1, "1.0"]),
        ({"drop_path": -0.5}, ["drop_path", 0, 1, -0.5]),
        ({"drop_path": "0.1"}, ["drop_path", "'0.1'", *PARTS_BY_NAME]),
        ({"drop_path": "linear"}, ["drop_path 'linear'", "'rate'", "{'name': ..., 'rate': ...}"]),
        ({"drop_path": {"name": "constant", "rate": "high"}}, ["drop_path", 0, 1, "'high'"]),
        (
            {"head": {"name": "mlp", "hidden_dim": "wide"}},
            ["hidden_dim", "positive", "whole number", "'wide'"],
        ),
        ({"head": {"name": "mlp", "hidden_dim": 0}}, ["hidden_dim", "positive", 0]),
        (
            {"head": {"name": "mlp", "hidden_dim": {"a": 1}}},
            ["head.hidden_dim", "string", "number", "list", "{'a': 1}"],
        ),
        ({"head": {"hidden_dim": 3}}, ["head", "'name'", "{'hidden_dim': 3}"]),
        ({"head": {}}, ["head", "'name'", "{}"]),
        ({"head": {"name": 3}}, ["head", 3, *PARTS_BY_NAME]),
        ({"head": 3}, ["head", "name", "mapping", "'name'", 3]),
        ({"head": ""}, ["head", "''", *PARTS_BY_NAME]),
        (
            {"pos_embed": {"name": "sincos_2d", "temperature": 1}},
            ["temperature", "number above 1", "got 1"],
        ),
        ({"block": {"norm_eps": 0}}, ["[block]", "norm_eps", 0, 1, "0.0"]),
        ({"block": {"qkv_bias": 1}}, ["[block]", "qkv_bias", "true", "false", "'qv'", 1]),
        ({"block": {"qkv_bias": "kv"}}, ["[block]", "qkv_bias", "true", "false", "'qv'", "'kv'"]),
        ({"block": {"qk_scale": -1}}, ["[block]", "qk_scale", "positive", "-1.0"]),
        ({"block": {"attention_dropout": 1}}, ["[block]", "attention_dropout", 0, 1, "1.0"]),
        (
            {"block": {"activation": "gelu_tan"}},
            ["[block]", "activation", "gelu", "quick_gelu", "'gelu_tan'", "'gelu_tanh'"],
        ),
        ({"block": "gelu"}, ["block", "table", "'gelu'", "(str)"]),
        ({"head": "none"}, ["head 'none'", "num_classes=5", "another head"]),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_right_are_refused(small, arguments, parts):
    says(refused(InvalidOption, small, **arguments), *parts)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"num_heads": 3}, ["num_heads", "embed_dim", 32, 3]),
        ({"patch_size": 7}, ["image_size", "32x32", "7x7", "28x28", "35x35"]),
        ({"depth": "2"}, ["spec", "depth", "whole number", "'2'", "(str)"]),
        ({"class_token": 1}, ["spec", "class_token", "true", "false", 1, "(int)"]),
        ({"class_token": False}, ["pool 'class'", "class_token", "false", "pool='mean'"]),
        ({"size": "huge"}, ["spec", "size", "ti", "s", "b", "l", "h", "g", "gg", "'huge'"]),
        ({"embed_dim": 34, "pos_embed": "sincos_2d"}, ["sincos_2d", "embed_dim", 4, 8, 34]),
        ({"head": "os:system"}, ["spec", "head", "'os:system'", *PARTS_BY_NAME]),
    ],
    ids=str,
)
def test_a_spec_that_cannot_be_right_is_refused(small, change, parts):
    says(refused(InvalidOption, small | change), *parts)


@pytest.mark.parametrize("key", ["embed_dim", "depth", "num_heads"])
def test_a_number_that_is_missing_is_named(small, key):
    del small[key]
    message = refused(InvalidOption, small)
    says(message, key, "positive", "whole number", "{'variant': 'vit_b16', ...}")


def test_an_empty_spec_lacks_its_numbers():
    says(refused(InvalidOption, {}), "embed_dim", "'variant'")


def test_an_unknown_key_of_a_spec_is_suggested(small):
    message = refused(UnknownOption, small | {"embed_dims": 3})
    says(message, "spec", "'embed_dims'", "'embed_dim'")


def test_a_ratio_instead_of_a_width_is_refused_with_the_right_key(small):
    message = refused(UnknownOption, small | {"mlp_ratio": 4})
    says(message, "spec", "'mlp_ratio'", "mlp_dim")


@pytest.mark.parametrize("name", [None, 3, ["vit_b16"], nn.Identity()])
def test_a_name_of_another_type_is_refused(name):
    message = refused(InvalidOption, name)
    says(message, "registered name", "spec", "path", f"got {name!r}")


def test_numpy_integers_are_numbers_or_refused_in_words(small):
    message = refused(InvalidOption, small, num_classes=np.int64(3))
    says(message, "num_classes", "whole number", "np.int64(3)")
    assert vitzoo.create(small, dropout=np.float64(0.25)).spec.dropout == 0.25


@pytest.mark.parametrize("field", ["patch_embed", "pos_embed", "pool", "head", "drop_path"])
def test_a_part_is_no_truth_value(small, field):
    message = refused(InvalidOption, small, **{field: True})
    says(message, field, "name", "mapping", "'name'", "True")


@pytest.mark.parametrize("part", [[0.1, 0.2], (0.1, 0.2), np.float32(0.1)], ids=repr)
def test_a_drop_path_of_another_type_is_refused(small, part):
    assert "drop_path" in refused(InvalidOption, small, drop_path=part)


def test_a_temperature_of_another_type_is_refused(small):
    part = {"name": "sincos_2d", "temperature": "hot"}
    assert "temperature" in refused(InvalidOption, small, pos_embed=part)


def test_a_flag_of_another_type_is_refused(small):
    assert "norm_first" in refused(InvalidOption, small, pool={"name": "mean", "norm_first": "no"})


def test_options_that_the_core_builder_does_not_know_are_refused(small):
    assert "foo" in refused(UnknownOption, small | {"options": {"foo": 1}})


def test_a_number_too_large_for_a_float_is_refused(small):
    assert "dropout" in refused(InvalidOption, small, dropout=10**400)


def test_a_number_of_5000_digits_is_refused(small):
    assert "num_classes" in refused(InvalidOption, small, num_classes=10**5000)


def test_an_option_of_many_levels_is_refused(small):
    nested: list = []
    for _ in range(600):
        nested = [nested]
    assert "x" in refused(InvalidOption, small, head={"name": "linear", "x": nested})


def test_weights_of_another_type_are_refused(small):
    assert "weights" in refused(InvalidOption, small, weights=5)


# Names are never imported


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A module that can be imported, but must not be."""
    tmp_path.joinpath("canary_part.py").write_text("from torch.nn import Linear as Head")
    monkeypatch.syspath_prepend(tmp_path)
    vitzoo.create("vit_ti16", device="meta")  # imports what create itself needs
    before = set(sys.modules)
    yield
    assert "canary_part" not in sys.modules
    imported = {name.partition(".")[0] for name in set(sys.modules) - before}
    ours = {"vitzoo", "torch", "safetensors", "packaging", "numpy"}  # lazy imports of their own
    assert imported <= ours | set(sys.stdlib_module_names)


@pytest.mark.usefixtures("canary")
@pytest.mark.parametrize(
    "name",
    ["os:system", "torch.nn:Linear", "canary_part:Head", "canary_part.Head", "../x", "/etc/passwd"],
)
@pytest.mark.parametrize("field", ["patch_embed", "pos_embed", "pool", "head", "drop_path"])
def test_an_import_path_is_no_name(small, field, name):
    for part in (name, {"name": name}):
        message = refused(InvalidOption, small | {field: part})
        says(message, field, repr(name), "(str)", *PARTS_BY_NAME, "never imported")


@pytest.mark.usefixtures("canary")
def test_the_name_of_a_module_is_only_looked_up(small):
    says(refused(UnknownName, small | {"head": "canary_part"}), "head", "'canary_part'")
    says(refused(UnknownName, small | {"head": "canary_part/head"}), "head", "'canary_part/head'")


@pytest.mark.usefixtures("canary")
def test_an_opaque_name_is_not_looked_up_at_all(small):
    part = {"name": "canary_part:Head", "opaque": True}
    message = refused(InvalidOption, small | {"head": part})
    says(message, "head", "(canary_part:Head)", "head=...")


@pytest.mark.usefixtures("canary")
def test_the_variant_of_a_spec_is_only_looked_up():
    says(refused(UnknownName, {"variant": "canary_part:Head"}), "variant", "'canary_part:Head'")


def test_nothing_is_checked_by_assert():
    """`python -O` removes assert statements; only the conformance tests may have them."""
    root = Path(vitzoo.__file__).parent
    sources = [path for path in root.rglob("*.py") if "testing" not in path.relative_to(root).parts]
    assert len(sources) > 80
    found = [
        f"{path}:{node.lineno}"
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert) or (isinstance(node, ast.Name) and node.id == "__debug__")
    ]
    assert not found


# Parts as ready objects


class Cosine(nn.Module):
    """A head that is not registered."""

    def __init__(self, in_dim: int = 32, num_classes: int = 5) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.pre_logits_dim = in_dim
        self.prototypes = nn.Parameter(torch.randn(num_classes, in_dim))

    def reset(self, num_classes: int) -> Cosine:
        return Cosine(self.pre_logits_dim, num_classes)

    def forward(self, x: torch.Tensor, pre_logits: bool = False) -> torch.Tensor:
        unit = nn.functional.normalize
        return x if pre_logits else unit(x, dim=-1) @ unit(self.prototypes, dim=-1).T


def half(*, depth: int) -> list[float]:
    """Return the rates of a drop-path policy that is not registered."""
    return [0.0] * (depth // 2) + [0.5] * (depth - depth // 2)


def test_a_ready_head_is_used_as_it_is(small):
    head = Cosine()
    model = vitzoo.create(small, head=head)
    assert model.head is head
    assert logits(model).abs().max() <= 1


def test_a_ready_head_is_recorded_as_opaque(small):
    model = vitzoo.create(small, head=Cosine())
    assert model.spec.head == PartSpec("Cosine", opaque=True)
    assert model.spec.to_data()["head"] == {"name": "Cosine", "opaque": True}


def test_a_ready_head_must_be_passed_again(small):
    spec = vitzoo.create(small, head=Cosine()).spec
    message = refused(InvalidOption, spec)
    says(message, "head", "(Cosine)", "head=...")
    assert vitzoo.create(spec, head=Cosine()).spec == spec


def test_a_ready_head_that_lacks_something_is_told_what(small):
    message = refused(InvalidOption, small, head=nn.Linear(32, 5))
    says(message, "head", "Linear", "num_classes, pre_logits_dim, reset")
    says(message, "vitzoo.parts.protocols.Head")


def test_a_ready_patch_embedder_that_lacks_something_is_told_what(small):
    message = refused(InvalidOption, small, patch_embed=nn.Conv2d(3, 32, 8, 8))
    says(message, "patch_embed", "Conv2d", "grid, in_chans")
    says(message, "vitzoo.parts.protocols.PatchEmbedder")


def test_a_ready_part_that_is_no_module_is_refused(small):
    class Plain:
        num_classes = 5
        pre_logits_dim = 32
        reset = __call__ = None

    message = refused(InvalidOption, small, head=Plain())
    says(message, "head", "Plain", "vitzoo.parts.protocols.Head")


def test_a_ready_drop_path_policy_gives_the_rates(small):
    model = vitzoo.create(small, drop_path=half)
    assert [block.drop_path.rate for block in model.blocks] == [0.0, 0.5]
    assert model.spec.drop_path.opaque


def test_a_ready_policy_must_give_one_rate_per_block(small):
    message = refused(InvalidOption, small, drop_path=lambda *, depth: [0.1] * (depth - 1))
    says(message, 1, "rates", 2, "blocks")


def test_a_ready_drop_path_policy_must_be_passed_again(small):
    spec = vitzoo.create(small, drop_path=half).spec
    assert vitzoo.create(spec, drop_path=half).spec == spec
    says(refused(InvalidOption, spec), "(function)", "drop_path=...")


def test_the_spec_says_how_many_classes_a_ready_head_has(small):
    model = vitzoo.create(small, head=Cosine(num_classes=3))
    assert model.spec.num_classes == model.num_classes == 3


def test_a_saved_model_with_a_ready_head_needs_it_again(small, tmp_path, randomise):
    model = randomise(vitzoo.create(small, head=Cosine()))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    says(refused(InvalidOption, path), "(Cosine)", "head=...")
    again = vitzoo.create(path, head=Cosine())
    assert torch.equal(logits(again), logits(model))


# Saving and restoring


def all_equal(a: nn.Module, b: nn.Module) -> bool:
    first, second = a.state_dict(), b.state_dict()
    return first.keys() == second.keys() and all(
        torch.equal(first[k], second[k]) and first[k].dtype == second[k].dtype for k in first
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_classes": 0},
        {"head": {"name": "mlp", "hidden_dim": 16}, "num_classes": 3},
        {"head": "tanh", "in_chans": 1},
        {"image_size": (16, 48)},
        {"pos_embed": "sincos_2d", "pool": "mean"},
        {"pool": {"name": "mean", "norm_first": False}, "pos_embed": "none"},
        {"patch_embed": "unfold", "drop_path": 0.1, "dropout": 0.1},
        {"block": {"qkv_bias": False, "activation": "quick_gelu", "norm_eps": 1e-5}},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float16},
    ],
    ids=str,
)
def test_a_saved_model_is_restored_bit_by_bit(small, tmp_path, randomise, arguments):
    model = randomise(vitzoo.create(small, **arguments))
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert again.spec == model.spec
    assert all_equal(again, model)
    assert torch.equal(logits(again), logits(model))
    assert logits(again).abs().max() > 0


def test_a_restored_model_has_its_labels_and_preprocessing(small, tmp_path):
    model = vitzoo.create(small)
    model.labels = ("a", "b", "c", "d", "é")
    model.preprocessing = vitzoo.Preprocessing(mean=(0.1, 0.2, 0.3), crop_mode="squash")
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert again.labels == model.labels == vitzoo.labels(again)
    assert again.preprocessing == model.preprocessing


def test_a_restored_model_can_be_saved_and_restored_again(small, tmp_path, randomise):
    model = randomise(vitzoo.create(small))
    first = vitzoo.create(vitzoo.save(model, tmp_path / "a.safetensors"))
    second = vitzoo.create(vitzoo.save(first, tmp_path / "b.safetensors"))
    assert second.spec == model.spec
    assert all_equal(second, model)


def test_a_restored_variant_remembers_its_name(tmp_path):
    model = vitzoo.create("vit_digits")
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert again.spec == model.spec
    assert again.spec.variant == "vit_digits"


def test_a_saved_local_variant_needs_no_registry_file(
    local_registry, tmp_path, randomise, monkeypatch
):
    local_registry()
    model = randomise(vitzoo.create("local/net"))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    monkeypatch.delenv("VITZOO_REGISTRY")
    again = vitzoo.create(path)
    assert again.spec.variant is None
    assert torch.equal(logits(again), logits(model))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"pretrained": "no"}, ["pretrained", "True", "False", "'no'", "(str)"]),
        ({"dtype": "float16"}, ["dtype", "floating", "torch.bfloat16", "'float16'"]),
        ({"dtype": torch.int64}, ["dtype", "floating", "torch.bfloat16", "torch.int64"]),
        ({"device": "cdua"}, ["device", "'cdua'", "cpu"]),
    ],
    ids=str,
)
def test_arguments_beside_the_network_are_checked(small, arguments, parts):
    says(refused(InvalidOption, small, **arguments), *parts)


def test_preprocessing_is_checked_before_it_is_saved(small, tmp_path):
    model = vitzoo.create(small)
    model.preprocessing = {"mean": 0.5}
    with refuses(InvalidOption, "vitzoo.Preprocessing", "None", "{'mean': 0.5}"):
        vitzoo.save(model, tmp_path / "net.safetensors")


def test_a_restored_model_reports_its_file(small, tmp_path):
    model = vitzoo.create(small)
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    report = vitzoo.create(path).load_report
    assert report.source == str(path)
    assert len(report.sha256) == 64
    assert set(report.kept) == set(model.state_dict())
    assert not report.reinitialised
    assert not report.dropped


def test_a_saved_model_may_be_restored_with_other_classes(small, tmp_path, randomise):
    model = vitzoo.create(small)
    model.labels = tuple("abcde")
    path = vitzoo.save(randomise(model), tmp_path / "net.safetensors")
    again = vitzoo.create(path, num_classes=3)
    assert set(again.load_report.reinitialised) == {"head.weight", "head.bias"}
    assert set(again.load_report.dropped) == {"head.weight", "head.bias"}
    assert again.labels == ()
    assert logits(again).shape == (2, 3)


def test_a_saved_model_may_be_restored_for_another_size(small, tmp_path, randomise):
    path = vitzoo.save(randomise(vitzoo.create(small)), tmp_path / "net.safetensors")
    again = vitzoo.create(path, image_size=48)
    assert again.load_report.resampled == ("pos_embed",)
    assert again.pos_embed.shape == (1, 37, 32)


def test_a_saved_model_may_be_restored_in_another_dtype(small, tmp_path):
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    again = vitzoo.create(path, dtype=torch.bfloat16)
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}
    assert len(again.load_report.converted) == len(again.state_dict())


def test_a_fresh_head_has_the_dtype_of_the_file(small, tmp_path, randomise):
    model = randomise(vitzoo.create(small, dtype=torch.bfloat16))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    assert logits(vitzoo.create(path, num_classes=3)).dtype == torch.bfloat16


def test_the_sines_of_a_restored_model_have_its_dtype(small, tmp_path, randomise):
    model = randomise(vitzoo.create(small, dtype=torch.bfloat16, pos_embed="sincos_2d"))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    assert torch.equal(logits(vitzoo.create(path)), logits(model))


def test_a_saved_file_brings_its_own_weights(small, tmp_path):
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    message = refused(InvalidOption, path, weights=path)
    says(message, path, "weights=")


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_save_replaces_an_existing_file(small, tmp_path, randomise):
    path = tmp_path / "net.safetensors"
    vitzoo.save(vitzoo.create(small), path)
    model = randomise(vitzoo.create(small))
    vitzoo.save(model, path)
    assert all_equal(vitzoo.create(path), model)
    assert names(tmp_path) == ["net.safetensors"]


def test_save_leaves_other_peoples_files_alone(small, tmp_path):
    others = [tmp_path / f".net.safetensors.{end}" for end in ("swp", "bak", "1.2", "12345.bak")]
    ours = tmp_path / ".net.safetensors.4711.1763636400000000000"
    for path in (*others, ours):
        path.touch()
        os.utime(path, (1, 1))
    vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    assert all(path.exists() for path in others)
    assert not ours.exists()


def test_save_leaves_the_old_file_if_it_fails(small, tmp_path, monkeypatch):
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        vitzoo.save(vitzoo.create(small, num_classes=3), path)
    assert path.read_bytes() == before
    assert names(tmp_path) == ["net.safetensors"]


def test_save_needs_an_existing_folder(small, tmp_path):
    with refuses(InvalidOption, "no folder", tmp_path / "none"):
        vitzoo.save(vitzoo.create(small), tmp_path / "none" / "net.safetensors")
    assert names(tmp_path) == []


def test_save_needs_a_folder_it_may_write_to(small, tmp_path, monkeypatch):
    def denied(*_: object, **__: object) -> None:  # root may write everywhere, so injected
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(PermissionError, match="Permission denied"):
        vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    assert names(tmp_path) == []


def test_save_does_not_replace_a_folder(small, tmp_path):
    path = tmp_path / "net.safetensors"
    path.mkdir()
    with pytest.raises((OSError, VitzooError), match="Is a directory"):
        vitzoo.save(vitzoo.create(small), path)
    assert names(tmp_path) == ["net.safetensors"]


def test_a_saved_file_has_the_usual_permissions(small, tmp_path):
    usual = tmp_path / "usual"
    usual.touch()
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    assert path.stat().st_mode == usual.stat().st_mode


@pytest.mark.parametrize("name", ["net.pt", "net", "net.safetensors.bak", ".safetensors"])
def test_save_wants_a_safetensors_ending(small, tmp_path, name):
    with refuses(InvalidOption, "end in .safetensors", name):
        vitzoo.save(vitzoo.create(small), tmp_path / name)


def test_save_wants_a_model_of_create(tmp_path):
    with refuses(InvalidOption, "Linear", "vitzoo.create"):
        vitzoo.save(nn.Linear(1, 1), tmp_path / "net.safetensors")


def test_save_wants_one_label_per_class(small, tmp_path):
    model = vitzoo.create(small)
    model.labels = ("a", "b")
    with refuses(InvalidOption, "model.labels", "2 names", "5 classes"):
        vitzoo.save(model, tmp_path / "net.safetensors")


# Files that are no saved model

LOOKS = {
    "zip": (b"PK\x03\x04" + b"\0" * 100, ["zip", ".npz", "truncated"]),
    "pickle": (b"\x80\x04\x95" + b"\0" * 100, ["pickle"]),
    "html": (b"<!DOCTYPE html><html>404</html>", ["HTML"]),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        ["Git LFS pointer"],
    ),
    "numpy": (b"\x93NUMPY\x01\0" + b"\0" * 100, ["NumPy"]),
    "gzip": (b"\x1f\x8b" + b"\0" * 100, ["gzip"]),
    "json": (b'{"error": "not found"}', ["JSON"]),
    "empty": (b"", ["empty"]),
}


@pytest.mark.parametrize("kind", LOOKS)
def test_a_file_of_another_kind_is_named(tmp_path, kind):
    data, looks = LOOKS[kind]
    path = tmp_path / "net.safetensors"
    path.write_bytes(data)
    for arguments in ({"name": path}, {"name": "vit_ti16", "weights": path}):
        message = refused(CheckpointError, **arguments)
        says(message, path, *looks)
        assert ("not safetensors" in message) == (kind != "zip")


def test_a_pickle_is_never_executed(tmp_path):
    path = tmp_path / "net.safetensors"
    marker = tmp_path / "marker"
    path.write_bytes(f"cos\nsystem\n(S'touch {marker}'\ntR.".encode())
    assert "is not safetensors" in refused(CheckpointError, path)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (1, ["not safetensors"]),
        (8, ["not safetensors"]),
        (100, ["not safetensors"]),
        (5000, ["5000 bytes", "header", "truncated"]),
        (-1, ["header", "truncated"]),
    ],
)
def test_a_truncated_file_is_refused(small, tmp_path, size, parts):
    path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
    path.write_bytes(path.read_bytes()[:size])
    says(refused(CheckpointError, path), path, *parts)


def test_a_missing_file_is_named(tmp_path):
    message = refused(CheckpointError, tmp_path / "none.safetensors")
    says(message, f"{tmp_path}/none.safetensors", "no such file")


def test_weights_of_someone_else_are_no_saved_model(small, tmp_path):
    path = tmp_path / "net.safetensors"
    save_file(vitzoo.create(small).state_dict(), path)
    message = refused(CheckpointError, path)
    says(message, path, "vitzoo.save", f"create('vit_b16', weights='{path}')")


@pytest.fixture
def tampered(small, tmp_path):
    """Save a model, replace its metadata and return its path."""

    def tamper(metadata):
        path = vitzoo.save(vitzoo.create(small), tmp_path / "net.safetensors")
        if not isinstance(metadata, str):
            table = {"api": 1, "spec": small, "labels": [], "preprocessing": None}
            metadata = json.dumps(metadata(table))
        save_file(load_file(path), path, {"vitzoo": metadata})
        return path

    return tamper


@pytest.mark.parametrize(
    ("metadata", "parts"),
    [
        ("", ["JSON", "column 1"]),
        ("{", ["JSON", "column 2"]),
        ("[" * 100_000, ["JSON"]),
        ("[]", ["table", "[]", "(list)"]),
        ("{}", ["missing", "'api'"]),
        (lambda t: t | {"api": 99}, ["newer", "pip install -U vitzoo"]),
        (lambda t: t | {"api": "1"}, ["api", "whole number", "'1'", "(str)"]),
        (lambda t: t | {"extra": 1}, ["'extra'", "api, labels, preprocessing, spec"]),
        (lambda t: t | {"spec": []}, ["spec", "table", "[]", "(list)"]),
        (lambda t: t | {"labels": "abcde"}, ["labels", "list", "'abcde'", "(str)"]),
        (lambda t: t | {"labels": [1]}, ["labels", "list of strings", "[1]"]),
        (lambda t: t | {"preprocessing": 1}, ["preprocessing", "table", 1, "(int)"]),
        (lambda t: t | {"preprocessing": {"mean": [1]}}, ["preprocessing", "missing", "'std'"]),
        (lambda t: t | {"spec": t["spec"] | {"depth": 0.5}}, ["spec", "depth", "whole", 0.5]),
        (lambda t: t | {"spec": t["spec"] | {"depht": 2}}, ["spec", "'depht'", "'depth'"]),
        (
            lambda t: t | {"spec": t["spec"] | {"head": "os:system"}},
            ["spec", "head", "'os:system'", *PARTS_BY_NAME, "never imported"],
        ),
        (
            lambda t: t | {"spec": t["spec"] | {"head": {"name": "canary_part:Head"}}},
            ["spec", "head", "'canary_part:Head'", *PARTS_BY_NAME, "never imported"],
        ),
    ],
)
@pytest.mark.usefixtures("canary")
def test_tampered_metadata_is_refused(tampered, metadata, parts):
    path = tampered(metadata)
    says(refused(CheckpointError, path), path, *parts)


def test_metadata_of_another_network_does_not_fit(tampered):
    path = tampered(lambda t: t | {"spec": t["spec"] | {"depth": 3}})
    says(refused(CheckpointError, path), path, "12 missing", "blocks.2.")


# A file of weights


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


def misfit(path) -> str:
    message = refused(CheckpointError, "local/net", weights=path)
    says(message, path)
    return message.removeprefix(str(path))


def test_a_file_of_weights_is_loaded_bit_by_bit(weights, randomise):
    model = vitzoo.create("local/net", weights=weights())
    assert torch.equal(logits(model), logits(randomise(vitzoo.create("local/net"))))
    assert set(model.load_report.kept) == set(model.state_dict())


def test_weights_may_be_a_string(weights):
    path = weights()
    assert vitzoo.create("local/net", weights=str(path)).load_report.source == str(path)


def test_a_missing_block_is_reported(weights):
    def change(tensors):
        for name in [n for n in tensors if n.startswith("blocks.1.")]:
            del tensors[name]

    message = misfit(weights(change))
    says(message, "12 missing", "blocks.1.norm1.weight", "blocks.1.norm1.bias", "2 more")
    assert "unexpected" not in message


def test_a_renamed_layer_is_reported(weights):
    def change(tensors):
        tensors["blocks.0.mlp.dense1.weight"] = tensors.pop("blocks.0.mlp.fc1.weight")

    # two of the three names that tell timm's layout are left
    says(
        misfit(weights(change)),
        *("1 missing: blocks.0.mlp.fc1.weight", "1 unexpected: blocks.0.mlp.dense1.weight"),
    )


def test_another_shape_is_reported(weights):
    def change(tensors):
        tensors["norm.weight"] = torch.ones(33)

    message = misfit(weights(change))
    says(message, "1 with another shape", "norm.weight", "(33,)", "(32,)")
    assert "missing" not in message
    assert "unexpected" not in message


def test_a_transposed_matrix_is_reported(weights):
    def change(tensors):
        tensors["blocks.0.mlp.fc1.weight"] = tensors["blocks.0.mlp.fc1.weight"].T.contiguous()

    says(misfit(weights(change)), "blocks.0.mlp.fc1.weight", "(32, 64)", "(64, 32)")


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bool, torch.int8], ids=str)
def test_a_type_that_weights_do_not_have_is_reported(weights, dtype):
    def change(tensors):
        tensors["norm.bias"] = torch.zeros(32, dtype=dtype)

    says(misfit(weights(change)), "1 of a type", "norm.bias", dtype)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_no_numbers_are_reported(weights, value):
    def change(tensors):
        tensors["cls_token"][0, 0, 7] = value

    says(misfit(weights(change)), "NaN", "infinite", "cls_token")


def test_extra_tensors_are_reported(weights):
    def change(tensors):
        tensors["ema.decay"] = torch.zeros(1)
        tensors["head_dist.weight"] = torch.zeros(1)

    says(misfit(weights(change)), "2 unexpected", "ema.decay", "head_dist.weight")


def test_a_hostile_tensor_name_is_printed_as_ascii(weights):
    def change(tensors):
        tensors["\x1b[2J\nnorm"] = torch.zeros(1)

    path = weights(change)
    message = refused(CheckpointError, "local/net", weights=path)
    says(message, path, r"'\x1b[2J\nnorm'", 256, "printable")
    assert message.isprintable()


def test_all_that_is_wrong_is_said_at_once(weights):
    def change(tensors):
        del tensors["head.bias"]
        tensors["extra"] = torch.zeros(1)
        tensors["norm.weight"] = torch.ones(33)

    message = misfit(weights(change))
    says(message, "1 missing: head.bias", "1 unexpected: extra")
    says(message, "1 with another shape", "norm.weight", "(33,)", "(32,)")


@pytest.mark.parametrize("names", [["conv1.weight", "layer1.0.bn1.weight", "fc.bias"], []])
def test_another_architecture_is_refused_by_its_keys(weights, names):
    def change(tensors):
        tensors.clear()
        tensors.update({name: torch.zeros(3) for name in names})

    path = weights(change)
    message = refused(CheckpointError, "local/net", weights=path)
    first = ", ".join(sorted(names)) or "none"
    says(message, path, first, "timm", "torchvision")


def test_other_classes_give_a_fresh_head(weights):
    model = vitzoo.create("local/net", weights=weights(), num_classes=3)
    report = model.load_report
    assert set(report.reinitialised) == set(report.dropped) == {"head.weight", "head.bias"}
    assert len(report.kept) == len(model.state_dict()) - 2
    assert model.head.weight.shape == (3, 32)
    assert not model.head.weight.any()


def test_the_same_number_of_classes_keeps_the_head(weights):
    model = vitzoo.create("local/net", weights=weights(), num_classes=5)
    assert "head.weight" in model.load_report.kept
    assert not model.load_report.reinitialised


def test_no_classes_drop_the_head(weights):
    model = vitzoo.create("local/net", weights=weights(), num_classes=0)
    assert set(model.load_report.dropped) == {"head.weight", "head.bias"}
    assert logits(model).shape == (2, 32)


def test_another_head_is_fresh(weights):
    model = vitzoo.create("local/net", weights=weights(), head="mlp")
    assert set(model.load_report.dropped) == {"head.weight", "head.bias"}
    assert set(model.load_report.reinitialised) == {
        "head.pre_logits.weight",
        "head.pre_logits.bias",
        "head.fc.weight",
        "head.fc.bias",
    }


def test_a_head_of_other_classes_is_never_dropped_unasked(weights):
    def change(tensors):
        tensors["head.weight"], tensors["head.bias"] = torch.zeros(7, 32), torch.zeros(7)

    says(misfit(weights(change)), "2 with another shape", "head.")


def test_another_image_size_resamples_the_positions(weights):
    model = vitzoo.create("local/net", weights=weights(), image_size=(16, 64))
    assert model.load_report.resampled == ("pos_embed",)
    assert "pos_embed" not in model.load_report.kept
    assert model.pos_embed.shape == (1, 1 + 2 * 8, 32)
    assert logits(model).shape == (2, 5)


def test_another_number_of_channels_is_adapted_and_reported(weights):
    model = vitzoo.create("local/net", weights=weights(), in_chans=1)
    kernel = vitzoo.create("local/net", weights=weights()).patch_embed.proj.weight
    torch.testing.assert_close(model.patch_embed.proj.weight, kernel.sum(1, keepdim=True))
    assert model.load_report.converted == ("patch_embed.proj.weight",)


def test_converted_tensors_are_reported(weights):
    model = vitzoo.create("local/net", weights=weights(), dtype=torch.bfloat16)
    assert set(model.load_report.converted) == set(model.state_dict())
    assert logits(model).dtype == torch.bfloat16


def test_a_spec_without_variant_takes_a_file_of_weights(small, weights, randomise):
    model = vitzoo.create(small, weights=weights())
    assert torch.equal(logits(model), logits(randomise(vitzoo.create("local/net"))))


# Weights that there are not


def test_pretrained_without_weights_is_an_error():
    message = refused(WeightsUnavailable, "vit_gg14", pretrained=True)
    says(message, "vit_gg14", "pretrained=")


def test_a_spec_without_variant_has_no_registered_weights(small):
    for arguments in ({"pretrained": True}, {"weights": "best"}):
        message = refused(WeightsUnavailable, small, **arguments)
        says(message, "spec", "variant", "weights=")


def test_a_misspelt_name_of_weights_is_suggested():
    (name, *_) = [weights.name for weights in vitzoo.describe("vit_digits").weights]
    message = refused(WeightsUnavailable, "vit_digits", weights=name[:-1])
    says(message, "vit_digits", repr(name[:-1]), repr(name))


def test_an_unknown_name_of_weights_lists_all():
    names = [weights.name for weights in vitzoo.describe("vit_digits").weights]
    message = refused(WeightsUnavailable, "vit_digits", weights="zzz")
    says(message, "vit_digits", "'zzz'", ", ".join(names))


def test_a_file_of_weights_that_is_missing_is_named():
    message = refused(CheckpointError, "vit_ti16", weights="none.safetensors")
    says(message, "none.safetensors", "no such file")
