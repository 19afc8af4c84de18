"""`vitzoo site`: its output, its options and its errors."""

import json

import pytest

from helpers import says


@pytest.fixture(autouse=True)
def _core(monkeypatch, new_registry):
    monkeypatch.setenv("VITZOO_PLUGINS", "site")
    new_registry()


def test_site_prints_what_it_wrote(run, tmp_path):
    code, out, err = run("site", tmp_path / "out")
    assert (code, err) == (0, "")
    row = dict(zip(*(line.split("\t") for line in out.splitlines()), strict=True))
    assert row["index"] == str(tmp_path / "out" / "index.html")
    _, out, _ = run("list", "-q")
    assert int(row["variants"]) == len(out.splitlines())
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert int(row["files"]) == len(files) - 1
    _, out, _ = run("site", tmp_path / "out", "--json", "--title", "Models of Acme")
    assert json.loads(out)[0]["removed"] == 0
    assert "<h1>Models of Acme</h1>" in (tmp_path / "out" / "index.html").read_text()


def test_site_refuses_a_folder_of_the_user(run, tmp_path):
    tmp_path.joinpath("mine.txt").write_text("")
    code, out, err = run("site", tmp_path)
    assert (code, out) == (2, "")
    says(err, tmp_path, "mine.txt", "--force")
    assert run("site", tmp_path, "--force")[0] == 0
    assert tmp_path.joinpath("mine.txt").exists()
    page = tmp_path / "networks" / "vit_ti16.html"
    page.write_text("changed")
    code, _, err = run("site", tmp_path)  # a page of the site is written anew
    assert (code, err, page.read_text() == "changed") == (0, "", False)
