"""`create`: accepted and refused arguments, names, ready parts and weights names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vitzoo
from create_helpers import PARTS_BY_NAME, logits, refused
from helpers import close, refuses, says
from tables import cases
from vitzoo import PartSpec
from vitzoo.errors import (
    CheckpointError,
    InvalidOption,
    PluginError,
    RegistryError,
    UnknownName,
    UnknownOption,
    VitzooError,
    WeightsUnavailable,
)

pytestmark = pytest.mark.usefixtures("_one_thread")


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


def test_a_misspelt_argument_is_suggested(small):
    message = refused(UnknownOption, small, num_class=3)
    says(message, "create()", "'num_class'", "'num_classes'")


HABITS = [  # arguments of timm and transformers, and what has their meaning here
    ("drop_path_rate", 0.1, "drop_path=0.1"),
    ("pos_drop_rate", 0.1, "dropout=0.1"),
    ("proj_drop_rate", 0.1, "dropout=0.1"),
    ("global_pool", "token", "pool='class'"),
    ("global_pool", "avg", "pool='mean'"),
    ("global_pool", "avg", "pool={'name': 'mean', 'norm_first': False}"),
    ("global_pool", "map", "pool='attention'"),
    ("img_size", 64, "image_size=64"),
    ("dynamic_img_size", True, "dynamic=True"),
    ("num_labels", 3, "num_classes=3"),
    ("torch_dtype", torch.float16, "dtype=torch.float16"),
]


@cases(("argument", "value", "fix"), HABITS)
def test_an_argument_of_another_library_is_answered_with_the_one_here(small, argument, value, fix):
    says(refused(UnknownOption, small, **{argument: value}), "create()", repr(argument), fix)
    eval(f"vitzoo.create(small, {fix})", {"vitzoo": vitzoo, "small": small, "torch": torch})


@pytest.mark.parametrize(("argument", "value"), [("features_only", True), ("out_indices", [0])])
def test_features_only_is_answered_with_methods(small, argument, value):
    text = refused(UnknownOption, small, **{argument: value})
    says(
        text,
        "vitzoo.backbone(name, out=...)",
        "model.forward_intermediates(images, indices)",
        "model.features(images, names)",
    )
    says(refused(UnknownOption, small, global_pool=""), "model.forward_features(images)")
    says(refused(UnknownOption, small, dynamic_img_pad=True), "vitzoo.backbone pads images")


def test_checkpoint_path_is_answered_with_weights(small):
    text = refused(UnknownOption, small, checkpoint_path="own.safetensors")
    assert text.endswith("; pass weights='own.safetensors'")
    pickle = refused(UnknownOption, small, checkpoint_path="own.pth")
    says(pickle, "`vitzoo convert own.pth own.safetensors --from-pickle`")


def test_drop_rate_is_answered_with_code_that_does_what_timm_does(small, timm):
    text = refused(UnknownOption, small, drop_rate=0.5)
    says(text, "dropout=")
    model = vitzoo.create(small)
    torch.nn.init.normal_(model.head.weight)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    reference = timm.models.VisionTransformer(**sizes, mlp_ratio=2, num_classes=5, drop_rate=0.5)
    reference.load_state_dict(model.state_dict())
    exec(re.search(r"model\.fc_norm = .*$", text)[0], {"torch": torch, "model": model})
    assert model.state_dict().keys() == reference.state_dict().keys()  # it can still be saved
    images, results = torch.randn(4, 3, 32, 32), []
    for network in (model.train(), reference.train()):
        torch.manual_seed(0)
        results.append(network(images))
    close(*results)


@pytest.mark.parametrize(
    ("value", "call"),
    [
        ("augreg_in21k", "vitzoo.create('vit_b16:augreg_in21k')"),
        ("own.safetensors", "vitzoo.create('vit_b16', weights='own.safetensors')"),
    ],
)
def test_weights_as_pretrained_are_answered_with_the_call(value, call):
    says(refused(InvalidOption, "vit_b16", pretrained=value), repr(value), call)


def test_a_pool_of_timm_is_answered_with_the_one_here(small):
    for name, ours in (("avg", "mean"), ("token", "class"), ("map", "attention")):
        says(refused(UnknownName, small, pool=name), "pool", repr(name), "timm", repr(ours))


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
    assert cores == ["cosine", "linear", "mlp", "none", "tanh"]


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


@cases(
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
        ({"block": {"qk_norm": "all"}}, ["[block]", "qk_norm", "true", "'all_heads'", "'all'"]),
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


@cases(
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
    says(message, key, "positive", "{'variant': 'vit_b16', ...}")


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
    says(message, "spec", "path", f"got {name!r}")


def test_numpy_integers_are_numbers_or_refused_in_words(small):
    message = refused(InvalidOption, small, num_classes=np.int64(3))
    says(message, "num_classes", repr(np.int64(3)))
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


@pytest.mark.usefixtures("canary")
@cases(
    "name",
    ["os:system", "torch.nn:Linear", "canary_part:Head", "canary_part.Head", "../x", "/etc/passwd"],
)
@cases("field", ["patch_embed", "pos_embed", "pool", "head", "drop_path"])
def test_an_import_path_is_no_name(small, field, name):
    for part in (name, {"name": name}):
        message = refused(InvalidOption, small | {field: part})
        says(message, field, repr(name), "(str)", *PARTS_BY_NAME)


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


@pytest.mark.slow
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
    says(message, "vitzoo.parts.Head")


def test_a_ready_patch_embedder_that_lacks_something_is_told_what(small):
    message = refused(InvalidOption, small, patch_embed=nn.Conv2d(3, 32, 8, 8))
    says(message, "patch_embed", "Conv2d", "grid, in_chans")
    says(message, "vitzoo.parts.PatchEmbedder")


def test_a_ready_part_that_is_no_module_is_refused(small):
    class Plain:
        num_classes = 5
        pre_logits_dim = 32
        reset = __call__ = None

    message = refused(InvalidOption, small, head=Plain())
    says(message, "head", "Plain", "vitzoo.parts.Head")


def test_a_ready_drop_path_policy_gives_the_rates(small):
    model = vitzoo.create(small, drop_path=half)
    assert [block.drop_path.rate for block in model.blocks] == [0.0, 0.5]
    assert model.spec.drop_path.opaque


def test_a_ready_policy_must_give_one_rate_per_block(small):
    message = refused(InvalidOption, small, drop_path=lambda *, depth: [0.1] * (depth - 1))
    says(message, 1, "rates", 2, "blocks")


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (lambda: [0.0, 0.0], ("TypeError:", "'depth'")),
        (lambda depth: depth, ("TypeError:", "'int'")),
        (lambda depth: ["a"] * depth, ("rate", "'a'")),
        (lambda depth: depth // 0, ("ZeroDivisionError:",)),
    ],
)
def test_a_ready_policy_of_the_wrong_signature(small, policy, words):
    says(refused(InvalidOption, small, drop_path=policy), "drop_path", *words)


class Unprintable:
    """An object whose `repr` raises."""

    def __repr__(self):
        raise ZeroDivisionError

    __str__ = __format__ = __repr__


@cases("field", ["patch_embed", "pos_embed", "pool", "head", "drop_path"])
@cases("part", [lambda: 3, print, nn.Linear, Cosine, Unprintable, Unprintable()])
def test_callables_that_are_no_parts(small, field, part):
    says(refused(InvalidOption, small, **{field: part}), field)


def test_a_ready_part_whose_methods_take_other_arguments(small):
    class Reset(Cosine):
        def reset(self):
            return self

    class Forward(Cosine):
        def forward(self):
            return None

    class Value(Cosine):
        reset = 3

    parts = (
        (Reset(), ("Reset.reset", "num_classes")),
        (Forward(), ("Forward.forward", "pre_logits")),
        (Value(), ("Value.reset", "num_classes")),
    )
    for part, words in parts:
        says(refused(InvalidOption, small, head=part), "head", "vitzoo.parts.Head", *words)


@cases(
    "argument",
    [
        "pretrained", "num_classes", "in_chans", "image_size", "pool", "block", "drop_path",
        "dropout", "dtype", "device", "weights",
    ],
)  # fmt: skip
def test_a_value_whose_repr_raises(small, argument):
    with refuses(VitzooError, argument, "Unprintable"):
        vitzoo.create(small, **{argument: Unprintable()})


def test_a_name_or_number_whose_repr_raises(small):
    for name in (Unprintable(), small | {"depth": Unprintable()}):
        with refuses(VitzooError, "Unprintable"):
            vitzoo.create(name)


NO_MODULE = """
import vitzoo

