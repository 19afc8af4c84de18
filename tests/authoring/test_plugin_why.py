"""`vitzoo plugins why`: the steps in which a plugin was found and read."""

from __future__ import annotations

import hashlib
import json
import sys

import pytest

import vitzoo
from helpers import says
from plugin_files import GLOBEX, MANIFEST, UNTOUCHABLE

pytestmark = pytest.mark.usefixtures("own_home")


@pytest.fixture
def acme(install):
    return install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)


def test_why_traces_a_manifest_plugin_step_by_step(run, acme):
    code, out, _ = run("plugins", "why", "acme", "--json")
    (trace,) = json.loads(out)
    assert code == 0
    assert (trace["state"], trace["version"]) == ("loaded", "1.0")
    found, switches, manifest, kept, read, counted = trace["steps"]
    says(found, "acme = acme:registry.toml", "acme-parts 1.0", str(acme))
    says(switches, "switches")
    sha256 = hashlib.sha256(MANIFEST.encode()).hexdigest()
    says(manifest, f"{acme}/acme/registry.toml", f"{len(MANIFEST)} bytes", f"sha256 {sha256}")
    says(kept, "listing", "manifest")
    says(read, f"{acme}/acme/registry.toml", "imported")
    says(counted, "contributions: 2", "1 drop-path policy", "1 variant")
    assert [row["name"] for row in trace["contributions"]] == ["acme/late", "acme/net"]
    late = trace["contributions"][0]
    assert late["kind"] == "drop-path policy"
    assert late["target"] == "acme.parts:late"
    assert late["defined"] == f"{acme}/acme/parts.py:1"
    assert late["location"] == f"{acme}/acme/registry.toml:3"
    assert "acme" not in sys.modules


@pytest.mark.slow
def test_why_knows_a_generated_listing(run):
    (trace,) = json.loads(run("plugins", "why", "mae", "--json")[1])
    count = len(vitzoo.variants("mae/*"))
    assert any(f"generated listing ({count} variants)" in step for step in trace["steps"])


@pytest.mark.usefixtures("acme")
def test_why_finds_a_plugin_by_its_distribution(run):
    _, out, _ = run("plugins", "why", "Acme_Parts", "--json")
    assert [trace["namespace"] for trace in json.loads(out)] == ["acme"]


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("acme/late", ("acme/late", "drop-path policy")),
        ("acme/net", ("acme/net", "variant")),
        ("acme/old", ("acme/old", "former", "acme/net")),
        ("acme/nets", ("acme/nets", "'acme/net'", "'acme/late'")),
    ],
)
def test_why_explains_a_single_name(run, name, said):
    _, out, _ = run("plugins", "why", name, "--json")
    (trace,) = json.loads(out)
    says(trace["steps"][-1], *said)
    assert all(row["name"] == name for row in trace["contributions"])


@pytest.mark.usefixtures("acme")
def test_why_says_what_is_hidden(run, monkeypatch):
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "acme/net")
    _, out, _ = run("plugins", "why", "acme/net", "--json")
    (trace,) = json.loads(out)
    says(trace["steps"][-1], "acme/net", "variant", "VITZOO_DISABLE_PLUGINS")
    says(trace["steps"][-2], "contributions: 2", "1 of them", "VITZOO_DISABLE_PLUGINS")
    assert [row["hidden"] for row in trace["contributions"]] == [True]


@pytest.mark.usefixtures("acme")
def test_why_counts_what_it_lists(run, monkeypatch):
    monkeypatch.setenv("VITZOO_DISABLE_PLUGINS", "acme/net")
    _, out, _ = run("plugins", "why", "acme", "--json")
    (trace,) = json.loads(out)
    says(trace["steps"][-1], f"contributions: {len(trace['contributions'])}", "1 of them")
    (core,) = json.loads(run("plugins", "why", "core", "--json")[1])
    says(core["steps"][-1], f"contributions: {len(core['contributions'])}")


def test_why_does_not_import_a_lazy_module_and_names_the_command_that_does(run, install):
    install("globex-vit", "globex = globex.plugin", GLOBEX)
    code, out, _ = run("plugins", "why", "globex/late")
    assert code == 0
    says(out, "globex.plugin", "globex/", "`vitzoo plugins check globex`")
    assert "globex" not in sys.modules


def test_why_names_both_claimants(run, install):
    install("acme-parts", "acme = acme:registry.toml", UNTOUCHABLE)
    install("acme-fork", "acme = acme:registry.toml")
    _, out, _ = run("plugins", "why", "acme", "--json")
    (trace,) = json.loads(out)
    assert trace["state"] == "conflict"
    assert {step.partition(" 1.0")[0] for step in trace["steps"]} == {"acme-parts", "acme-fork"}


@pytest.mark.usefixtures("acme")
def test_why_says_which_switch_turned_a_plugin_off(run, monkeypatch):
    monkeypatch.setenv("VITZOO_PLUGINS", "globex")
    _, out, _ = run("plugins", "why", "acme", "--json")
    (trace,) = json.loads(out)
    assert trace["state"] == "disabled"
    says(trace["steps"][-1], "switches", "VITZOO_PLUGINS")


def test_why_says_where_it_looked_for_what_is_not_installed(run, acme):
    code, out, _ = run("plugins", "why", "acne", "--json")
    (trace,) = json.loads(out)
    assert code == 1
    assert trace["state"] == "not installed"
    nothing, searched, having, near = trace["steps"]
    says(nothing, "'acne'", "'vitzoo'")
    says(searched, str(acme))
    says(having, "acme-parts 1.0 (acme)")
    says(near, "'acme'")


def test_why_sends_a_name_of_the_core_to_which(run):
    code, out, _ = run("plugins", "why", "vit_b16")
    assert code == 1
    says(out, "'vit_b16'", "`vitzoo which vit_b16`")


def test_why_reads_the_users_own_file(run, local_registry):
    path = local_registry()
    assert "local/net" in run("plugins", "why", "local")[1]
    path.write_text("api = 1\nvariants = 3\n")
    _, out, _ = run("plugins", "why", "local", "--json")
    (trace,) = json.loads(out)
    assert trace["state"] == "broken"
    says(trace["fix"], "unset VITZOO_REGISTRY")


@pytest.mark.usefixtures("core_alone")
def test_why_names_the_plugin_of_a_first_party_command_that_is_not_installed(run):
    code, out, _ = run("plugins", "why", "site")
    assert code == 1
    says(out, "'site'", "'vitzoo.commands'", "pip install ./plugins/vitzoo-site")
    assert "did you mean" not in out
