"""`vitzoo registry check`: the networks of a registry file are built and counted."""

from __future__ import annotations

import pytest

from helpers import says
from plugin_files import ACME, MANIFEST
from tables import cases

pytestmark = pytest.mark.usefixtures("own_home")


LATE = MANIFEST.replace('source = "made up"', 'source = "made up"\ndrop_path = DROP')


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ()),
        ({"params = 5717416": "params = 1"}, ("params", "1", "5717416")),
        ({'"acme/late"': '{name = "acme/late", rates = 1}'}, ("drop_path", "'rates'")),
        ({"parts:late": "parts:lat"}, ("'acme.parts:lat'",)),
    ],
    ids=["right", "params", "option", "target"],
)
def test_the_registry_check_builds_only_with_the_plugin_installed(
    run, install, tmp_path, new_registry, changes, said
):
    text = LATE.replace("DROP", '"acme/late"')
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    file = tmp_path / "source" / "acme" / "registry.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    new_registry()
    code, _, err = run("registry", "check", file)
    assert code == 1
    says(err, "problem:", "net", "'acme'")
    install("acme-parts", "acme = acme:registry.toml", ACME | {"acme/registry.toml": text})
    code, _, err = run("registry", "check", file)
    assert (code, err.count("\n")) == ((1, 1) if said else (0, 0))
    if said:
        says(err, f"problem: {file}:", " net:", *said)


def test_the_registry_check_of_a_file_without_parts_of_plugins(run, tmp_path):
    file = tmp_path / "local.toml"
    text = MANIFEST.replace(MANIFEST[MANIFEST.index("[drop") : MANIFEST.index("[variants")], "")
    file.write_text(text)
    assert run("registry", "check", file)[::2] == (0, "")
    file.write_text(text.replace("5717416", "1"))
    code, _, err = run("registry", "check", file)
    assert code == 1
    says(err, f"problem: {file}:6: net: params is 1, expected 5717416", f"{file} --write")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("gmacs = 1.2536832\nactivations = 2266368", ()),
        ("gmacs = 1.2536833", ("gmacs", "1.2536833", "1.2536832")),
        ("activations = 2266369", ("activations", "2266369", "2266368")),
    ],
)
def test_the_registry_check_computes_operations_and_memory(run, tmp_path, line, said):
    file = tmp_path / "local.toml"
    text = MANIFEST.replace(MANIFEST[MANIFEST.index("[drop") : MANIFEST.index("[variants")], "")
    file.write_text(text.replace("params = 5717416", f"params = 5717416\n{line}"))
    code, _, err = run("registry", "check", file)
    assert (code, err.count("\n")) == ((1, 1) if said else (0, 0))
    if said:
        says(err, f"problem: {file}:7: net:", *said)


def test_the_registry_check_runs_networks_whose_buffers_are_computed_on_the_cpu(run, tmp_path):
    file = tmp_path / "local.toml"
    text = MANIFEST.replace(MANIFEST[MANIFEST.index("[drop") : MANIFEST.index("[variants")], "")
    file.write_text(text.replace("5717416", '5679592\npos_embed = "rope"\nactivations = 1'))
    code, _, err = run("registry", "check", file)
    assert code == 1
    says(err, f"problem: {file}:8: net: activations is 1")
    assert "params" not in err


# `--write`, for a plugin whose builder and policy are in the manifest that lacks `params`.

UNCOUNTED = """\
api = 1

[drop_path_policies.late]
target = "acme.parts:late"
summary = "the rate in the last block only"

[variants.net]  # the plain one
summary = "a network"
size = "ti"
drop_path = "acme/late"
source = "made up"

[variants.wrong]
summary = "a network"
params = 1  # of another version
size = "ti"

[variants.mean16]
summary = "mean of projected patches"
builder = "acme.parts:mixer"
patch_size = 16
num_classes = 10

[variants.mean16.weights.a]
default = true
repo = "acme/mean16"
file = "model.safetensors"
pin = "first-use"
predicted_size = 40200000
format = "timm"
license = "MIT"
source = "made up"
preprocessing = { mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }
"""
COUNTED = {
    'late"\nsource = "made up"\n': 'late"\nsource = "made up"\nparams = 5717416\n',
    "params = 1  #": "params = 5717416  #",
    "num_classes = 10\n": "num_classes = 10\nparams = 49866\n",
}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_write_counts_the_parameters_that_are_missing_or_wrong(run, install, new_registry, end):
    text = UNCOUNTED.replace("\n", end)
    code = MIXER + ACME["acme/parts.py"]
    files = {"acme/__init__.py": "", "acme/parts.py": code, "acme/registry.toml": text}
    file = install("acme-parts", "acme = acme:registry.toml", files) / "acme" / "registry.toml"
    file.write_bytes(text.encode())
    new_registry()
    for ask in (("show", "acme/net"), ("registry", "check", file)):
        done, _, err = run(*ask)
        assert done == 1
        says(err, f"{file}:7", "missing key 'params'", f"vitzoo registry check {file} --write")
    new_registry()
    done, _, err = run("registry", "check", file, "--write")
    assert done == 0, err
    says(err, "wrote params = 49866 of mean16", "wrote params = 5717416 of net")
    expected = UNCOUNTED
    for old, new in COUNTED.items():
        assert expected.count(old) == 1, old
        expected = expected.replace(old, new)
    assert file.read_bytes().decode() == expected.replace("\n", end)
    assert run("registry", "check", file, "--write")[::2] == (0, "")
    assert run("show", "acme/net")[0] == 0


