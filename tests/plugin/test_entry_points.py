"""Plugins are found by their entry points, whatever the metadata of others hold."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import zipfile

import pytest

import vitzoo
from helpers import LAZY_MODULE as MODULE, UNTOUCHABLE as ACME, refuses, says
from plugin_helpers import damage, state
from vitzoo.errors import PluginError, UnknownName

entry_points = importlib.import_module("vitzoo.plugin.entry_points")

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


@pytest.fixture
def here(acme, tmp_path, monkeypatch):
    """The plugin `acme` in the current directory."""
    acme()
    monkeypatch.chdir(tmp_path / "site")


@pytest.mark.usefixtures("here")
def test_a_plugin_in_the_current_directory_is_shown_and_not_used():
    info = state("acme")
    assert info.state == "disabled"
    says(info.cause, "VITZOO_PLUGINS")
    says(info.fix, "VITZOO_PLUGINS")
    with refuses(PluginError, "'acme'", info.cause, info.fix):
        vitzoo.describe("acme/net")


@pytest.mark.parametrize("only", ["acme", "Acme.Parts", "*"])
@pytest.mark.usefixtures("here")
def test_a_plugin_in_the_current_directory_is_used_where_it_is_named(switch, only):
    switch(only=only)
    assert state("acme").state == ("disabled" if only == "*" else "loaded")


@pytest.mark.usefixtures("here")
def test_an_installed_plugin_wins_over_one_in_the_current_directory(switch, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    info = elsewhere / "installed_acme-2.0.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: installed-acme\nVersion: 2.0"
    )
    info.joinpath("entry_points.txt").write_text("[vitzoo]\nacme = acme:registry.toml\n")
    monkeypatch.syspath_prepend(elsewhere)
    for only in (None, "acme"):
        switch(only=only)
        assert state("acme", "installed-acme").state == "loaded"
        assert state("acme", "acme-parts").state == "disabled"
    says(state("acme", "acme-parts").cause, "installed-acme 2.0")


def test_metadata_in_the_current_directory_hides_no_installed_plugin(
    acme, tmp_path, monkeypatch, new_registry
):
    acme()
    work = tmp_path / "work"
    (work / "acme_parts.egg-info").mkdir(parents=True)
    (work / "acme_parts.egg-info/PKG-INFO").write_text("Name: acme-parts\nVersion: 0")
    monkeypatch.syspath_prepend(work)
    monkeypatch.chdir(work)
    new_registry()
    assert state("acme").state == "loaded"


def test_the_first_of_two_versions_counts(acme, tmp_path, new_registry):
    acme()
    old = tmp_path / "old" / "Acme.Parts-0.1.dist-info"
    old.mkdir(parents=True)
    old.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: Acme.Parts\nVersion: 0.1\n")
    old.joinpath("entry_points.txt").write_text("[vitzoo]\nacme = acme:gone.toml\n")
    sys.path.append(str(old.parent))
    new_registry()
    try:
        assert (state("acme").state, state("acme").version) == ("loaded", "1.0")
        sys.path.insert(0, sys.path.pop())
        new_registry()
        assert (state("acme").state, state("acme").version) == ("broken", "0.1")
    finally:
        sys.path.remove(str(old.parent))


@pytest.mark.parametrize(
    "data",
    [
        b"[vitzoo]\nacme = acme:\xff.toml\n",
        b"[vitzoo]\nacme\n",
    ],
)
def test_a_plugins_own_damaged_entry_points_are_shown(install, acme, data, new_registry):
    install("globex-vit", "globex = globex", {"globex.py": MODULE})
    root = acme().parents[1]
    damage(root, data)
    new_registry()
    info = state("acme-parts")
    assert info.state == "broken"
    says(info.cause, "metadata", "/acme_parts-1.0.dist-info/entry_points.txt")
    says(info.fix, "pip uninstall acme-parts", "VITZOO_DISABLE_PLUGINS=acme-parts")
    with refuses(UnknownName, "'acme/net'", "acme-parts", info.cause, info.fix):
        vitzoo.describe("acme/net")
    assert vitzoo.describe("globex/net").namespace == "globex"


@pytest.mark.parametrize(
    "data", [b"[console_scripts]\nx = \xff", b"\xff\xfe[\0v\0", b"[x]\nvitzoo"]
)
def test_damaged_metadata_of_other_distributions_is_ignored(acme, data, new_registry):
    damage(acme().parents[1], data, "unrelated")
    new_registry()
    assert "unrelated" not in {info.distribution for info in vitzoo.plugins()}
    assert state("acme").state == "loaded"


@pytest.mark.parametrize("data", [b"\xff\xfe\0", b"", b"Name: \x1b[31mred\nVersion: \x07\n"])
def test_a_plugin_with_damaged_metadata_is_used(acme, data, new_registry):
    damage(acme().parents[1], data, file="METADATA")
    new_registry()
    info = state("acme")
    assert info.state == "loaded"
    assert info.distribution.isprintable()
    assert info.version.isprintable()


def test_unprintable_entry_points_are_shown_printable(install):
    install("acme-parts", "a\x1b[31mcme = acme:\x07.toml", ACME)
    (info,) = (i for i in vitzoo.plugins() if i.distribution == "acme-parts")
    assert info.state == "broken"
    assert all(text.isprintable() for text in (info.namespace, info.cause, *info.trace))


def test_an_import_hook_that_fails_hides_no_plugin(acme, monkeypatch, new_registry):
    class Hook:
        def find_spec(self, *args):
            return None

        def find_distributions(self, context):
            raise OSError("no such registry")

    acme()
    monkeypatch.setattr(sys, "meta_path", [Hook(), *sys.meta_path])
    new_registry()
    assert state("acme").state == "loaded"


def test_an_import_hook_that_fails_at_a_package_breaks_that_plugin_alone(acme, monkeypatch):
    class Hook:
        def find_spec(self, name, *args):
            if name == "acme":
                raise ZeroDivisionError("odd hook")

    acme()
    monkeypatch.setattr(sys, "meta_path", [Hook(), *sys.meta_path])
    assert state("acme").state == "broken"
    assert "ZeroDivisionError: odd hook" in state("acme").cause


# What importlib.metadata finds


def test_the_search_finds_what_importlib_metadata_finds(acme):
    acme()
    every = importlib.metadata.entry_points(group="vitzoo")
    reference = {(e.name, e.value, e.dist.name, e.dist.version) for e in every}
    ours = {row[:4] for row in entry_points.find_plugins() if row.group == "vitzoo"}
    assert ours == reference
    assert ("acme", "acme:registry.toml", "acme-parts", "1.0") in ours


METADATA = "Metadata-Version: 2.1\nName: Acme.Parts\nVersion: 2.0\n\nName: other\n"


def write_metadata(site, folder, file="METADATA"):
    path = site / folder
    path.mkdir(parents=True)
    path.joinpath(file).write_text(METADATA)
    points = "[console_scripts]\nx = y:z\n\n[vitzoo]\n# a comment\nacme= acme:registry.toml\n"
    path.joinpath("entry_points.txt").write_text(points)


@pytest.mark.parametrize(
    ("folder", "file", "packed"),
    [
        ("Acme.Parts-2.0.dist-info", "METADATA", False),
        ("Acme.Parts-2.0.dist-info", "METADATA", True),
        ("Acme_Parts.egg-info", "PKG-INFO", False),
        ("Acme_Parts.egg-info", "PKG-INFO", True),
        ("acme_parts-2.0.egg/EGG-INFO", "PKG-INFO", False),
    ],
)
def test_metadata_of_every_form_is_found(tmp_path, monkeypatch, folder, file, packed):
    site = tmp_path / "site"
    write_metadata(site, folder, file)
    if packed:
        archive = tmp_path / "packed.zip"
        with zipfile.ZipFile(archive, "w") as packing:
            for path in site.rglob("*"):
                packing.write(path, path.relative_to(site))
        site = archive
    entry = site / folder.partition("/")[0] if "/" in folder else site
    monkeypatch.syspath_prepend(entry)
    (found,) = [found for found in entry_points.find_plugins() if found.namespace == "acme"]
    assert found[1:4] == ("acme:registry.toml", "Acme.Parts", "2.0")
    assert found.location.startswith(str(entry))


@pytest.mark.parametrize("entry", ["", "nowhere", "file.txt", b"\xff", None, 5])
def test_an_unusual_entry_of_the_path_hides_no_plugin(acme, monkeypatch, tmp_path, entry):
    acme()
    monkeypatch.chdir(tmp_path)
    tmp_path.joinpath("file.txt").write_text("not an archive")
    monkeypatch.setattr(sys, "path", [entry, *sys.path])
    assert "acme" in [found.namespace for found in entry_points.find_plugins()]


@pytest.mark.slow
def test_an_entry_point_that_appears_in_place_is_found(acme, new_registry):
    """Nothing about folders is cached: no change can be missed."""
    info = acme().parents[1] / "acme_parts-1.0.dist-info"
    points = info / "entry_points.txt"
    text = points.read_text()
    points.unlink()
    new_registry()
    assert "acme" not in {found.namespace for found in entry_points.find_plugins()}
    points.write_text(text)
    assert "acme" in {found.namespace for found in entry_points.find_plugins()}
