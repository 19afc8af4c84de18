"""The tables of docs/choosing.md are the output of their commands."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

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
