"""Class names: unique, in the order of the logits, and there only where the head was kept."""

import ast
import dataclasses
import hashlib
import os
import re
import subprocess
import sys

import pytest
import safetensors.torch
import tomlkit
import torch

import vitzoo
from helpers import refuses, says
from vitzoo import synsets
from vitzoo.errors import InvalidOption, UnknownName
from vitzoo.registry.label_sets import DATA, OWN, SETS, SHARED, SYNSETS, class_names, known_labels

ORCHARD = """\
api = 1

[label_sets.trees]
labels = ["oak", "pear", "fig"]

[variants.net]
summary = "trees"
size = "ti"
num_classes = 3
params = 5524995
source = "made up"
"""
for name in ("first", "second"):
    ORCHARD += f"""
[variants.net.weights.{name}]
file = "{name}.safetensors"
repo = "acme/net"
predicted_size = 22100000
pin = "first-use"
format = "timm"
label_set = "acme/trees"
default = {str(name == "first").lower()}
license = "MIT"
source = "made up"
preprocessing = {{ mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }}
"""
WNID = re.compile(r"n\d{8}")
SPEC = {
    "image_size": 32, "patch_size": 16, "embed_dim": 16, "depth": 1, "num_heads": 1, "mlp_dim": 32,
}  # fmt: skip


@pytest.mark.parametrize("label_set", SETS)
def test_a_set_has_its_number_of_unique_short_names(label_set):
    names = class_names(label_set)
    assert len(names) == SETS[label_set]
    assert len({name.casefold() for name in names}) == len(names)
    assert all(name.isprintable() and name == name.strip() and name for name in names)


@pytest.mark.parametrize("label_set", SETS)
def test_a_name_is_the_first_of_its_synset_with_what_tells_it_apart(label_set):
    for name, (wnid, lemmas) in zip(class_names(label_set), synsets(label_set), strict=True):
        first, _, rest = name.partition(" (")
        assert WNID.fullmatch(wnid)
        assert first == lemmas[0]
        assert not rest or rest.removesuffix(")") in (wnid, *lemmas[1:])


@pytest.mark.parametrize("label_set", sorted(set(SETS) - {"imagenet-22k-ms"}))
def test_sets_are_sorted_by_the_ids(label_set):
    wnids = [wnid for wnid, _ in synsets(label_set)]
    assert wnids == sorted(set(wnids))


def test_microsofts_order_puts_the_1000_first():
    wnids = [wnid for wnid, _ in synsets("imagenet-22k-ms")]
    assert wnids[:1000] == [wnid for wnid, _ in synsets("imagenet-1k")]
    assert wnids[1000:] == sorted(wnids[1000:])
    assert len(set(wnids)) == 21842


def test_known_classes_stand_where_everyone_has_them():
    names = class_names("imagenet-1k")
    known = {0: "tench", 1: "goldfish", 207: "golden retriever", 281: "tabby", 817: "sports car",
             985: "daisy", 999: "toilet tissue"}  # fmt: skip
    assert {i: names[i] for i in known} == known


def test_classes_of_one_name_are_told_apart():
    names = class_names("imagenet-1k")
    assert [names[i] for i in (134, 517)] == ["crane (n02012849)", "crane (n03126707)"]
    assert [names[i] for i in (638, 639)] == ["maillot (n03710637)", "maillot (tank suit)"]
    assert [names[i] for i in (264, 474)] == [
        "Cardigan (Cardigan Welsh corgi)", "cardigan (n02963159)"
    ]  # fmt: skip
    assert sum("(" in name for name in names) == 6


def test_a_class_has_one_name_in_all_large_sets():
    seen = {}
    for label_set in set(SETS) - {"imagenet-1k"}:
        for name, (wnid, _) in zip(class_names(label_set), synsets(label_set), strict=True):
            assert seen.setdefault(wnid, name) == name
    assert len(set(seen.values())) == len(seen) == 21844


def test_the_files_are_small_and_carry_the_notice():
    assert sum((DATA / file).stat().st_size for file in (OWN, SHARED, SYNSETS)) < 500_000
    notice = (DATA / "WORDNET.txt").read_text()
    assert "WordNet 3.0 Copyright 2006 by Princeton University. All rights reserved." in notice
    assert all(file in notice for file in (OWN, SHARED, SYNSETS))