def test_write_names_a_variant_that_it_cannot_count(run, tmp_path):
    file = tmp_path / "acme" / "registry.toml"
    file.parent.mkdir()
    file.write_text(UNCOUNTED)
    done, _, err = run("registry", "check", file, "--write")
    assert done == 1
    says(err, file, "net has no params, and cannot be built", "pip install", "mean16 has no params")
    assert "params = 5717416  # of another version" in file.read_text()
    assert run("registry", "check", "--write")[0] == 2


BUILT = """\
api = 1

[variants.mean16]
summary = "mean of projected patches"
builder = "acme.parts:mixer"
accepts = ["num_classes"]
patch_size = 16
num_classes = 10
params = 49866
gmacs = 0.009634432
source = "made up"

[variants.mean16.weights.a]
repo = "acme/mean16"
file = "model.safetensors"
pin = "first-use"
predicted_size = 40200000
format = "timm"
license = "MIT"
source = "made up"
preprocessing = { mean = [0.5, 0.5, 0.5], std = [0.5, 0.5, 0.5], interpolation = "bicubic" }
"""
MIXER = """\
import torch
from torch import nn

def mixer(spec):
    patches = nn.Conv2d(spec.in_chans, 64, spec.patch_size, spec.patch_size)
    patches.register_buffer("table", torch.zeros(10_000_000))
    pool = nn.AdaptiveAvgPool1d(1)
    classifier = nn.Linear(64, spec.num_classes)
    return nn.Sequential(patches, nn.Flatten(2), pool, nn.Flatten(), classifier)
"""


@cases(
    ("changes", "said"),
    [
        ({}, ()),
        ({"params = 49866": "params = 1"}, ("mean16:", "params", "1", "49866")),
        ({"gmacs = 0.009634432": "gmacs = 1.0"}, ("mean16:", "gmacs", "1.0", "0.009634432")),
        ({"40200000": "90000000"}, ("mean16:a:", "90000000", "49866", "40000000 bytes of buffers")),
        ({"parts:mixer": "parts:mixr"}, ("mean16:", "'acme.parts:mixr'", "acme")),
        ({"acme.parts:mixer": "acme.parts:wrong"}, ("mean16:", "builder", "returned", "None")),
        (
            {"acme.parts:mixer": "acme.parts:item"},
            ("gmacs", "meta", "item", "parts.py:16"),
        ),
    ],
    ids=str,
)
def test_the_registry_check_builds_networks_of_a_builder(run, install, new_registry, changes, said):
    """With the buffers that their files contain."""
    text = BUILT
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    code = MIXER + "\ndef wrong(spec):\n    return None\n\nclass Item(nn.Sequential):\n"
    code += "    def forward(self, x):\n        return x.sum().item()\n"
    code += "\ndef item(spec):\n    return Item(*mixer(spec))\n"
    files = {"acme/__init__.py": "", "acme/parts.py": code, "acme/registry.toml": text}
    folder = install("acme-parts", "acme = acme:registry.toml", files)
    new_registry()
    code, _, err = run("registry", "check", folder / "acme" / "registry.toml")
    assert (code, err.count("problem:")) == ((1, 1) if said else (0, 0)), err
    if said:
        says(err, *said)


def test_a_registry_file_with_a_giant_depth_is_refused_before_anything_is_built(
    run, tmp_path, monkeypatch
):
    def never(*_, **__):
        raise AssertionError("a network is built")

    monkeypatch.setattr("vitzoo.network.build.build", never)
    text = MANIFEST.replace(MANIFEST[MANIFEST.index("[drop") : MANIFEST.index("[variants")], "")
    file = tmp_path / "local.toml"
    file.write_text(text.replace('size = "ti"', 'size = "ti"\ndepth = 1_000_000_000'))
    code, out, err = run("registry", "check", file)
    assert (code, out) == (1, "")
    says(err, file, "[variants.net]", "depth", "1024", "1000000000")


@pytest.mark.parametrize(
    ("lines", "line", "quoted"),
    [
        ('summary = "a"\nsummary = "b"', 4, 'summary = "b"'),
        ("[variants.net.weights]\n[variants.net.weights]", 4, "[variants.net.weights]"),
    ],
)
def test_a_key_that_occurs_twice_is_named(run, tmp_path, lines, line, quoted):
    file = tmp_path / "own.toml"
    file.write_text(f"api = 1\n[variants.net]\n{lines}\n")
    code, _, err = run("registry", "check", file)
    assert code == 1
    says(err, file, "duplicate key", f"line {line}", quoted)


def test_an_unknown_part_is_named_with_its_variant(local_registry, run):
    text = 'api = 1\n[variants.two]\nsummary = "s"\nsize = "ti"\nparams = 5717416\nsource = "x"\n'
    local_registry(text + 'head = "none_such"\n')
    code, _, err = run("summary", "local/two")
    assert code == 1
    says(err, "local/two:", "unknown head 'none_such'", "'none'")
