"""The tables of docs/choosing.md are the output of their commands."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import vitzoo

UPDATE = runpy.run_path(str(Path(__file__).with_name("update_choosing.py")))

pytestmark = pytest.mark.docs


def test_every_table_is_the_output_of_its_command():
    page = UPDATE["PAGE"].read_text(encoding="utf-8")
    assert len(UPDATE["COMMAND"].findall(page)) == page.count("\n$ vitzoo ") == 5
    assert page == UPDATE["filled"](page), UPDATE["BY_HAND"]


def test_a_changed_digit_is_found():
    page = UPDATE["PAGE"].read_text(encoding="utf-8")
    assert page.count("83.08") > 1
    assert UPDATE["filled"](page.replace("83.08", "83.09")) == page


def test_what_the_page_names_is_in_its_tables():
    """A network that a section names stands in the output above it, last if the text says so."""
    page = UPDATE["PAGE"].read_text(encoding="utf-8")
    registered = {variant.name for variant in vitzoo.variants()}
    start, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    last = 0
    for section in sections:
        _, output, text = section.split("```")
        table = output.partition("\nname ")[2]
        shown = [line.split()[0] for line in table.splitlines()[1:]]
        named = [name for name in re.findall(r"`([\w/]+)`", text) if name in registered]
        assert set(named) <= set(shown)
        if "The last line" in text:
            last += 1
            assert re.search(r"The last line .*?: `(.+?)`", " ".join(text.split()))[1] == shown[-1]
    assert last == 3
    assert set(re.findall(r"`(\w+/\w+)`", start)) <= registered


def test_the_suggestions_allow_commercial_use_and_one_is_the_most_accurate():
    start = UPDATE["PAGE"].read_text(encoding="utf-8").partition("\n## ")[0]
    weights = {v.name: v.weights for v in vitzoo.variants() if f"`{v.name}`" in start}
    assert len(weights) > 6
    licenses = {w.license for rows in weights.values() for w in rows if w.default}
    assert licenses <= {"Apache-2.0", "MIT"}
    best = max(
        w.top1 for v in vitzoo.variants() for w in v.weights if w.top1 and w.evaluation_source
    )
    (name, stated) = re.search(r"most accurate .*?`(.+?)` \((.+?) %\)", start).groups()
    assert float(stated) == round(best, 2)
    assert best in {w.top1 for w in weights[name]}
