"""Arguments of `Format` and `ConfigTable` that have another type are refused at once."""

import pytest

from helpers import says
from tables import cases
from vitzoo import CheckpointError, InvalidOption
from vitzoo.formats import ConfigTable, Format, ShardedFolder, free


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


@cases(
    ("arguments", "words"),
    [
        ({"index": "../index.json"}, ("index", ".json", "'../index.json'")),
        ({"index": "config.json"}, ("index", ".json", "'config.json'")),
        ({"index": "index.txt"}, ("index", ".json", "'index.txt'")),
        ({"key": ""}, ("key", "text", "''")),
        ({"shards": "part.safetensors"}, ("shards", "{number}", "'part.safetensors'")),
        ({"shards": "part-{number}.bin"}, ("shards", ".safetensors", "'part-{number}.bin'")),
        ({"shards": "a/{number}.safetensors"}, ("shards", "{number}", "'a/{number}.safetensors'")),
        ({"shards": "part-{total}.safetensors"}, ("shards", "{number}", "{total}")),
        ({"shard_size": 0}, ("shard_size", "a number of bytes", "0")),
        ({"shard_size": "5GB"}, ("shard_size", "a number of bytes", "'5GB'")),
    ],
    ids=str,
)
def test_an_argument_of_a_sharded_folder(arguments, words):
    with pytest.raises(InvalidOption) as caught:
        ShardedFolder(**arguments)
    says(str(caught.value), "ShardedFolder", *words)


def test_a_format_with_a_folder_writes_safetensors():
    with pytest.raises(InvalidOption) as caught:
        Format("acme/acme", suffix=".npz", folder=ShardedFolder())
    says(str(caught.value), "suffix", ".safetensors", "'.npz'")
    with pytest.raises(InvalidOption) as caught:
        Format("acme/acme", folder="index.json")
    says(str(caught.value), "folder", "ShardedFolder", "'index.json'")


def test_tensors_are_divided_in_their_order_and_up_to_a_size():
    folder = ShardedFolder(shards="{number}-of-{count}.safetensors", shard_size=10)
    found = folder.divided({"a": 4, "b": 6, "c": 30, "d": 1, "e": 0})
    assert [name[0] for name in found.values()] == ["1", "1", "2", "3", "3"]
    assert {name[1:] for name in found.values()} == {"-of-3.safetensors"}
    with pytest.raises(CheckpointError) as caught:
        folder.divided({str(i): 10 for i in range(129)})
    says(str(caught.value), "10 bytes", "129 files", "128", "shard_size")


def test_all_values_that_the_network_of_a_library_may_have():
    rules = ("class", {"name": "mean", "norm_first": False}, lambda spec: spec.depth > 1)
    table = {**free("block.mlp"), "pool": rules, "pos_embed.where": ("stem",), "depth": (12,)}
    assert Format("acme/acme", marks=["a", ("b", "c")], network=table).network == table
