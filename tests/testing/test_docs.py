"""docs/testing.md is true: its examples run, its messages and its names of tests are the kit's."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from vitzoo import testing

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
TEXT = PAGE.read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)


def test_the_example_passes_and_fails_as_it_is_said(monkeypatch):
    module = types.ModuleType("documented")  # classes are pickled by the name of their module
    monkeypatch.setitem(sys.modules, "documented", module)
    (code,), (said,) = blocks("python"), blocks("text")
    exec(compile(code, str(PAGE), "exec"), vars(module))
    with pytest.raises(AssertionError) as caught:
        exec(code.replace(" or not self.num_classes", ""), vars(module))
    assert str(caught.value) == said.strip()


def test_the_set_up_is_complete(acme, author):
    conftest, suite = blocks("py")[:2]
    part = blocks("python")[0].partition("\n\n\ncheck_head")[0]
    manifest = acme.manifest.partition("\n[variants")[0]
    files = {"acme_vit/registry.toml": manifest, "acme_vit/parts.py": part}
    said = author("-k", "head or loads", conftest=conftest, suite=suite, files=files)
    assert "TestAcme::test_plugin_loads PASSED" in said
    assert "TestAcme::test_head_reset[acme/cosine] PASSED" in said
    assert " failed" not in said


def test_every_test_is_documented_and_every_documented_one_is_there():
    tests = {name for name in vars(testing.PluginTests) if name.startswith("test_")}
    rows = [row.split("|")[1] for row in TEXT.splitlines() if row.startswith("| `test_")]
    named = set(re.findall(r"\btest_\w+", TEXT.partition("## What is tested")[2]))
    named -= {"test_our_entry", "test_our_weights_load"}  # of examples
    for row in rows:
        first, *others = re.findall(r"`(\w+)`", row)
        stem = max((t for t in tests if first.startswith(t.rpartition("_")[0])), key=len)
        prefix = next(k for k in KINDS if stem.startswith(k))
        named |= {prefix + other for other in others}
    assert tests - named <= {f"{kind}_protocol" for kind in KINDS}
    assert named <= tests


KINDS = (
    "test_plugin",
    "test_part",
    "test_patch_embedder",
    "test_position_embedding",
    "test_pool",
    "test_head",
    "test_drop_path_policy",
    "test_checkpoint_format",
    "test_variant",
    "test_weights",
)


def test_every_public_name_is_documented():
    for name in testing.__all__:
        assert re.search(rf"\b{name}\b", TEXT), name
