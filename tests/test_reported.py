"""Hashes, revisions and sizes in the manifests, against what public pages and code state."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest

import vitzoo
from tables import cases
from vitzoo.schema.terms import CORE_MANIFEST

UPDATE = runpy.run_path(str(Path(__file__).with_name("update_reported.py")))
TABLE = UPDATE["FIGURES"]["table"]
FACTS = UPDATE["FIGURES"]["FACTS"]
ENTRIES = {f"{v.name}:{w.name}": w for v in vitzoo.variants() for w in v.weights}
STATED = {row["weights"]: row["size"] for row in TABLE("sizes.csv")}
UNIT = {"": 1, "MB": 10**6, "GB": 10**9}
PIN = ("vit_s16:augreg_in1k", "9f817e4a98515abc212f00cd836b960c556029d8")
EXACT = ("vit_l32:orig_in21k", "1222069584")
NOT_PINNED = "vit_b32:augreg_in21k"  # its commit is known


def test_the_manifests_have_what_is_known(capsys):
    assert UPDATE["main"]("--check") == 0, capsys.readouterr().err


def test_every_published_sha256_is_that_of_its_entry():
    rows = TABLE("pins.csv")
    assert len(rows) == 123
    for row in rows:
        entry = ENTRIES[row["weights"]]
        assert (entry.repo, entry.sha256) == (row["repo"], row["sha256"])
        assert entry.pin != "first-use"
    core = [w for v in vitzoo.variants(namespace="core") for w in v.weights]
    defaults = [w for w in core if w.default]
    known = [sum(bool(w.sha256) for w in found) for found in (ENTRIES.values(), core, defaults)]
    assert all(n >= least for n, least in zip(known, (177, 30, 17), strict=True))


@cases("name", STATED)
def test_the_size_of_an_entry_is_the_stated_one(name):
    """The Hub shows three digits; a predicted size lacks the metadata of the file."""
    entry, number = ENTRIES[name], re.fullmatch(r"([0-9.]+)(MB|GB|)", STATED[name])
    size, stated = entry.size or entry.predicted_size, float(number[1]) * UNIT[number[2]]
    assert stated == (float(f"{size:.3g}") if number[2] else size)


def test_a_file_that_was_not_seen_is_no_pinned_one():
    rows = [ENTRIES[row["weights"]] for row in TABLE("missing.csv")]
    assert len(rows) == 40
    for entry in rows:
        assert entry.file_seen == bool(entry.sha256 or entry.revision), entry.repo


@pytest.fixture
def update(tmp_path, monkeypatch):
    """Run the program on copies of the core's manifest and of the tables, both after changes."""
    shutil.copy(CORE_MANIFEST, tmp_path)
    for path in FACTS.glob("*.csv"):
        head, names, *rows = path.read_text().splitlines(keepends=True)
        own = [row for row in rows if "/" not in row.partition(":")[0]]
        (tmp_path / path.name).write_text("".join([head, names, *own]))
    monkeypatch.setitem(TABLE.__globals__, "FACTS", tmp_path)
    manifests = {"core": tmp_path / CORE_MANIFEST.name}
    monkeypatch.setitem(UPDATE["FIGURES"], "manifests", lambda _: manifests)

    def change(file, old, new):
        path = tmp_path / file
        assert path.read_text().count(old) == 1
        path.write_text(path.read_text().replace(old, new))
        return path

    return change


def keys_of(name):
    """Return the lines of an entry's pin in the core's manifest, and its other lines."""
    variant, _, weights = name.partition(":")
    text = CORE_MANIFEST.read_text().partition(f"[variants.{variant}.weights.{weights}]\n")[2]
    lines = text.partition("\n\n")[0].splitlines(keepends=True)
    return "".join(line for line in lines if line.partition(" = ")[0] in UPDATE["KEYS"])


@pytest.mark.parametrize("name", [PIN[0], EXACT[0]])
def test_a_lost_pin_is_entered_again_with_comments_and_order(update, name):
    before = 'pin = "first-use"\npredicted_size = 9\n'
    path = update("registry.toml", keys_of(name), f"# a comment\n{before}# another\n")
    assert UPDATE["main"]("--check") == 1
    assert before in path.read_text()
    assert UPDATE["main"]() == UPDATE["main"]("--check") == 0
    right = re.sub("predicted_size = .*", "predicted_size = 9", keys_of(name))
    written = path.read_text()
    expected = f"# a comment\n{right}# another\n"
    assert written == CORE_MANIFEST.read_text().replace(keys_of(name), expected)
    assert UPDATE["main"]() == 0
    assert path.read_text() == written


def test_a_confirmed_pin_and_a_later_pin_stay(update):
    confirmed = keys_of(EXACT[0]).replace('"reported"', '"confirmed"')
    path = update("registry.toml", keys_of(EXACT[0]), confirmed)
    later = keys_of(NOT_PINNED).replace("first-use", "reported") + f'sha256 = "{"ab" * 32}"\n'
    update("registry.toml", keys_of(NOT_PINNED), later)
    before = path.read_text()
    assert UPDATE["main"]() == 0
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("pins.csv", f"{PIN[0]},timm/", f"{PIN[0]},other/"),
        ("pins.csv", PIN[1], "f" * 40),
        ("pins.csv", EXACT[1], "1222069585"),
        ("pins.csv", f"{EXACT[1]},", f"{EXACT[1]},ab"),
        ("revisions.csv", "2217173718b9f19458044866005b7c47bd0ed640", "f" * 40),
        ("registry.toml", keys_of(PIN[0]).splitlines()[2], f'sha256 = "{"ab" * 32}"'),
        ("missing.csv", "vit_l32_in21k:google_in21k", "vit_l32_in21k:gone"),
    ],
    ids=["repo", "commit", "size", "sha256", "commit-alone", "entry", "no-entry"],
)
def test_a_row_that_contradicts_its_entry_is_refused(update, capsys, file, old, new):
    path = update(file, old, new).with_name("registry.toml")
    lost = 'pin = "first-use"\n'
    before = update("registry.toml", keys_of("vit_ti16:augreg_in21k"), lost).read_text()
    assert UPDATE["main"]() == 1
    assert "tests/facts" in capsys.readouterr().err
    assert path.read_text() == before
