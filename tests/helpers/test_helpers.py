"""The helpers that decide whether other tests pass can fail themselves."""

import pytest
import torch

import draws
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
