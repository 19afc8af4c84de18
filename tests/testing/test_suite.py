"""`PluginTests` under pytest, the public names of `vitzoo.testing`, and its Hub on loopback."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import re
import urllib.request
from pathlib import Path

import pytest

import vitzoo
from internals import registry
from vitzoo import testing

QUICK = ("-k", "not worker and not offline and not disabled and not compiles")


@pytest.mark.long
def test_authors_get_one_test_for_each_contribution_and_check(author):
    said = author(*QUICK, "-W", "error", "--strict-markers")
    assert " failed" not in said
    assert "SKIPPED" not in said
    ids = [line.split()[0].partition("::")[2] for line in said.splitlines() if " PASSED" in line]
    assert {
        "TestAcme::test_plugin_discovery",
        "TestAcme::test_part_gradients[acme/cosine]",
        "TestAcme::test_head_reset[acme/cosine]",
        "TestAcme::test_variant_params[acme/own]",
        "TestAcme::test_weights_served[acme/net:main]",
    } <= set(ids)
    assert not [name for name in ids if "patch_embedder" in name or "none" in name]
    for word in ("hooks", "bundled", "_spec", "archives"):
        assert not [name for name in ids if word in name]


WINDOWS = """\
from vitzoo import InvalidOption
from vitzoo.parts.patch_embed import ConvPatchEmbed

class Windows(ConvPatchEmbed):
    grid_multiple = (4, 4)

    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)

    def grid(self, image_size):
        rows, columns = super().grid(image_size)
        if rows % 4 or columns % 4:
            raise InvalidOption(f"{rows}x{columns} is not 4x4")
        return rows, columns
"""


@pytest.mark.long
def test_an_embedder_of_few_grids_passes_without_sizes(author):
    manifest = 'api = 1\npatch_embedders.w = { target = "acme_vit.parts:Windows", summary = "s" }\n'
    files = {"acme_vit/parts.py": WINDOWS, "acme_vit/registry.toml": manifest}
    said = author(*QUICK, files=files)
    assert "TestAcme::test_patch_embedder_grid[acme/w] PASSED" in said
    assert " failed" not in said


MODULE_OF_HOOKS = """\
import vitzoo
from vitzoo.schema.reader import Reader

DATA = {"embed_dim": 32, "depth": 3, "num_heads": 2, "mlp_dim": 64, "patch_size": 8}
TABLE = DATA | {"image_size": 32, "num_classes": 5}
SPEC = vitzoo.Spec.read(Reader(TABLE, "net"))


@vitzoo.hookimpl
def vitzoo_variants():
    yield vitzoo.Variant("net", "a small network", SPEC, 32613, source="made up")
