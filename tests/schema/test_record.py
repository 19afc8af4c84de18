"""Entries are data classes that are copied quickly."""

from __future__ import annotations

from dataclasses import replace

import pytest

import vitzoo
from internals import Contribution
from vitzoo import Preprocessing, Weights

VARIANT = vitzoo.describe("vit_b16")


@pytest.mark.parametrize("row", [VARIANT, VARIANT.spec, VARIANT.weights[0]], ids=type)
def test_a_copy_with_other_values_is_as_of_replace(row):
    before = dict(vars(row))
    for field in before:
        changed = row.with_values(**{field: "other"})
        assert changed == replace(row, **{field: "other"})
        assert type(changed) is type(row)
    assert vars(row) == before
    assert row.with_values() is not row


def test_classes_with_equal_values_differ():
    one = vitzoo.Head("flat", "acme:Flat", "a head")
    assert one == vitzoo.Head("flat", "acme:Flat", "a head")
    assert one != vitzoo.Pool("flat", "acme:Flat", "a head")
    assert one != Contribution("flat", "acme:Flat", "a head")
    assert Weights("a") != Preprocessing()
    with pytest.raises(AttributeError):
        one.name = "other"
