"""The pages of the families: tables up to date, snippets that run, none forgotten."""

import re
import runpy
from pathlib import Path

import pytest

import vitzoo

ROOT = Path(__file__).parents[1]
TOOL = runpy.run_path(str(ROOT / "tests" / "update_families.py"))
PAGES = sorted(path for path in TOOL["PAGES"].glob("*.md") if path.name != "README.md")
IDS = [path.stem for path in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_tables_are_those_of_the_registry(page):
    text = page.read_text()
    assert TOOL["filled"](text) == text, TOOL["BY_HAND"]
    assert "<!-- weights: " in text


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_snippets_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    scope = {}
    for block in found:
        exec(compile(block, str(page), "exec"), scope)


def test_every_namespace_with_weights_has_a_page():
    spaces = {v.namespace for v in vitzoo.variants() if v.weights}
    written = " ".join(
        re.findall(r"<!-- weights: (.+?) -->", "".join(p.read_text() for p in PAGES))
    )
    assert spaces <= set(written.split())


def test_the_index_lists_every_page():
    index = TOOL["PAGES"].joinpath("README.md").read_text()
    assert all(f"]({page.name})" in index for page in PAGES)


def test_the_documentations_index_has_all_pages_in_one_place():
    index = (ROOT / "docs" / "index.md").read_text()
    families = index.partition("\n## Families\n")[2].partition("\n## ")[0]
    for page in PAGES:
        assert index.count(f"](families/{page.name})") == 1
        assert f"](families/{page.name})" in families


def test_a_namespace_that_is_not_installed_is_an_error():
    with pytest.raises(SystemExit, match="no namespace of"):
        TOOL["rows"](["nobody"])


def test_patterns_choose_variants():
    rows = TOOL["rows"](["core", "vit_digits"])
    assert len(rows) == 1
    assert rows[0].startswith("| `vit_digits` | ")
    assert len(TOOL["rows"](["core"])) > len(TOOL["rows"](["core", "vit_b*"])) > 1
