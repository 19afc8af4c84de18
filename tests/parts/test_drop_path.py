"""Drop path: expectation, whole samples, the rate of each block."""

import math

import pytest
import torch

import vitzoo
from helpers import SMALL, message, randn, says
from tables import cases
from vitzoo.parts import MaskDropPath, SubsetDropPath, drop_path as policies


def ones(x):
    return torch.ones_like(x)


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.9])
def test_drop_path_expectation(rate):
    torch.manual_seed(0)
    draws = 40_000
    result = MaskDropPath(rate=rate)(torch.zeros(draws, 1, 1), ones)
    sigma = math.sqrt(rate / (1 - rate) / draws)
    assert abs(result.mean().item() - 1) < 5 * sigma
    dropped = (result == 0).float().mean().item()
    assert abs(dropped - rate) < 5 * math.sqrt(rate * (1 - rate) / draws)


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_drop_path_drops_whole_samples(rate):
    torch.manual_seed(0)
    x = randn(64, 5, 3)
    branch = randn(64, 5, 3, seed=1)
    result = MaskDropPath(rate=rate)(x, lambda _: branch)
    dropped = (result == x).flatten(1).all(1)
    assert 0 < dropped.sum() < 64
    kept = x + branch / (1 - rate)
    torch.testing.assert_close(result[~dropped], kept[~dropped], rtol=0, atol=1e-5)


def test_drop_path_draws_for_each_branch():
    torch.manual_seed(0)
    part = MaskDropPath(rate=0.5)
    x = torch.zeros(64, 1, 1)
    assert not torch.equal(part(x, ones), part(x, ones))


def test_drop_path_is_off_in_evaluation():
    part = MaskDropPath(rate=0.9).eval()
    x = randn(8, 5, 3)
    assert torch.equal(part(x, torch.sin), x + x.sin())


def test_drop_path_of_rate_zero_is_a_plain_residual():
    part = MaskDropPath().train()
    x = randn(8, 5, 3)
    assert part.rate == 0
    assert torch.equal(part(x, torch.sin), x + x.sin())


@pytest.mark.slow
@cases("rate", [0.1, 0.4, 0.9])
@cases("batch", [1, 3, 8])
def test_subset_expectation_and_variance_of_each_sample(rate, batch):
    torch.manual_seed(0)
    part, draws = SubsetDropPath(rate=rate), 4_000
    x = torch.zeros(batch, 1, 1)
    results = torch.stack([part(x, ones).flatten() for _ in range(draws)])  # (draws, b)
    variance = rate / (1 - rate)
    assert (results.mean(0) - 1).abs().max() < 5 * math.sqrt(variance / draws)
    spread = math.sqrt((1 / rate / (1 - rate) - 4) / draws) + 1e-3  # of a two-valued variance
    assert (results.var(0) / variance - 1).abs().max() < 5 * spread


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_subset_adds_the_scaled_branch_to_whole_samples(rate):
    torch.manual_seed(0)
    x = randn(64, 5, 3)
    result = SubsetDropPath(rate=rate)(x, lambda chosen: chosen.sin())
    dropped = (result == x).flatten(1).all(1)
    assert int(dropped.sum()) in (math.floor(64 * rate), math.ceil(64 * rate))
    kept = x + x.sin() / (1 - rate)
    torch.testing.assert_close(result[~dropped], kept[~dropped], rtol=0, atol=1e-6)


def test_subset_computes_the_kept_samples_only():
    torch.manual_seed(0)
    seen = []
    SubsetDropPath(rate=0.75)(randn(8, 5, 3), lambda chosen: seen.append(len(chosen)) or chosen)
    assert seen == [2]


def test_subset_has_the_gradient_of_what_it_computed():
    torch.manual_seed(0)
    part = SubsetDropPath(rate=0.5)
    x = randn(6, 2, 3).requires_grad_()
    result = part(x, torch.sin)
    kept = (result != x).flatten(1).any(1)
    result.sum().backward()
    expected = torch.where(kept[:, None, None], 1 + 2 * x.detach().cos(), 1.0)
    torch.testing.assert_close(x.grad, expected)


def test_subset_is_off_in_evaluation_and_at_rate_zero():
    x = randn(8, 5, 3)
    for part in (SubsetDropPath(rate=0.9).eval(), SubsetDropPath().train()):
        assert torch.equal(part(x, torch.sin), x + x.sin())


def test_subset_under_autocast_keeps_the_type_of_the_residual():
    part = SubsetDropPath(rate=0.5)
    assert part(randn(8, 5, 3), lambda chosen: chosen.bfloat16()).dtype == torch.float32