"""


def test_a_module_of_hooks_has_tests_of_its_own(author, acme):
    acme(entry_point="acme_vit.hooks", files={"acme_vit/hooks.py": MODULE_OF_HOOKS})
    said = author("-k", "hooks or spec")
    assert "TestAcme::test_plugin_hooks[acme] PASSED" in said
    assert "TestAcme::test_variant_spec[acme/net] PASSED" in said


def test_bundled_weights_and_each_kind_of_pin_are_one_case_each():
    suite = importlib.import_module("vitzoo.testing.suite")

    class Core(testing.PluginTests):
        namespace = "core"

    found = suite._subjects(Core, registry())
    assert [name for name, _ in found["bundled"]] == ["vit_digits:digits_v1"]
    pins = [subject.row.pin for _, subject in found["hosted"]]
    every = {row.pin for variant in vitzoo.variants() for row in variant.weights if row.repo}
    assert len(pins) == len(set(pins))
    assert set(pins) == every
    assert all(subject.row.repo for _, subject in found["hosted"])


def test_weights_at_an_https_address_are_neither_bundled_nor_on_the_hub(acme):
    suite = importlib.import_module("vitzoo.testing.suite")
    repo = 'repo = "acme/net"\nfile = "model.safetensors"\n'
    revision = f'revision = "{"0123456789abcdef" * 2 + "01234567"}"\n'
    acme((repo, 'url = "https://acme.example/net.safetensors"\n'), (revision, ""))

    class Acme(testing.PluginTests):
        namespace = "acme"

    found = suite._subjects(Acme, registry())
    assert [name for name, _ in found["row"]] == ["acme/net:main"]
    assert (found["bundled"], found["hosted"]) == ([], [])


def test_several_networks_have_ids_of_their_own():
    suite = importlib.import_module("vitzoo.testing.suite")

    class Core(testing.PluginTests):
        namespace = "core"
        networks = {"timm": [{}, {"num_registers": 1}], "vit_b16": {"depth": 1}}

    found = suite._subjects(Core, registry())
    formats = dict(found["checkpoint_format"])
    assert formats["timm"].network == {}
    assert formats["timm-2"].network == {"num_registers": 1}
    assert dict(found["variant"])["vit_b16"].network == {"depth": 1}


@pytest.mark.long
def test_authors_read_what_is_wrong_and_what_to_do(author):
    said = author("-k", "params or gradients", changes=[("params = 32613", "params = 1")])
    failed = [line for line in said.splitlines() if line.startswith("FAILED")]
    assert [line.split()[1].partition("::")[2] for line in failed] == [
        "TestAcme::test_variant_params[acme/net]"
    ]
    assert "WrongValue: variant 'acme/net': it states params = 1, the network has 32613" in said
    assert "write params = 32613, or correct its sizes" in said
    assert "vitzoo/testing/" not in said, "frames of vitzoo.testing are hidden"


@pytest.mark.long
def test_tables_that_name_nothing_are_seen(author):
    more = 'options = {"acme/cosin": {}}\nsizes = {"head acme/cosine": Sizes()}'
    said = author("-k", "settings", more=more)
    assert "TestAcme.options names 'acme/cosin'; did you mean 'acme/cosine'" in said
    said = author(
        "-k", "settings", more=more.replace("cosin'", "cosine'").replace('cosin"', 'cosine"')
    )
    assert "1 passed" in said


def test_a_broken_plugin_fails_in_one_place(author):
    said = author("-k", "loads or gradients or params", changes=[("api = 1", "api = 2")])
    assert "1 failed" in said
    assert "plugin 'acme' cannot be used: acme-vit 1.0" in said


@pytest.mark.long
def test_a_class_without_a_namespace_is_refused(author):
    said = author(more='namespace = ""')
    assert "TestAcme: set namespace to the name of the plugin's entry point" in said


@pytest.mark.long
def test_one_file_is_enough(author):
    """Without a conftest.py, too, tests that have nothing to check are deselected."""
    said = author("-k", "reset or grid", "-W", "error", conftest="")
    assert "1 passed" in said
    assert "skipped" not in said


POLICY = """\


def late(*, depth, rate, start):
    return [0.0 if i < start * depth else rate for i in range(depth)]
"""
LATE = """\
[drop_path_policies.late]
target = "acme_vit.parts:late"
summary = "a policy"