def build(spec):
    return {}

@vitzoo.hookimpl
def vitzoo_variants():
    spec = vitzoo.describe("vit_ti16").spec
    yield vitzoo.Variant("net", "a network", spec, 5717416, builder=build)
"""


BY_NAME = """
import torch

def build(spec):
    assert spec.variant == "globex/net", spec
    return torch.nn.Linear(3, spec.num_classes)
"""
GLOBEX = """
api = 1
[variants.net]
size = "ti"
summary = "x"
source = "x"
params = 4000
builder = "globex.parts:build"
accepts = ["num_classes"]
"""
OWN = """
api = 1
[variants.mine]
variant = "globex/net"
num_classes = 7
params = 28
summary = "x"
source = "x"
"""


def test_a_local_variant_has_the_builder_of_its_base(
    install, local_registry, tmp_path, monkeypatch
):
    """The builder gets the name of the base, and a saved file does not need the registry file."""
    files = {"globex/__init__.py": "", "globex/parts.py": BY_NAME, "globex/registry.toml": GLOBEX}
    install("globex-vit", "globex = globex:registry.toml", files)
    local_registry(OWN)
    model = vitzoo.create("local/mine")
    assert (type(model), model.out_features) == (torch.nn.Linear, 7)
    assert model.spec.variant == "local/mine"
    path = vitzoo.save(model, tmp_path / "mine.safetensors")
    with refuses(InvalidOption, "local/mine", "depth", "num_classes"):
        vitzoo.create({"variant": "local/mine", "depth": 2})
    monkeypatch.delenv("VITZOO_REGISTRY")
    again = vitzoo.create(path)
    assert again.spec.variant == "globex/net"
    assert torch.equal(again.weight, model.weight)


def test_a_local_variant_does_not_import_a_plugin(install, local_registry):
    """Every listing reads the user's file, and no listing imports a module."""
    install("globex-vit", "globex = globex", {"globex.py": "raise SystemExit('imported')"})
    path = local_registry(OWN)
    assert vitzoo.variants("local/*") == []
    with refuses(RegistryError, path, "'globex/net'", "module", "vitzoo plugins compile globex"):
        vitzoo.describe("local/mine")


@pytest.mark.parametrize("made", ["None", "[spec]", "print", "__import__('torch').nn.Linear"])
def test_a_builder_that_returns_no_module(install, made):
    install("globex-vit", "globex = globex", {"globex.py": NO_MODULE.format(made)})
    with refuses(PluginError, "globex/net", "builder", "torch.nn.Module", "globex-vit"):
        vitzoo.create("globex/net")


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
    says(message, "none.safetensors")