def test_a_network_in_mode_subset_trains():
    torch.manual_seed(0)
    model = vitzoo.create(SMALL, drop_path={"name": "linear", "rate": 0.4, "mode": "subset"})
    assert [type(block.drop_path) for block in model.blocks] == [SubsetDropPath] * 3
    model(randn(8, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_an_unknown_mode():
    part = {"name": "linear", "rate": 0.1, "mode": "subst"}
    text = message(vitzoo.UnknownName, vitzoo.create, SMALL, drop_path=part)
    says(text, "drop_path mode", "'subst'", "'subset'")


@cases("depth", [1, 2, 3, 12, 24])
@cases("rate", [0, 0.1, 0.4, 0.99])
def test_linear_policy(depth, rate):
    expected = torch.linspace(0, rate, depth, dtype=torch.float64).tolist()
    assert policies.linear_rates(depth=depth, rate=rate) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("depth", [1, 12])
def test_constant_and_no_policy(depth):
    assert policies.constant_rates(depth=depth, rate=0.3) == (0.3,) * depth
    assert policies.zero_rates(depth=depth) == (0,) * depth


@pytest.mark.parametrize(
    ("asked", "rates"),
    [
        (None, [0, 0, 0]),
        (0.0, [0, 0, 0]),
        (0.4, [0, 0.2, 0.4]),
        ("none", [0, 0, 0]),
        ({"name": "linear", "rate": 0.2}, [0, 0.1, 0.2]),
        ({"name": "constant", "rate": 0.3}, [0.3, 0.3, 0.3]),
        ({"name": "constant", "rate": 0.3, "mode": "mask"}, [0.3, 0.3, 0.3]),
    ],
)
def test_each_block_gets_its_rate(asked, rates):
    model = vitzoo.create(SMALL, drop_path=asked)
    assert [block.drop_path.rate for block in model.blocks] == pytest.approx(rates)


@pytest.mark.parametrize(
    ("own", "asked", "kept"),
    [
        ({"name": "constant", "rate": 0.1}, {"rate": 0.2}, ("constant", {"rate": 0.2})),
        (
            {"name": "constant", "rate": 0.1},
            {"mode": "subset"},
            ("constant", {"rate": 0.1, "mode": "subset"}),
        ),
        (
            {"name": "linear", "rate": 0.1, "mode": "subset"},
            {"rate": 0.2},
            ("linear", {"rate": 0.2, "mode": "subset"}),
        ),
        ("none", {"rate": 0.2, "mode": "subset"}, ("linear", {"rate": 0.2, "mode": "subset"})),
        ({"name": "constant", "rate": 0.1}, 0.2, ("linear", {"rate": 0.2})),
    ],
    ids=str,
)
def test_options_without_a_name_change_the_policy_that_is_there(own, asked, kept):
    base = vitzoo.create({**SMALL, "drop_path": own}).spec
    chosen = vitzoo.create(base, drop_path=asked).spec.drop_path
    assert (chosen.name, dict(chosen.options)) == kept


def test_an_option_that_the_kept_policy_does_not_have():
    base = vitzoo.create({**SMALL, "drop_path": {"name": "constant", "rate": 0.1}}).spec
    text = message(vitzoo.errors.UnknownOption, vitzoo.create, base, drop_path={"rates": 0.2})
    says(text, "drop_path 'constant'", "'rates'", "'rate'")
    says(message(vitzoo.InvalidOption, vitzoo.create, base, drop_path={}), "'name'", "drop_path")


@cases("rate", [-0.1, 1, 1.5, math.nan, math.inf, True, False, "0.1", None])
@cases(
    "call",
    [
        lambda rate: policies.linear_rates(depth=3, rate=rate),
        lambda rate: policies.constant_rates(depth=3, rate=rate),
        lambda rate: MaskDropPath(rate=rate),
        lambda rate: SubsetDropPath(rate=rate),
    ],
)
def test_impossible_rate(rate, call):
    says(message(vitzoo.InvalidOption, call, rate), "drop_path rate", 0, 1, f"got {rate!r}")


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_impossible_rate_of_a_network(rate):
    text = message(vitzoo.InvalidOption, vitzoo.create, SMALL, drop_path=rate)
    says(text, "drop_path rate", 0, 1, f"got {rate!r}")


def test_a_policy_without_its_rate():
    text = message(vitzoo.InvalidOption, vitzoo.create, SMALL, drop_path="constant")
    says(text, "drop_path 'constant'", "'rate'", "{'name': ..., 'rate': ...}")


def test_the_size_of_a_subset_is_drawn_on_the_cpu():
    """Whatever torch's default device is: a GPU would have to be waited for."""
    found, x = [], randn(8, 5, 3)
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        with torch.device(device):
            found.append(SubsetDropPath(rate=0.5)(x, torch.sin))
    assert torch.equal(*found)
