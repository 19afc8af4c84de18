"""Arguments of `Format` and `ConfigTable` that have another type are refused at once."""

import pytest

from helpers import says
from tables import cases
from vitzoo import InvalidOption
from vitzoo.formats import ConfigTable, Format, free


@cases(
    ("arguments", "words"),
    [
        ({"network": {"head": "acme/cosine"}}, ("network['head']", "a tuple", "('acme/cosine',)")),
        ({"network": {"num_registers": 0}}, ("network['num_registers']", "a tuple", "(0,)")),
        ({"network": {"pool": bool}}, ("network['pool']", "write (function,)")),
        ({"network": {"haed": ("linear",)}}, ("'haed'", "field of a spec", "'head'")),
        ({"network": {"block.mpl": ("linear",)}}, ("'block.mpl'", "'block.mlp'")),
        ({"network": {"depth.most": (12,)}}, ("'depth.most'", "'depth'")),
        ({"network": ("head",)}, ("network", "a mapping", "tuple")),
        ({"marks": "stem.weight"}, ("marks", "a tuple", "('stem.weight',)")),
        ({"ignored": (3,)}, ("ignored", "texts", "3 (int)")),
        ({"training": ["ema."]}, ("training", "a tuple", "tuple(['ema.'])")),
        ({"keymap": {"token": "cls_token"}}, ("keymap", "a KeyMap", "dict")),
        ({"configs": ["vit"]}, ("configs", "a mapping", "['vit']")),
        ({"suffix": ".pt"}, ("suffix", ".safetensors or .npz", "'.pt'")),
    ],
    ids=str,
)
def test_an_argument_of_a_format(arguments, words):
    with pytest.raises(InvalidOption) as caught:
        Format("acme/acme", **arguments)
    says(str(caught.value), "Format('acme/acme')", *words)


@cases(
    ("lists", "words"),
    [
        ({"fixed": {"hidden_act": "gelu"}}, ("fixed['hidden_act']", "a tuple", "('gelu',)")),
        ({"irrelevant": {"of training": "lr"}}, ("irrelevant['of training']", "('lr',)")),
        ({"applied": ["depth"]}, ("applied", "a mapping", "['depth']")),
    ],
    ids=str,
)
def test_a_list_of_a_config_table(lists, words):
    with pytest.raises(InvalidOption) as caught:
        ConfigTable(**lists)
    says(str(caught.value), "ConfigTable", *words)


def test_all_values_that_the_network_of_a_library_may_have():
    rules = ("class", {"name": "mean", "norm_first": False}, lambda spec: spec.depth > 1)
    table = {**free("block.mlp"), "pool": rules, "pos_embed.where": ("stem",), "depth": (12,)}
    assert Format("acme/acme", marks=["a", ("b", "c")], network=table).network == table