# vitzoo.labels and model.labels


def test_labels_of_a_name_are_those_of_its_default_weights():
    assert vitzoo.labels("vit_b16") is class_names("imagenet-1k")
    assert vitzoo.labels("vit_digits") == tuple("0123456789")
    assert vitzoo.labels("vit_b16_in21k") == ()  # its classifier was never published
    assert vitzoo.labels("vit_g14") == ()  # no weights


def test_labels_of_a_label_set():
    assert len(vitzoo.labels("imagenet-21k-miil")) == 11221


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("imagenet1k", ["label set", "'imagenet-1k'"]),
        ("ImageNet-21K-goog", ["label set", "imagenet-1k, imagenet-12k, imagenet-21k"]),
        ("vit_b61", ["variant", "'vit_b16'"]),
    ],
)
def test_an_unknown_label_set_or_name(name, parts):
    with refuses(UnknownName, repr(name), *parts):
        vitzoo.labels(name)


@pytest.fixture
def orchard(install):
    """A plugin with a label set, which two entries of weights use."""
    files = {"acme/__init__.py": "", "acme/registry.toml": ORCHARD}
    install("acme-orchard", "acme = acme:registry.toml", files)


@pytest.mark.usefixtures("orchard")
def test_a_label_set_of_a_plugin():
    trees = ("oak", "pear", "fig")
    assert vitzoo.labels("acme/trees") == vitzoo.labels("acme/net") == trees
    assert vitzoo.labels("acme/net:second") == trees
    first, second = vitzoo.describe("acme/net").weights
    assert (first.label_set, first.labels, second.labels) == ("acme/trees", trees, trees)
    assert class_names("acme/trees") == trees  # as `create(labels=)` reads it
    with refuses(UnknownName, "'acme/tree'", "did you mean 'acme/trees'"):
        class_names("acme/tree")
    with refuses(UnknownName, "'acme/tree'"):
        vitzoo.labels("acme/tree")


def test_a_label_set_of_a_users_file(tmp_path, monkeypatch):
    for name in ("one", "two"):
        text = f'api = 1\n[label_sets.{name}]\nlabels = ["{name}", "b"]\n'
        tmp_path.joinpath(f"{name}.toml").write_text(text)
    files = os.pathsep.join(map(str, tmp_path.glob("*.toml")))
    monkeypatch.setenv("VITZOO_REGISTRY", files)
    assert vitzoo.labels("local/one") == ("one", "b")
    assert vitzoo.labels("local/two") == ("two", "b")


def test_labels_of_what_is_no_name():
    with refuses(InvalidOption, "model", 5, "(int)"):
        vitzoo.labels(5)


def test_labels_of_a_row_win_over_its_set():
    assert known_labels("imagenet-1k", ("a", "b")) == ("a", "b")
    assert known_labels("birds") == known_labels("") == ()


def wrong_classes(variants):
    """Return the weights whose labels are not as many as their classes, and how many it checked."""
    wrong, seen = [], 0
    for variant in variants:
        for row in variant.weights:
            seen += 1
            classes = variant.spec.num_classes if row.num_classes is None else row.num_classes
            if row.labels:
                right = len(row.labels) == classes
            elif row.label_set:
                right = SETS[row.label_set] == classes
            else:  # features, or an embedding: as wide as no label set is long
                right = classes not in SETS.values()
            if not right:
                wrong.append(f"{variant.name}:{row.name}")
    return wrong, seen


@pytest.mark.conformance
def test_every_row_has_as_many_classes_as_its_label_set():
    wrong, seen = wrong_classes(vitzoo.variants())
    assert not wrong
    assert seen >= sum(bool(variant.weights) for variant in vitzoo.variants()) > 10


@pytest.mark.parametrize(
    "row",
    [{"label_set": "imagenet-12k"}, {"labels": ("a", "b")}, {"label_set": "", "num_classes": 1000}],
    ids=str,
)
def test_a_row_with_another_number_of_classes_is_seen(row):
    variant = vitzoo.describe("vit_b16")
    changed = dataclasses.replace(variant.default_weights, **row)
    variant = dataclasses.replace(variant, weights=(changed,))
    assert wrong_classes([variant]) == ([f"vit_b16:{changed.name}"], 1)


