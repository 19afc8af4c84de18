"""docs/testing.md is true: its examples run, it shows real messages, and it lists all tests."""

from __future__ import annotations

import re
import runpy
import sys
import types
from pathlib import Path

import pytest

from vitzoo import testing

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "testing.md"
TEXT = PAGE.read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_example_passes_and_fails_with_the_message_of_the_page(monkeypatch):
    module = types.ModuleType("documented")  # classes are pickled by the name of their module
    monkeypatch.setitem(sys.modules, "documented", module)
    (code,), (said,) = blocks("python"), blocks("text")
    exec(compile(code, str(PAGE), "exec"), vars(module))
    with pytest.raises(AssertionError) as caught:
        exec(code.replace(" or not self.num_classes", ""), vars(module))
    assert str(caught.value) == said.strip()


def test_one_file_is_the_whole_set_up(acme, author):
    part = blocks("python")[0].partition("\n\n\ncheck_head")[0]
    manifest = acme.manifest.partition("\n[variants")[0]
    files = {"acme_vit/registry.toml": manifest, "acme_vit/parts.py": part}
    said = author("-k", "head or loads", conftest="", suite=blocks("py")[0], files=files)
    assert "TestAcme::test_plugin_loads PASSED" in said
    assert "TestAcme::test_head_reset[acme/cosine] PASSED" in said
    assert " failed" not in said


def test_the_tables_of_tests_are_made_from_their_docstrings():
    tool = runpy.run_path(str(DOCS / "generate_checks.py"))
    assert tool["page"]() == TEXT, "docs/testing.md is out of date: python docs/generate_checks.py"
    tests = {name for name in vars(testing.PluginTests) if name.startswith("test_")}
    assert tests == set(re.findall(r"^\| `(test_\w+)` \|", TEXT, re.MULTILINE))


def test_tests_named_elsewhere_exist():
    named = set(re.findall(r"\btest_(?:plugin|part|variant|checkpoint_format)_\w+", TEXT))
    assert named <= vars(testing.PluginTests).keys()


def test_every_public_name_is_documented():
    for name in testing.__all__:
        assert re.search(rf"\b{name}\b", TEXT), name
