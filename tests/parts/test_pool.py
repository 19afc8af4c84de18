"""Pools: which tokens they take."""

import pytest
import torch
from torch import nn

import vitzoo
from helpers import SMALL, message, randn, says
from vitzoo.parts.pool import ClassMeanPool, ClassPool, MeanPool


@pytest.mark.parametrize("prefix", [1, 2])
def test_class_pool_takes_the_first_token(prefix):
    tokens = randn(2, prefix + 4, 8)
    part = ClassPool()
    assert part.norm_first
    assert torch.equal(part(tokens), tokens[:, 0])


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_mean_pool_averages_patch_tokens(prefix):
    tokens = randn(2, prefix + 4, 8)
    result = MeanPool(num_prefix_tokens=prefix)(tokens)
    expected = sum(tokens[:, prefix + i] for i in range(4)) / 4
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("first", "norm", "fc_norm"), [(True, 1, 0), (False, 0, 1)])
def test_mean_pool_says_where_the_norm_acts(first, norm, fc_norm):
    model = vitzoo.create(SMALL, pool={"name": "mean", "norm_first": first})
    assert isinstance(model.norm, nn.LayerNorm) is bool(norm)
    assert isinstance(model.fc_norm, nn.LayerNorm) is bool(fc_norm)


@pytest.mark.parametrize("prefix", [1, 3])
def test_class_mean_pool_takes_the_first_token_and_the_mean_of_the_patches(prefix):
    tokens = randn(2, prefix + 4, 8)
    result = ClassMeanPool(num_prefix_tokens=prefix)(tokens)
    mean = sum(tokens[:, prefix + i] for i in range(4)) / 4
    assert torch.equal(result[:, 0], tokens[:, 0])
    torch.testing.assert_close(result[:, 1], mean, rtol=0, atol=1e-6)


def test_class_mean_pool_needs_a_class_token():
    spec = SMALL | {"class_token": False, "pool": "class_mean", "num_classes": 0}
    text = message(vitzoo.InvalidOption, vitzoo.create, spec)
    says(text, "pool 'class_mean'", "class_token", "false", "pool='mean'")


def test_class_pool_needs_a_class_token():
    text = message(vitzoo.InvalidOption, vitzoo.create, SMALL | {"class_token": False})
    says(text, "pool 'class'", "class_token", "false", "pool='mean'")
