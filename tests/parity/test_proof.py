"""The suite proves itself: a network that differs in one fact fails the comparison.

A strict state-dict load accepts each of these networks, so only the numbers can tell.
"""

import pytest

pytestmark = pytest.mark.parity

# Seen by at least one set of weights: under timm's own, small initialisation eps moves the logits
# 8e-3 and tanh GELU 1.5e-4; under the scaled weights it is 4e-4 and 7e-4.
FLIPS = {
    "tanh GELU": {"block": {"activation": "gelu_tanh"}},
    "norm eps 1e-5": {"block": {"norm_eps": 1e-5}},
    "mean pooling": {"pool": "mean"},
    "qk scale": {"block": {"qk_scale": 0.126}},  # 64 ** -0.5 is 0.125
    "quick GELU": {"block": {"activation": "quick_gelu"}},
}


def fails(parity, weights, options):
    twins = parity.make_twins("vit_ti16", weights, vitzoo_options=options)
    try:
        parity.assert_same_network(twins.reference, twins.model, twins.images)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("flip", FLIPS)
def test_a_flipped_fact_is_seen(parity, flip):
    assert any(fails(parity, weights, FLIPS[flip]) for weights in ("own", "scaled"))


def test_without_a_flip_nothing_is_seen(parity):
    assert not any(fails(parity, weights, {}) for weights in ("own", "scaled"))


def test_one_wrong_element_is_seen(parity):
    twins = parity.make_twins("vit_ti16", "own")
    expected = twins.reference(twins.images).detach()
    wrong = expected.clone()
    wrong[1, 999] += 1e-3
    with pytest.raises(AssertionError, match=r"Mismatched elements: 1 / 2000"):
        parity.assert_same(wrong, expected)
