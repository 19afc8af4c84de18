"""The index of a manifest: used in its place for listings, and replaced when it is wrong."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

import vitzoo
from helpers import refuses
from internals import registry
from plugin_helpers import MANIFEST, fails, names, together
from tables import cases
from vitzoo.errors import UnknownName

plugins = importlib.import_module("vitzoo.plugin.host")
index = importlib.import_module("vitzoo.registry.index")

pytestmark = pytest.mark.usefixtures("own_home", "_the_core_goes_on_working")


def listed(pattern: str) -> list[str]:
    return [row["name"] for row in registry().index.listing([pattern])]


@pytest.fixture
def folder(own_home) -> Path:
    return own_home / "cache" / "listing"


@pytest.fixture
def entry(acme, folder, new_registry):
    """The plugin `acme`, listed once: the file of its index."""
    acme()
    assert names("acme/*") == ["acme/net", "acme/other"]
    paths = [path for path in folder.iterdir() if b"acme/net" in path.read_bytes()]
    new_registry()
    (path,) = paths
    return path


@pytest.mark.usefixtures("entry")
def test_a_listing_does_not_parse_again(monkeypatch):
    registry()
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "read_manifest", fails)
        assert listed("acme/*") == ["acme/net", "acme/other"]
        assert listed("vit_b16") == ["vit_b16"]


@pytest.mark.usefixtures("entry")
def test_the_index_says_what_the_manifest_says():
    rows = {row["name"]: row for row in registry().index.listing(["acme/*"])}
    vitzoo.describe("acme/net")
    assert {row["name"]: row for row in registry().index.listing(["acme/*"])} == rows


@pytest.mark.usefixtures("entry")
def test_an_edited_manifest_is_read_again(tmp_path, new_registry):
    path = tmp_path / "site/acme/registry.toml"
    path.write_text(path.read_text().replace('"a network"', '"an edited one"'))
    new_registry()
    assert "an edited one" in [row["summary"] for row in registry().index.listing(["acme/*"])]


@pytest.mark.slow
@pytest.mark.parametrize("change", ["version", "core", "namespace", "place"])
def test_an_entry_states_what_it_was_made_from(entry, tmp_path, monkeypatch, change):
    manifest, namespace = tmp_path / "site/acme/registry.toml", "acme"
    before = index.Entry.of(manifest, namespace)
    assert before.path == entry
    assert before.read()
    index._version.cache_clear()
    if change == "version":
        monkeypatch.setattr(index, "__version__", "99")
    elif change == "core":
        other = tmp_path / "core.toml"
        other.write_text("another")
        monkeypatch.setattr(index, "CORE_MANIFEST", other)
    elif change == "namespace":
        namespace = "globex"
    else:
        (tmp_path / "copy").mkdir()
        manifest = manifest.rename(tmp_path / "copy/registry.toml")
    assert index.Entry.of(manifest, namespace).read() is None
    monkeypatch.undo()
    index._version.cache_clear()


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_an_entry_that_another_user_may_edit_is_not_trusted(entry, new_registry, mode):
    add_unregistered(entry)
    entry.chmod(mode)
    new_registry()
    assert listed("acme/*") == ["acme/net", "acme/other"]
    assert not entry.stat().st_mode & 0o022
    assert "acme/ghost" not in entry.read_text()


def test_an_entry_of_another_user_is_not_trusted(entry, new_registry, monkeypatch):
    add_unregistered(entry)
    monkeypatch.setattr("os.geteuid", lambda: entry.stat().st_uid + 1)
    new_registry()
    assert listed("acme/*") == ["acme/net", "acme/other"]


def rows_of(entry: Path) -> list:
    return json.loads(entry.read_text(encoding="utf-8"))[-1]


def write_rows(entry: Path, rows: list) -> None:
    made_from = json.loads(entry.read_text(encoding="utf-8"))[0]
    entry.write_text(json.dumps([made_from, 1, 1, rows]), encoding="utf-8")


@cases(
    "data",
    [
        b"", b"{", b"null", b"5", b'"x"', b"[5]", b"[[]]", b"\xff\xfe", b"9" * 5000, b"[1, 1, 1]",
        b'["x", 1, 1, [5]]', b'["x", 1, 1, 5]', b'["x", 1, 1, []]',
    ],
)  # fmt: skip
def test_garbage_in_the_index_is_replaced(entry, new_registry, data):
    entry.write_bytes(data)
    new_registry()
    assert names("acme/*") == ["acme/net", "acme/other"]
    assert rows_of(entry)[0][0] == "acme/net"


@pytest.mark.slow
def test_a_cut_index_is_replaced(entry, new_registry):
    data = entry.read_bytes()
    for end in (0, 1, len(data) // 2, len(data) - 1):
        entry.write_bytes(data[:end])
        new_registry()
        assert listed("acme/*") == ["acme/net", "acme/other"]


def test_a_folder_in_place_of_an_index_is_ignored(entry, new_registry):
    entry.unlink()
    entry.mkdir()
    new_registry()
    assert names("acme/*") == ["acme/net", "acme/other"]


def add_unregistered(entry: Path) -> None:
    """Write rows that fit, for variants that the manifest does not have."""
    row = rows_of(entry)[0]
    row[index.COLUMNS.index("name")] = "acme/ghost"
    row[index.COLUMNS.index("known_as")] = [["timm", "acme/ghost"], ["timm", "acme/gone"]]
    write_rows(entry, [*rows_of(entry), row])


def test_a_variant_that_only_the_index_has_is_no_variant(entry, new_registry):
    add_unregistered(entry)
    new_registry()
    assert names("acme/*") == ["acme/net", "acme/other"]
    new_registry()
    for name in ("acme/ghost", "acme/gone", "ghost"):
        with refuses(UnknownName, repr(name)):
            vitzoo.describe(name)
    assert vitzoo.describe("acme/net").params == 5717416


def test_pins_are_never_taken_from_the_index(entry, new_registry):
    rows = rows_of(entry)
    for field, value in (
        ("weights", "evil"),
        ("pin", "confirmed"),
        ("params", 1),
        ("embed_dim", 7),
    ):
        rows[0][index.COLUMNS.index(field)] = value
    write_rows(entry, rows)
    new_registry()
    (row,) = registry().index.listing(["acme/net"])
    assert row["weights"] == "evil"  # what is shown comes from it
    (variant,) = vitzoo.variants("acme/net")
    assert (variant.weights, variant.params, variant.spec.embed_dim) == ((), 5717416, 192)
    (row,) = registry().index.listing(["acme/net"])
    assert row["weights"] is None


@pytest.mark.slow
@pytest.mark.usefixtures("entry")
def test_a_variant_that_is_off_is_in_the_index_but_not_listed(switch):
    switch(off="acme/net")
    assert listed("acme/*") == ["acme/other"]
    assert listed("*/net") == []
    switch(off="")
    assert names("acme/*") == ["acme/net", "acme/other"]


def test_an_index_written_while_a_name_is_off_has_it(acme, switch):
    acme()
    switch(off="acme/net")
    assert listed("acme/*") == ["acme/other"]
    switch(off="")
    assert listed("acme/*") == ["acme/net", "acme/other"]


def test_listing_works_where_the_index_cannot_be_written(acme, folder):
    folder.parent.parent.mkdir()
    folder.parent.write_text("a file where a folder should be")
    acme()
    assert names("acme/*") == ["acme/net", "acme/other"]


@pytest.mark.parametrize("home", [":memory:", "~nobody-of-that-name/x", "/proc/nowhere"])
def test_without_a_home_listing_works(acme, monkeypatch, home, new_registry):
    acme()
    monkeypatch.setenv("VITZOO_HOME", home)
    new_registry()
    assert listed("acme/*") == ["acme/net", "acme/other"]


def test_concurrent_writers_leave_a_whole_index(acme, folder):
    path = acme()
    entry = index.Entry.of(path, "acme")
    registry().index.listing(["acme/*"])
    listing = entry.read()
    assert (len(listing.rows), listing.parts, listing.formats) == (2, 1, 1)
    together(lambda: [entry.write(listing) for _ in range(10)])
    assert entry.read() == listing
    assert not [p for p in folder.iterdir() if p.suffix != ".json"]


def test_a_manifest_has_one_entry(acme, folder, new_registry):
    path = acme()
    for i in range(3):
        path.write_text(MANIFEST + f"# {i}\n")
        new_registry()
        registry().index.listing(["acme/*"])
        assert index.Entry.of(path, "acme").read()
    assert len([p for p in folder.iterdir() if b"acme/net" in p.read_bytes()]) == 1
