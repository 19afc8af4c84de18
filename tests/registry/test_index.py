"""The rows of listings: generated for the manifests of this repository, or read from a manifest."""

from __future__ import annotations

import importlib
import json
import runpy
from pathlib import Path

import pytest

import vitzoo
from helpers import refuses
from internals import FIRST_PARTY, registry
from plugin_helpers import fails, names
from vitzoo.errors import UnknownName

ROOT = Path(__file__).resolve().parents[2]
host = importlib.import_module("vitzoo.plugin.host")
generated = importlib.import_module("vitzoo.registry.generated")

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


def listed(pattern: str) -> list[str]:
    return [row["name"] for row in registry().index.listing([pattern])]


@pytest.fixture
def ours(acme, tmp_path, monkeypatch, new_registry):
    """The plugin `acme` as one of this repository: the file of its listing."""
    manifest, tool = acme(), runpy.run_path(str(ROOT / "tests" / "update_listings.py"))
    zoo = new_registry() or registry()
    zoo.load_namespace_of("acme/net")
    path = tmp_path / "acme.json"
    path.write_text(tool["text_of"](zoo.host, "acme", manifest, []), encoding="utf-8")
    for name in ("core", *FIRST_PARTY):
        (tmp_path / f"{name}.json").symlink_to(generated.FOLDER / f"{name}.json")
    monkeypatch.setattr(generated, "FOLDER", tmp_path)
    monkeypatch.setitem(FIRST_PARTY, "acme", "acme-parts")
    generated.generated.cache_clear()
    new_registry()
    yield path
    generated.generated.cache_clear()


@pytest.mark.usefixtures("ours")
def test_a_manifest_with_a_generated_listing_is_not_read(monkeypatch):
    registry()
    with monkeypatch.context() as patch:
        patch.setattr(host, "read_manifest", fails)
        assert listed("acme/*") == ["acme/net", "acme/other"]
        assert listed("vit_b16") == ["vit_b16"]


@pytest.mark.usefixtures("ours")
def test_the_listing_says_what_the_manifest_says(monkeypatch, new_registry):
    rows = registry().index.listing(["acme/*"], each_weights=True)
    counts = {name: numbers for name, _, numbers in registry().index.overview()}
    monkeypatch.delitem(FIRST_PARTY, "acme")
    generated.generated.cache_clear()
    new_registry()
    assert registry().index.listing(["acme/*"], each_weights=True) == rows
    read = {name: numbers for name, _, numbers in registry().index.overview()}
    assert counts["acme"] == read["acme"] == (2, 1, 1)


def test_an_edited_manifest_is_read(ours, tmp_path, new_registry):
    path = tmp_path / "site/acme/registry.toml"
    path.write_text(path.read_text().replace('"a network"', '"an edited one"'))
    new_registry()
    assert "an edited one" in [row["summary"] for row in registry().index.listing(["acme/*"])]
    assert ours.is_file()


def change(path: Path, **values: object) -> None:
    """Change values of the first row, and add a row for a variant that the manifest lacks."""
    table = json.loads(path.read_text(encoding="utf-8"))
    row = table["variants"][0]
    for field, value in values.items():
        row[generated.COLUMNS.index(field)] = value
    ghost = list(row)
    ghost[0] = "acme/ghost"
    ghost[generated.COLUMNS.index("known_as")] = [["timm", "gone", ""]]
    table["variants"].append(ghost)
    path.write_text(json.dumps(table), encoding="utf-8")


def test_variants_and_pins_never_come_from_a_listing(ours, new_registry):
    change(ours, weights="evil", pin="confirmed", params=1, embed_dim=7)
    new_registry()
    (row,) = registry().index.listing(["acme/net"])
    assert (row["weights"], row["params"]) == ("evil", 1)
    assert listed("acme/ghost") == ["acme/ghost"]
    (variant,) = vitzoo.variants("acme/net")
    assert (variant.weights, variant.params, variant.spec.embed_dim) == ((), 5717416, 192)
    assert names("acme/*") == ["acme/net", "acme/other"]
    for name in ("acme/ghost", "gone"):
        with refuses(UnknownName, repr(name)):
            vitzoo.describe(name)


@pytest.mark.usefixtures("ours")
def test_a_variant_that_is_off_is_not_listed(switch):
    switch(off="acme/net")
    assert listed("acme/*") == ["acme/other"]
    assert listed("*/net") == []
    switch(off="")
    assert names("acme/*") == ["acme/net", "acme/other"]


@pytest.mark.usefixtures("ours")
def test_a_former_name_is_listed_under_the_present_one():
    assert listed("acme/former") == ["acme/net"]


def test_only_plugins_of_this_repository_have_a_generated_listing(acme):
    path = acme()
    assert generated.generated("acme") is None
    assert generated.listing_of(path, "acme") is None
    assert listed("acme/*") == ["acme/net", "acme/other"]


def test_a_listing_writes_nothing(acme, own_home):
    acme()
    assert listed("acme/*") == ["acme/net", "acme/other"]
    assert {"vit_b16", "acme/net"} < set(names())
    assert not own_home.exists()
