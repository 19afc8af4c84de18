"""Pools: the tokens that they read."""

import pytest
import torch
from torch import nn

import vitzoo
from helpers import SMALL, message, randn, says
from vitzoo.parts import ClassMeanPool, ClassPool, MeanPool


@pytest.mark.parametrize("prefix", [1, 2])
def test_class_pool_takes_the_first_token(prefix):
    tokens = randn(2, prefix + 4, 8)
    part = ClassPool()
    assert part.norm_first
    assert torch.equal(part(tokens, prefix, (2, 2)), tokens[:, 0])


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_mean_pool_averages_patch_tokens(prefix):
    tokens = randn(2, prefix + 4, 8)
    result = MeanPool()(tokens, prefix, (2, 2))
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
    result = ClassMeanPool()(tokens, prefix, (2, 2))
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


class Corner(nn.Module):
    """Returns the patch in the last row and column, and records its arguments."""

    norm_first = True

    def forward(self, tokens, num_prefix_tokens, grid_size):
        self.called = tokens.shape[1], num_prefix_tokens, grid_size
        rows, columns = grid_size
        return tokens[:, num_prefix_tokens + rows * columns - 1]


def test_a_pool_gets_all_tokens_the_number_of_prefix_tokens_and_the_grid():
    pool = Corner()
    model = vitzoo.create(SMALL | {"num_registers": 2}, pool=pool).eval()
    for size, grid in (((32, 32), (4, 4)), ((24, 40), (3, 5))):
        model.set_input_size(size)
        images = randn(2, 3, *size)
        with torch.no_grad():
            features = model.features(images, ["norm", "pool"])
        assert pool.called == (3 + grid[0] * grid[1], 3, grid)
        assert torch.equal(features["pool"], features["norm"][:, -1])


class ScaledClass(nn.Module):
    """Returns the class token times a learned number; it gets only the class token."""

    norm_first = True
    reads = 1

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, tokens, num_prefix_tokens, grid_size):
        self.came_in = tokens.shape[1]
        return self.scale * tokens[:, 0]


def test_a_learned_pool_states_what_it_reads_too():
    pool = ScaledClass()
    model, images = vitzoo.create(SMALL, pool=pool).eval(), randn(2, 3, 32, 32)
    expected = model.forward_head(model.forward_features(images))
    assert pool.came_in == 17
    torch.testing.assert_close(model(images), expected, rtol=0, atol=2e-6)
    assert pool.came_in == 1
    assert "attn_pool.scale" in model.state_dict()
