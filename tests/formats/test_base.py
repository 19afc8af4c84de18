"""`Format`: prefixes of files, patterns of keys, overrides and key maps that depend on keys."""

import torch

from vitzoo.formats import Format, KeyMap

ONE = torch.ones(1)
ROWS = {"token": "cls_token", "norm.": "norm.", "mlp.": "head."}
ACME = Format(
    "acme/acme",
    keymap=KeyMap(ROWS),
    keymaps={
        "mlp.extra": KeyMap({**ROWS, "mlp.": "head.fc."}),
        lambda tensors: "token" not in tensors: KeyMap({**ROWS, "mlp.": "head.cls."}),
    },
    marks=("token", ("norm.weight", "norm.bias")),
    excludes=("*.table", "second"),
    ignored=("text.*", "mask", "*_index"),
    file_prefixes=("teacher.", "student."),
    anchor="token",
    training=("student.", "teacher.", "head."),
    defaults={"block": {"norm_eps": 1e-5, "activation": "gelu"}, "pool": "class"},
    defaults_with={
        "quick": {"block": {"activation": "quick_gelu"}},
        "mean": {"pool": {"name": "mean", "norm_first": False}},
    },
)


def keyed(*keys):
    return dict.fromkeys(keys, ONE)


def test_marks_and_excluded_patterns():
    assert ACME.matches(["token", "norm.bias"])
    assert not ACME.matches(["token"])
    assert not ACME.matches(["norm.bias", "norm.weight"])
    assert not ACME.matches(["token", "norm.bias", "blocks.0.table"])
    assert not ACME.matches(["token", "norm.bias", "second"])
    assert ACME.matches(["token", "norm.bias", "seconds", "table"])


def test_the_first_prefix_with_the_anchor_is_read_and_training_is_ignored():
    file = keyed("teacher.norm.bias", "student.token", "student.norm.bias", "head.x", "odd")
    assert ACME.matches(file)
    assert ACME.file_prefix(file) == "student."
    assert ACME.ignored_keys(file) == ["teacher.norm.bias", "head.x"]
    assert ACME.to_model(file).keys() == {"cls_token", "norm.bias", "odd"}
    both = file | keyed("teacher.token")
    assert ACME.ignored_keys(both) == ["student.token", "student.norm.bias", "head.x"]
    assert ACME.to_model(both).keys() == {"cls_token", "norm.bias", "odd"}
    bare = keyed("token", "head.x")
    assert ACME.ignored_keys(bare) == []
    assert ACME.to_model(bare).keys() == {"cls_token", "head.x"}


def test_patterns_of_ignored_keys():
    keys = ["text.a.b", "texts", "mask", "masks", "a.b_index", "student.token", "student.text.a"]
    assert ACME.ignored_keys(keys) == ["text.a.b", "mask", "a.b_index", "student.text.a"]


def test_key_maps_by_a_part_of_a_key_and_by_a_function():
    assert ACME.to_model(keyed("token", "mlp.bias")).keys() == {"cls_token", "head.bias"}
    found = ACME.to_model(keyed("token", "mlp.bias", "mlp.extra"))
    assert found.keys() == {"cls_token", "head.fc.bias", "mlp.extra"}
    assert ACME.to_model(keyed("mlp.bias")).keys() == {"head.cls.bias"}


def test_overrides_depend_on_keys_and_options_are_merged():
    block = {"norm_eps": 1e-5, "activation": "gelu"}
    assert ACME.overrides({}, ()) == {"block": block, "pool": "class"}
    assert ACME.overrides({"a": 1}, ["quick"]) == {}
    found = ACME.overrides({}, ["student.token", "student.quick", "mean"])
    assert found == {"block": block | {"activation": "quick_gelu"}, "pool": "class"}
    mean = {"name": "mean", "norm_first": False}
    assert ACME.overrides({}, ["mean"]) == {"block": block, "pool": mean}
    found["block"]["norm_eps"] = 1.0
    assert ACME.overrides({}, ())["block"] == block
