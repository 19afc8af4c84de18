"""`vitzoo registry check`: the networks of a registry file are built and counted."""

from __future__ import annotations

import pytest

from helpers import says
from plugin_files import ACME, MANIFEST

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
        says(err, "problem: net:", *said)


def test_the_registry_check_of_a_file_without_parts_of_plugins(run, tmp_path):
    file = tmp_path / "local.toml"
    text = MANIFEST.replace(MANIFEST[MANIFEST.index("[drop") : MANIFEST.index("[variants")], "")
    file.write_text(text)
    assert run("registry", "check", file)[::2] == (0, "")
    file.write_text(text.replace("5717416", "1"))
    code, _, err = run("registry", "check", file)
    assert code == 1
    says(err, "problem: net:", "params", "1", "5717416")


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
        says(err, "problem: net:", *said)


def test_the_registry_check_runs_networks_whose_buffers_are_computed_on_the_cpu(run, tmp_path):
    file = tmp_path / "local.toml"
    text = MANIFEST.replace(MANIFEST[MANIFEST.index("[drop") : MANIFEST.index("[variants")], "")
    file.write_text(text.replace("5717416", '5679592\npos_embed = "rope"\nactivations = 1'))
    code, _, err = run("registry", "check", file)
    assert code == 1
    says(err, "problem: net:", "activations", "1")
    assert "params" not in err


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
