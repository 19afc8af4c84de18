"""The policy `deit/power`: rates against the formula, its two ends, options, training."""

from __future__ import annotations

import pytest
import torch

import vitzoo
from vitzoo.errors import InvalidOption, UnknownOption


@pytest.fixture
def rates(small):
    """The rates of the blocks of a network with a policy, `deit/power` unless another is named."""

    def build(depth=12, **policy):
        policy = {"name": "deit/power"} | policy
        model = vitzoo.create(small | {"depth": depth}, drop_path=policy, device="meta")
        return [block.drop_path.rate for block in model.blocks]

    return build


@pytest.mark.parametrize("exponent", [0.5, 2, 3.5])
def test_the_rates_are_those_of_the_formula(rates, exponent):
    expected = [0.4 * (block / 11) ** exponent for block in range(12)]
    assert rates(rate=0.4, exponent=exponent) == pytest.approx(expected, abs=1e-15)


def test_the_exponent_is_two_unless_it_is_given(rates):
    assert rates(3, rate=0.4) == pytest.approx([0, 0.1, 0.4])


@pytest.mark.parametrize(("exponent", "name"), [(1, "linear"), (0, "constant")])
def test_its_ends_are_the_rules_of_the_core(rates, exponent, name):
    expected = rates(name=name, rate=0.3)
    assert rates(rate=0.3, exponent=exponent) == pytest.approx(expected, abs=1e-15)


def test_a_single_block_is_the_first_one(rates):
    assert rates(1, rate=0.3) == [0.0]
    assert rates(1, rate=0.3, exponent=0) == [0.3]


@pytest.mark.parametrize("exponent", [-1, -0.001, float("nan"), float("inf"), True, "2"])
def test_an_exponent_that_is_none_is_refused(rates, exponent):
    with pytest.raises(InvalidOption) as caught:
        rates(rate=0.1, exponent=exponent)
    assert str(caught.value).endswith(
        f"takes an exponent of at least 0 (1 is linear, 0 constant), got {exponent!r}"
    )


@pytest.mark.parametrize("rate", [1, -0.1, float("nan"), "0.1", True])
def test_a_rate_that_is_none_is_refused(rates, rate):
    with pytest.raises(InvalidOption, match=r"drop_path rate.*0.*1"):
        rates(rate=rate)


def test_an_exponent_too_large_for_a_float_gives_zeros(rates):
    assert rates(3, rate=0.5, exponent=1e300) == [0.0, 0.0, 0.5]


def test_other_options_are_refused(rates):
    with pytest.raises(UnknownOption, match="did you mean 'exponent'"):
        rates(rate=0.1, exponents=2)
    with pytest.raises(InvalidOption, match=r"needs.*'rate'"):
        rates()


def test_it_takes_a_mode_and_stands_in_the_spec(small, tmp_path):
    policy = {"name": "deit/power", "rate": 0.9, "exponent": 3, "mode": "subset"}
    model = vitzoo.create(small | {"depth": 3}, drop_path=policy)
    model.train()(torch.zeros(4, 3, 32, 32)).sum().backward()
    vitzoo.save(model, tmp_path / "net.safetensors")
    again = vitzoo.create(tmp_path / "net.safetensors")
    assert again.spec == model.spec
    assert [type(block.drop_path).__name__ for block in again.blocks] == ["SubsetDropPath"] * 3
    assert again.blocks[1].drop_path.rate == pytest.approx(0.9 / 8)
