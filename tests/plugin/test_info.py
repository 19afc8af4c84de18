"""What is said about a plugin: conflicts, reserved namespaces, entry points into the core."""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

import vitzoo
from helpers import UNTOUCHABLE as ACME, refuses, says
from internals import FIRST_PARTY, FIRST_PARTY_COMMANDS, install_command, renewal
from plugin_helpers import MANIFEST, damage, names, state
from vitzoo.errors import UnknownName

plugins = importlib.import_module("vitzoo.plugin.host")
discovery = importlib.import_module("vitzoo.plugin.entry_points")

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


def test_the_same_namespace_twice_in_one_distribution_is_a_conflict(install):
    install("acme-parts", "acme = acme:a.toml\nacme = acme:b.toml", ACME)
    info = state("acme")
    assert info.state == "conflict"
    says(info.cause, "acme-parts 1.0", "'acme'", "acme:a.toml", "acme:b.toml")


def test_a_conflict_ends_when_one_side_is_off(acme, install, switch):
    acme()
    install("acme-fork", "acme = acme:registry.toml")
    assert state("acme").state == "conflict"
    assert state("acme").distribution == "acme-fork, acme-parts"
    assert "VITZOO_DISABLE_PLUGINS" in state("acme").fix
    switch(off="acme-fork")
    assert state("acme", "acme-parts").state == "loaded"
    assert state("acme", "acme-fork").state == "disabled"
    assert vitzoo.describe("acme/net").namespace == "acme"


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("kind", ["hybrid:registry.toml", "acme"])
def test_a_reserved_namespace_is_refused_to_other_distributions(
    install, monkeypatch, new_registry, real, kind
):
    every = discovery.find_plugins
    monkeypatch.setattr(
        plugins,
        "find_plugins",
        lambda: [f for f in every() if real or f.distribution != "vitzoo-hybrid"],
    )
    root = install(
        "evil", f"hybrid = {kind}", {"hybrid/registry.toml": MANIFEST, "acme.py": "1 / 0"}
    )
    if real and not any(f.distribution == "vitzoo-hybrid" for f in every()):
        damage(root, b"[vitzoo]\nhybrid = acme_hybrid:registry.toml\n", "vitzoo_hybrid")
        damage(root, b"Name: vitzoo-hybrid\nVersion: 1.0\n", "vitzoo_hybrid", "METADATA")
        (root / "acme_hybrid").mkdir()
        text = MANIFEST.replace("acme.", "acme_hybrid.")
        (root / "acme_hybrid/registry.toml").write_text(text)
    new_registry()
    info = state("hybrid", "evil")
    assert info.state == "broken"
    says(info.cause, "'hybrid'", "reserved", "vitzoo-hybrid")
    says(info.fix, "pip uninstall evil", "VITZOO_DISABLE_PLUGINS=evil")  # and not the real one
    if real:
        assert state("hybrid", "vitzoo-hybrid").state == "loaded"
        assert names("hybrid/*")
    else:
        with refuses(UnknownName, "'hybrid/net'", "plugin 'hybrid'"):
            vitzoo.describe("hybrid/net")
    assert "acme" not in sys.modules


@pytest.mark.parametrize("value", ["vitzoo:registry.toml", "vitzoo.plugins", "vitzoo"])
def test_an_entry_point_into_the_core_is_refused(install, value):
    install("acme-parts", f"acme = {value}")
    assert state("acme").state == "broken"
    says(state("acme").cause, "acme-parts 1.0", repr(value), "vitzoo")


def test_every_first_party_distribution_has_a_command_and_is_in_the_extra_plugins():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    owners = FIRST_PARTY | FIRST_PARTY_COMMANDS
    assert extras["plugins"] == sorted({*owners.values()})
    for namespace, distribution in owners.items():
        says(install_command(namespace), f"pip install ./plugins/{distribution}")
    assert install_command("acme") == ""


def test_a_broken_first_party_plugin_is_installed_again_from_its_folder():
    info = vitzoo.PluginInfo("dinov2", "broken", distribution="vitzoo-dino")
    fix = renewal(info, "dinov2")
    says(fix, "pip install ./plugins/vitzoo-dino", "VITZOO_DISABLE_PLUGINS=dinov2")
    assert "--upgrade" not in fix
