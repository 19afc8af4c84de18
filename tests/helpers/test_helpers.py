"""The helpers that decide whether other tests pass can fail themselves."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import draws
from helpers import SPEC, Library, photographs, refuses, says
from limited import run_limited
from tables import cases

TEXT = "net.toml: depth must be a number from 1, got -2; drop num_classes=7 from blocks.1.attn"


def test_the_spec_is_that_of_the_fixture(small):
    assert small == SPEC


@cases("part", ["net.toml", "depth", "1", -2, "-2;", "num_classes=", "num_classes=7", "blocks.1."])
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


def test_the_photographs_are_those_of_scikit_learn():
    from sklearn.datasets import load_sample_images

    for photo, expected in zip(photographs(), load_sample_images().images, strict=True):
        assert np.array_equal(np.asarray(photo), expected)


def test_a_library_is_imported_when_a_name_is_read(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    library = Library("colorsys")
    assert not hasattr(library, "__wrapped__")
    assert "colorsys" not in sys.modules
    assert library.rgb_to_hsv(1, 0, 0) == (0, 1, 1)
    assert "colorsys" in sys.modules


def test_numbers_from_the_pool_have_the_distribution_and_never_repeat():
    with draws.quick_draws():
        torch.manual_seed(1)
        normal, uniform = torch.empty(3_000, 2_000).normal_(1, 0.2), torch.empty(400, 400)
        again, other = uniform.uniform_(-2, 4).clone(), uniform.uniform_(-2, 4)
        torch.manual_seed(1)
        repeated = torch.empty(3_000, 2_000).normal_(std=0.2, mean=1)
    assert torch.equal(normal, repeated)
    assert normal.mean() == pytest.approx(1, abs=1e-3)
    assert normal.std() == pytest.approx(0.2, abs=1e-3)
    assert len(torch.unique(normal[:, :4], dim=0)) == 3_000
    assert (again == other).sum() < 10
    assert -2 <= again.min() < -1.99
    assert 3.99 < again.max() <= 4


READS = """
import os, time
from vitzoo.errors import ImageError

def read(argument):
    if argument == "refused":
        raise ImageError("no")
    if argument == "freed":
        bytes(range(256)) * 2**20
    elif argument != "7":
        exec(argument)
    return 7
"""


@pytest.mark.fuzz
def test_a_limited_child_returns_values_errors_and_memory():
    found = run_limited(READS, ["7", "refused", "freed", "7"], memory=2**29)
    assert [(one.kind, one.text) for one in found] == [
        *(("value", "7"), ("ImageError", "no"), ("value", "7"), ("value", "7"))
    ]
    few, _, much, after = (one.memory for one in found)
    assert few < 2**26 < 2**27 < much < 2**28 + 2**26
    assert after < 2**26


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("argument", "why"),
    [
        ("'freed'; bytes(range(256)) * 2**19", "MiB"),
        ("many = [bytes(range(256)) * 2**17 for _ in range(100)]", "more than 128.0 MiB"),
        ("while True: pass", "more than 2 s"),
        ("time.sleep(100)", "more than 2 s"),
        ("os.abort()", "-6"),
        ("{}['key']", "KeyError"),
        ("raise SystemExit", "SystemExit"),
    ],
)
def test_a_limited_child_beyond_its_limits(argument, why):
    with pytest.raises(AssertionError) as raised:
        run_limited(READS, ["7", argument], memory=2**26, seconds=2)
    says(str(raised.value), why)
    assert argument in str(raised.value)


class Item:
    """A test as pytest collects it."""

    def __init__(self, nodeid, *markers):
        self.nodeid, self.markers = nodeid, {mark.name: mark for mark in markers}

    def get_closest_marker(self, name):
        return self.markers.get(name)

    def add_marker(self, mark):
        self.markers[mark.name] = mark.mark


def test_ci_takes_the_first_and_every_nth_test_of_a_function(request):
    path = str(Path(__file__).parents[2] / "conftest.py")
    conftest = request.config.pluginmanager.get_plugin(path)
    third, long = pytest.mark.one_in(3).mark, pytest.mark.long.mark
    items = [Item(f"a.py::of_all[{i}]") for i in range(5)]
    items += [Item(f"a.py::of_three[{i}]", third) for i in range(5)]
    items += [Item("a.py::Class::of_three[0]", third)]
    items += [Item(f"{name}.py::Class::test_plugin_worker", third) for name in "abcd"]
    items += [Item(f"a.py::by_night[{i}]", third, *[long] * (i % 2 == 0)) for i in range(8)]
    conftest.keep_one_in(items)
    kept = [item.nodeid for item in items if "long" not in item.markers]
    assert kept == [
        *(f"a.py::of_all[{i}]" for i in range(5)),
        *("a.py::of_three[0]", "a.py::of_three[3]", "a.py::Class::of_three[0]"),
        *("a.py::Class::test_plugin_worker", "d.py::Class::test_plugin_worker"),
        *("a.py::by_night[1]", "a.py::by_night[7]"),
    ]