@pytest.fixture
def classifiers(distribution, monkeypatch, new_registry):
    """Register `named/net` with weights of 1,000 and of 21,843 classes."""
    site = distribution("named", "named = named:registry.toml", {"named/__init__.py": ""})
    package = site / "named"
    (package / "data").mkdir()
    weights = {}
    for label_set in ("imagenet-1k", "imagenet-21k"):
        model = vitzoo.create(SPEC | {"num_classes": SETS[label_set]})
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        data = safetensors.torch.save(model.state_dict())
        name = label_set.replace("-", "_")
        (package / "data" / f"{name}.safetensors").write_bytes(data)
        weights[name] = {
            "file": f"{name}.safetensors", "pin": "confirmed", "size": len(data), "format": "timm",
            "sha256": hashlib.sha256(data).hexdigest(), "license": "MIT", "source": "made up",
            "label_set": label_set, "num_classes": SETS[label_set],
            "default": label_set == "imagenet-1k",
            "preprocessing": {
                "mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"
            },
        }  # fmt: skip
    params = sum(p.numel() for p in vitzoo.create(SPEC).parameters())
    row = SPEC | {"summary": "small", "source": "made up", "params": params, "weights": weights}
    manifest = tomlkit.dumps({"api": 1, "variants": {"net": row}})
    (package / "registry.toml").write_text(manifest)
    monkeypatch.syspath_prepend(site)
    new_registry()
    return package / "registry.toml"


@pytest.mark.usefixtures("classifiers")
def test_a_kept_head_has_the_names_of_its_weights():
    assert vitzoo.create("named/net", pretrained=True).labels == class_names("imagenet-1k")
    large = vitzoo.create("named/net", weights="imagenet_21k")
    assert large.labels == vitzoo.labels(large) == class_names("imagenet-21k")
    for kept in ({"image_size": 48}, {"head": "linear"}, {"num_classes": 1000}):
        assert vitzoo.create("named/net", pretrained=True, **kept).labels[0] == "tench"


@pytest.mark.usefixtures("classifiers")
@pytest.mark.parametrize(
    "changes",
    [{"num_classes": 10}, {"num_classes": 0}, {"head": "mlp"}],
    ids=str,
)
def test_a_replaced_head_has_none(changes):
    assert vitzoo.create("named/net", pretrained=True, **changes).labels == ()


@pytest.mark.usefixtures("classifiers")
def test_names_are_saved_with_the_model(tmp_path):
    model = vitzoo.create("named/net", pretrained=True)
    again = vitzoo.create(vitzoo.save(model, tmp_path / "net.safetensors"))
    assert again.labels == class_names("imagenet-1k")


def test_a_row_with_another_number_of_classes_is_found(classifiers, capsys):
    from internals import main

    text = classifiers.read_text()
    classifiers.write_text(text.replace('"imagenet-1k"', '"imagenet-12k"'))
    assert main(["registry", "check", str(classifiers)]) == 1
    said = capsys.readouterr().err
    says(said, "net:imagenet_1k", "imagenet-12k", "11821 classes", 1000)


# What it costs

WATCHED = """
import sys
opened = []
sys.addaudithook(lambda event, args: event == 'open' and opened.append(str(args[0])))
{code}
print([file for file in {files} if any(path.endswith(file) for path in opened)], file=sys.stderr)
"""


def read_by(code):
    """Return which files of names a fresh interpreter opens."""
    code = WATCHED.format(code=code, files=(OWN, SHARED, SYNSETS))
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return ast.literal_eval(done.stderr.splitlines()[-1])


@pytest.mark.slow
def test_the_names_are_not_read_unless_asked_for():
    code = """
import vitzoo
from vitzoo.cli.main import main
vitzoo.variants()
vitzoo.create('vit_ti16', device='meta')
main(['list', '-q']); main(['show', 'vit_b16'])
vitzoo.create('vit_digits', pretrained=True)
vitzoo.labels('vit_digits')
"""
    assert read_by(code) == []


def test_the_thousand_names_are_read_without_the_large_files():
    assert read_by(
        "from vitzoo.registry.label_sets import class_names; class_names('imagenet-1k')"
    ) == [OWN]
