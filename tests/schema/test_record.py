"""`Record` compares, hashes and shows as the methods that `@dataclass` writes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, make_dataclass, replace

import pytest

import vitzoo
from vitzoo.schema.record import Record
from vitzoo.schema.rows import Contribution, Preprocessing, Weights

VARIANT = vitzoo.describe("vit_b16")


@dataclass(frozen=True, eq=False, repr=False)
class Pair(Record):
    first: int
    second: tuple[str, ...] = ()


@dataclass(frozen=True)
class Usual:
    first: int
    second: tuple[str, ...] = ()


Usual.__qualname__ = "Pair"


@pytest.mark.parametrize("values", [(1,), (1, ("a", "b")), (0, ("'",))])
def test_records_are_as_data_classes(values):
    ours, usual = Pair(*values), Usual(*values)
    assert (repr(ours), hash(ours), asdict(ours)) == (repr(usual), hash(usual), asdict(usual))
    assert ours == Pair(*values)
    assert ours != replace(ours, first=7)
    assert ours != usual
    assert not isinstance(ours.__eq__(usual), bool)


@pytest.mark.parametrize("row", [VARIANT, VARIANT.spec, *VARIANT.weights[:2]], ids=type)
def test_entries_are_as_data_classes(row):
    usual = make_dataclass(type(row).__name__, list(vars(row)), frozen=True)(**vars(row))
    assert hash(row) == hash(usual)
    assert Record.__repr__(row) == repr(usual)  # a variant has a shorter text
    assert row == replace(row)
    assert row != replace(row, **{"source" if hasattr(row, "source") else "in_chans": 1})


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
