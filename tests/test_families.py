"""The pages of the families: tables up to date, snippets that run, none forgotten."""

import re
import runpy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import vitzoo
from first_party import PLUGINS
from helpers import says

ROOT = Path(__file__).parents[1]
TOOL = runpy.run_path(str(ROOT / "tests" / "update_families.py"))
PAGES = sorted(path for path in TOOL["PAGES"].glob("*.md") if path.name != "README.md")
READMES = sorted({plugin.folder / "README.md" for plugin in PLUGINS})
IDS = [path.stem for path in PAGES]
FILLED = dict.fromkeys(PAGES, "weights") | dict.fromkeys(READMES, "contents")


@pytest.mark.docs
@pytest.mark.parametrize("page", FILLED, ids=[*IDS, *(path.parent.name for path in READMES)])
def test_tables_are_those_of_the_registry(page):
    text = page.read_text()
    assert TOOL["filled"](text) == text, TOOL["BY_HAND"]
    assert f"<!-- {FILLED[page]}: " in text
    assert page in TOOL["pages"]()


def test_each_network_is_in_a_table_of_one_page():
    """That of its family; the README of a plugin has the namespace."""
    names = {variant.name for variant in vitzoo.variants()}
    row, line = r"^\| `([\w/]+)` ", r"^Without published weights: .*"
    found = Counter()
    for text in (page.read_text() for page in FILLED):
        lines = " ".join(re.findall(line, text, re.MULTILINE))
        named = {*re.findall(row, text, re.MULTILINE), *re.findall(r"`(.+?)`", lines)}
        found.update(named & names)
    assert found == Counter(names)


def test_a_readme_has_the_namespaces_of_its_plugin():
    for page in READMES:
        spaces = {p.namespace for p in vitzoo.plugins() if p.distribution == page.parent.name}
        written = re.findall(r"<!-- contents: (.+?) -->", page.read_text())
        assert set(" ".join(written).split()) == spaces


@pytest.mark.docs
@pytest.mark.usefixtures("page_folder")
@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_snippets_run_in_order(page):
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
    families = index.partition("\n## Models\n")[2].partition("\n## ")[0]
    for page in PAGES:
        assert index.count(f"](families/{page.name})") == 1
        assert f"](families/{page.name})" in families


def test_a_namespace_that_is_not_installed_is_an_error():
    with pytest.raises(SystemExit, match="no namespace of"):
        TOOL["chosen"](["nobody"])


def test_patterns_choose_variants():
    (variant,) = TOOL["chosen"](["core", "vit_digits"])
    (row,) = TOOL["rows"]([variant])
    assert row.startswith("| `vit_digits` | ")
    assert len(TOOL["chosen"](["core"])) > len(TOOL["chosen"](["core", "vit_b*"])) > 1


def test_weights_stand_in_order():
    """The default first, whatever its accuracy and name."""
    given = {"a": (None, False), "b": (80.0, False), "c": (85.0, False), "d": (85.0, False)}
    given |= {"e": (82.0, True), "0": (None, False)}
    weights = [
        vitzoo.Weights(name, file="x", top1=top1, default=default)
        for name, (top1, default) in given.items()
    ]
    assert [w.name for w in TOOL["in_order"](weights)] == ["e", "c", "d", "b", "0", "a"]


def test_variants_without_weights_are_named():
    variants = TOOL["chosen"](["core", "vit_g*14", "vit_h14"])
    assert TOOL["without"](variants) == ["", "Without published weights: `vit_g14`, `vit_gg14`."]
    assert TOOL["without"](TOOL["chosen"](["core", "vit_h14"])) == []


def test_the_sources_of_top1_are_named():
    assert TOOL["sources"](TOOL["chosen"](["mae"])) == []
    (empty, timm, digits) = TOOL["sources"](TOOL["chosen"](["core"]))
    says(timm, "ImageNet-1k validation", "timm, results/results-imagenet", "aa4b5850")
    says(digits, "scikit-learn's digits")
    (empty, linear) = TOOL["sources"](TOOL["chosen"](["dinov2"]))
    says(linear, "linear probe", "README.md")
    assert empty == ""


def cells(space, name, weights):
    (row,) = TOOL["rows"](
        [
            replace(v, weights=(w,))
            for v in TOOL["chosen"]([space, name])
            for w in v.weights
            if w.name == weights
        ]
    )
    return [cell.strip() for cell in row.split("|")[1:-1]]


def test_an_embedding_is_not_said_to_be_classes():
    assert cells("clip", "vit_b32", "openai")[2] == "512 (embedding)"
    assert cells("clip", "vit_b32", "openai_ft_in1k")[2] == "1,000"
    assert cells("core", "vit_digits", "digits_v1")[2] == "10"
    assert cells("mae", "vit_b16", "mae")[2] == "none"


def test_of_several_files_in_a_repository_the_row_says_which():
    repo = "timm/vit_base_patch32_clip_224.openai"
    assert cells("clip", "vit_b32", "openai")[-1] == f"{repo}: `model.safetensors`"
    assert cells("clip", "vit_b32", "openai_full")[-1] == f"{repo}: `open_clip_model.safetensors`"
    assert cells("clip", "vit_b32", "laion2b")[-1] == "timm/vit_base_patch32_clip_224.laion2b"