[heads.cosine]"""


@pytest.mark.long
def test_an_option_without_a_sample_is_said_once(author, acme):
    manifest = acme.manifest.replace("[heads.cosine]", LATE)
    files = {"acme_vit/registry.toml": manifest, "acme_vit/parts.py": acme.parts + POLICY}
    said = author("-k", "late", "-rs", files=files)
    assert said.count("vitzoo passes depth, but no value for start") == 1
    assert "1 failed" in said
    assert "'acme/late' was not tested, because it needs start: see the failure of" in said
    more = 'options = {"acme/late": {"start": 0.5}}'
    said = author("-k", "late", more=more)
    assert " failed" not in said
    assert " skipped" not in said


def test_it_may_be_imported_before_pytest_loads_it(author):
    conftest = 'from vitzoo.testing import Hub\npytest_plugins = ["vitzoo.testing"]\n'
    assert "1 passed" in author("-k", "loads", "-W", "error", conftest=conftest)


def test_several_samples_have_ids_of_their_own():
    suite = importlib.import_module("vitzoo.testing.suite")

    class Core(testing.PluginTests):
        namespace = "core"
        options = {"learned": [{}, {"where": "layers"}], "head tanh": {"hidden_dim": 16}}

    found = dict(suite._subjects(Core, registry())["part"])
    assert found["learned"].options == {}
    assert found["learned-where=layers"].options == {"where": "layers"}
    assert found["tanh"].options == {"hidden_dim": 16}
    assert {"head none", "position embedding none"} <= set(found)


# The public module.


def test_public_names_are_there_documented_and_all():
    assert testing.__all__ == sorted(testing.__all__)
    for name in testing.__all__:
        assert getattr(testing, name).__doc__, name
    given = {
        name
        for name, value in vars(testing).items()
        if getattr(value, "__module__", "").startswith("vitzoo.testing.") and name[0] != "_"
    }
    assert given | {"PluginTests"} == set(testing.__all__)


def test_every_check_is_a_test_of_the_suite():
    text = inspect.getsource(importlib.import_module("vitzoo.testing.suite"))
    found = [
        (path.stem, name)
        for path in Path(testing.checks.__file__).parent.glob("*.py")
        if path.stem != "__init__"
        for name in re.findall(r"^def (check_\w+)", path.read_text(), re.MULTILINE)
    ]
    assert len(found) > 45
    for module, name in found:
        alias = "whole" if module == "plugin" else module
        assert re.search(rf"\b{alias}\.{name}\b", text), f"{alias}.{name}"


def test_nothing_loads_it_unasked():
    entry_points = importlib.import_module("importlib.metadata").entry_points
    assert not [e for e in entry_points(group="pytest11") if "vitzoo" in e.value]


def test_the_rest_of_vitzoo_needs_neither_it_nor_pytest(python):
    code = """
import sys
sys.modules["pytest"] = None
import vitzoo, vitzoo.factory, vitzoo.cli.main
vitzoo.create("vit_digits", pretrained=True)
print([name for name in sys.modules if name.startswith("vitzoo.testing")])
"""
    assert python(code) == "[]\n"


# The Hub.


def test_the_hub_serves_what_was_added_and_what_it_is_told():
    data = b"0123456789"
    with testing.Hub() as hub:
        sha256 = hub.add("acme/net", "a/model.bin", data, revision="ab" * 20)
        assert sha256 == hashlib.sha256(data).hexdigest()
        url = f"{hub.endpoint}/acme/net/resolve/main/a/model.bin"
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == data
            assert answer.headers["X-Repo-Commit"] == "ab" * 20
        with urllib.request.urlopen(f"{hub.endpoint}/api/models/acme/net") as answer:
            info = json.load(answer)
        assert info["sha"] == "ab" * 20
        assert info["siblings"][0]["lfs"]["sha256"] == sha256
        hub.script.append(lambda handler, right: testing.hub.serve(handler, right[::-1]))
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == data[::-1]
        part = urllib.request.Request(url, headers={"Range": "bytes=4-"})
        with urllib.request.urlopen(part) as answer:
            assert (answer.status, answer.read()) == (206, data[4:])
        assert hub.ranges == [None, None, "bytes=4-"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{hub.endpoint}/acme/net/resolve/main/other")


def test_the_fixture_is_a_hub_that_vitzoo_downloads_from(vitzoo_hub):
    vitzoo_hub.add("acme/net", "model.safetensors", b"bytes")
    with pytest.warns(vitzoo.FirstUseWarning, match="pinned now in"):
        path = vitzoo.fetch("hf://acme/net@main/model.safetensors")
    assert path.read_bytes() == b"bytes"
    assert os.environ["VITZOO_HOME"] in str(path)
    vitzoo.fetch("hf://acme/net@main/model.safetensors")
    assert len(vitzoo_hub.file_requests()) == 1
