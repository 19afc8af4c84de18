"""Heads: shapes, formulas, features without classes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitzoo
from helpers import SMALL, message, randn, says
from tables import cases
from vitzoo.parts import CosineHead, NoHead, linear_head, mlp_head, tanh_head


@pytest.mark.parametrize(
    ("make", "options", "width", "parameters"),
    [
        (linear_head, {}, 8, 8 * 5 + 5),
        (tanh_head, {}, 8, 8 * 8 + 8 + 8 * 5 + 5),
        (tanh_head, {"hidden_dim": 20}, 20, 8 * 20 + 20 + 20 * 5 + 5),
        (mlp_head, {"hidden_dim": 3}, 3, 8 * 3 + 3 + 3 * 5 + 5),
        (CosineHead, {}, 8, 8 * 5 + 1),
        (CosineHead, {"width": 6, "logit_bias": True}, 6, 8 * 6 + 6 + 6 * 5 + 2),
    ],
)
def test_head_shapes(make, options, width, parameters):
    part = make(in_dim=8, num_classes=5, **options)
    x = randn(2, 8)
    assert (part.num_classes, part.pre_logits_dim) == (5, width)
    assert part(x).shape == (2, 5)
    assert part(x, pre_logits=True).shape == (2, width)
    assert sum(p.numel() for p in part.parameters()) == parameters

    fresh = part.reset(3)
    assert (fresh.num_classes, fresh.pre_logits_dim) == (3, width)
    assert fresh(x).shape == (2, 3)

    headless = part.reset(0)
    assert (headless.num_classes, headless.pre_logits_dim) == (0, width)
    assert headless(x).shape == (2, width)
    again = headless.reset(4)
    assert (again.num_classes, again.pre_logits_dim) == (4, width)
    assert again(x).shape == (2, 4)


def test_linear_head_formula():
    part = linear_head(in_dim=8, num_classes=5)
    nn.init.normal_(part.weight)
    x = randn(2, 8)
    assert torch.equal(part(x, pre_logits=True), x)
    torch.testing.assert_close(part(x), x @ part.weight.T + part.bias)


@torch.inference_mode()
@pytest.mark.parametrize(("make", "activation"), [(tanh_head, torch.tanh), (mlp_head, F.gelu)])
def test_pre_logits_head_formula(make, activation):
    torch.manual_seed(0)
    part = make(in_dim=8, num_classes=5)
    for parameter in part.parameters():
        nn.init.normal_(parameter)
    x = randn(2, 8)
    pre_logits = activation(x @ part.pre_logits.weight.T + part.pre_logits.bias)
    expected = pre_logits @ part.fc.weight.T + part.fc.bias
    torch.testing.assert_close(part(x, pre_logits=True), pre_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("make", [tanh_head, mlp_head])
def test_a_pre_logits_head_without_classes_keeps_its_layer(make):
    part = make(in_dim=8, num_classes=0)
    x = randn(2, 8)
    assert torch.equal(part(x), part(x, pre_logits=True))
    assert set(part.state_dict()) == {"pre_logits.weight", "pre_logits.bias"}


def test_no_head_gives_features():
    part = NoHead(in_dim=8)
    x = randn(2, 8)
    assert part(x) is x
    assert (part.num_classes, part.pre_logits_dim) == (0, 8)


def test_no_head_has_no_classes():
    text = message(vitzoo.InvalidOption, vitzoo.create, SMALL | {"head": "none"})
    says(text, "head 'none'", "num_classes=7", "another head")


@cases("width", [0, -4, 2.5, True])
@cases("head", ["tanh", "mlp"])
def test_impossible_width_of_a_head(head, width):
    spec = SMALL | {"head": {"name": head, "hidden_dim": width}}
    text = message(vitzoo.InvalidOption, vitzoo.create, spec)
    says(text, "hidden_dim", "positive", f"got {width!r}")
