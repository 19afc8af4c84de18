"""Writing a catalogue: its bytes, and what happens to files that are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vitzoo
from helpers import refuses
from plugin_files import GLOBEX, UNTOUCHABLE
from vitzoo_site import files, write_site
from vitzoo_site.site import MARKER

MOST = 400_000  # bytes of the index with all that it loads


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_index_is_small(everything):
    out = everything.index.parent
    loaded = [everything.index, out / "assets/catalogue.js", out / "assets/style.css"]
    assert 100_000 < sum(path.stat().st_size for path in loaded) <= MOST


@pytest.mark.slow
def test_the_same_registry_gives_the_same_bytes(everything, tmp_path, python):
    """A second process has other hash seeds; the folders differ, so no path is written."""
    other = tmp_path / "other"
    code = """
from pathlib import Path
from vitzoo_site import write_site
import sys
write_site(Path({out!r}))
print(sorted(name for name in sys.modules if name in ("torch", "numpy", "vitzoo.network.model")))
"""
    assert python(code.format(out=str(other)), PYTHONHASHSEED="7").strip() == "[]"  # torch-free
    first = contents(everything.index.parent)
    assert contents(other) == first
    assert len(first) == everything.files + 1
    assert everything.bytes == sum(map(len, first.values())) - len(first[MARKER])


@pytest.mark.slow
def test_a_site_is_replaced(core, out):
    site = core(out)
    before = contents(out)
    assert (site.removed, site.kept) == (0, ())
    every = write_site(out)
    assert len(contents(out)) == every.files + 1 > site.files + 100
    again = core(out)
    assert again.removed == every.files - site.files
    assert contents(out) == before
    assert {path.name for path in out.joinpath("networks").iterdir() if path.is_dir()} == set()


def test_other_files_stay(core, out, full):
    full(out)
    out.joinpath("CNAME").write_text("models.example.org")
    out.joinpath("networks/acme/notes.txt").write_text("mine")
    changed = out / "networks/acme/net.html"
    changed.write_text("changed")
    site = core(out)
    assert site.kept == ("networks/acme/net.html",)
    assert site.removed == 1
    assert not out.joinpath("networks/acme/bare.html").exists()
    assert changed.read_text() == "changed"
    assert out.joinpath("CNAME").read_text() == "models.example.org"
    assert out.joinpath("networks/acme/notes.txt").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("marker", [None, "", "[]", '{"files": 7}', '{"files": {"../x": "1"}}'])
def test_a_folder_with_other_files_is_refused(core, out, marker):
    out.mkdir()
    out.joinpath("index.html").write_text("mine")
    out.joinpath("thesis.tex").write_text("mine, too")
    if marker is not None:
        out.joinpath(MARKER).write_text(marker)
    before = contents(out)
    with refuses(vitzoo.InvalidOption, out, "did not write", "index.html", "--force"):
        core(out)
    assert contents(out) == before
    core(out, force=True)
    assert out.joinpath("index.html").read_text() != "mine"
    assert out.joinpath("thesis.tex").read_text() == "mine, too"


def test_a_site_overwrites_no_file_that_it_did_not_write(core, out, full):
    core(out)
    mine = out / "networks/acme/net.html"
    mine.parent.mkdir()
    mine.write_text("mine")
    before = contents(out)
    with refuses(vitzoo.InvalidOption, "networks/acme/net.html", "--force"):
        full(out)
    assert contents(out) == before


def test_the_marker_removes_no_file_elsewhere(core, out, tmp_path):
    core(out)
    other = tmp_path / "other.txt"
    other.write_text("")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    table = json.loads(out.joinpath(MARKER).read_text())
    table["files"] |= {
        "../other.txt": empty,
        str(other): empty,
        "networks/../../other.txt": empty,
        "assets/..": empty,
    }
    out.joinpath(MARKER).write_text(json.dumps(table))
    assert core(out).removed == 0
    assert other.exists()


def test_an_empty_folder_is_used_and_a_file_refused(core, out, tmp_path):
    out.mkdir()
    assert core(out).index == out / "index.html"
    file = tmp_path / "file"
    file.write_text("mine")
    for force in (False, True):
        with refuses(vitzoo.InvalidOption, file, "is a file", "folder"):
            core(file, force=force)
        with refuses(vitzoo.StoreError, file / "below", "cannot write", "folder"):
            core(file / "below", force=force)
    assert file.read_text() == "mine"


def test_a_run_that_is_cut_short_is_continued(core, out, monkeypatch):
    """The disk is full after some pages: the next run knows them as pages of the site."""
    whole, written = files.write, []

    def full_disk(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) > 9:
            raise OSError(28, "No space left on device")
        whole(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", full_disk)
        with refuses(vitzoo.StoreError, out, "No space left on device", "make room"):
            core(out)
    assert 0 < len(contents(out)) < 11
    assert not out.joinpath("index.html").exists()  # it is written last
    site = core(out)
    assert len(contents(out)) == site.files + 1


@pytest.mark.parametrize("before", [False, True])
def test_what_a_killed_run_left_is_removed(core, out, before):
    """Right after it, too, and if it was killed before its first file was whole."""
    if before:
        core(out)
    out.mkdir(exist_ok=True)
    for path in (MARKER, "index.html", "assets/style.css") if before else (MARKER,):
        (out / path).with_name(f".{Path(path).name}.vitzoo-site-77").write_text("half")
    kept = [out / ".mine.html.vitzoo-site-77", out / "assets" / ".DS_Store"] if before else []
    for path in kept:
        path.write_text("mine")
    site = core(out)
    hidden = {path for path in out.rglob(".*") if path.name != MARKER}
    assert hidden == {*kept}
    assert len(contents(out)) == site.files + 1 + len(kept)


def test_plugins_of_hooks_are_imported_and_shown(install, monkeypatch, out):
    monkeypatch.setenv("VITZOO_PLUGINS", "globex")
    module = GLOBEX["globex/plugin.py"].replace('source="made up"', 'source="s", builder=late')
    install("globex-parts", "globex = globex.plugin", GLOBEX | {"globex/plugin.py": module})
    assert {info.namespace: info.state for info in vitzoo.plugins()}["globex"] == "lazy"
    write_site(out)
    page = out.joinpath("networks/globex/net.html").read_text()
    assert ">globex.plugin:late<" in page  # the function itself would be written with its address


BROKEN = {
    "manifest": ("acme:registry.toml", {"acme/registry.toml": "api = 1\nvariants = 7"}),
    "module": ("acme.plugin", {"acme/__init__.py": "", "acme/plugin.py": "raise OSError('gone')"}),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_plugin_that_fails_is_named_and_the_site_is_written(install, monkeypatch, run, out, kind):
    monkeypatch.setenv("VITZOO_PLUGINS", "acme,site")
    value, files = BROKEN[kind]
    install("acme-parts", f"acme = {value}", UNTOUCHABLE | files)
    code, printed, err = run("site", out, "--json")
    assert code == 0
    assert "plugin 'acme' has failed" in err
    (row,) = json.loads(printed)
    assert row["variants"] == len(vitzoo.variants())
    assert [info["namespace"] for info in row["failed"]] == ["acme"]
    assert out.joinpath("networks/vit_b16.html").exists()
    assert not out.joinpath("networks/acme").exists()
