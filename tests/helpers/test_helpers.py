"""The helpers that decide whether other tests pass can fail themselves."""

import pytest

from helpers import SPEC, refuses, says

TEXT = "net.toml: depth must be a number from 1, got -2; drop num_classes=7 from blocks.1.attn"


def test_the_spec_is_that_of_the_fixture(small):
    assert small == SPEC


@pytest.mark.parametrize(
    "part", ["net.toml", "depth", "1", -2, "-2;", "num_classes=", "num_classes=7", "blocks.1."]
)
def test_a_part_that_is_said(part):
    says(TEXT, part)
    says(TEXT, "depth", part)


@pytest.mark.parametrize("part", ["net", "2", "-1", "dept", "number from 2", "classes", "blocks.1"])
def test_a_part_that_is_not_said(part):
    with pytest.raises(AssertionError, match="not in"):
        says(TEXT, part)
    with pytest.raises(AssertionError, match="not in"):
        says(TEXT, "depth", part)
    with pytest.raises(AssertionError, match="not in"), refuses(ValueError, "depth", part):
        raise ValueError(TEXT)


def test_a_check_without_parts_is_no_check():
    with pytest.raises(AssertionError):
        says(TEXT)
