"""Each check of pools fails for a pool with one error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitzoo import testing
from vitzoo.parts import AttentionPool, ClassPool, MeanPool, PrefixPool
from vitzoo.testing import check_pool

MODULE = testing.checks.modules


class Maximum(nn.Module):
    """A correct pool. The classes below add one error each."""

    norm_first = True

    def forward(self, tokens, num_prefix_tokens, grid_size):
        return tokens[:, num_prefix_tokens:].amax(1)


class NoSide(nn.Module):
    def forward(self, tokens, num_prefix_tokens, grid_size):
        return tokens[:, 0]


class WordForSide(Maximum):
    norm_first = "no"


class ReadsNothing(Maximum):
    reads = 0


class GivesHalf(Maximum):
    def forward(self, tokens, num_prefix_tokens, grid_size):
        return super().forward(tokens, num_prefix_tokens, grid_size)[:, ::2]


class StatesTwo(Maximum):
    tokens = 2


class Square(Maximum):
    def forward(self, tokens, num_prefix_tokens, grid_size):
        n = tokens.shape[1] - num_prefix_tokens
        side = int(n**0.5)
        if side * side != n:
            raise ValueError(n)
        return super().forward(tokens, num_prefix_tokens, grid_size)


class OldCall(Maximum):
    def forward(self, tokens):
        return tokens[:, 0]


class ReadsMore(ClassPool):
    def forward(self, tokens, num_prefix_tokens, grid_size):
        return tokens.mean(1)


class CountsTokens(ClassPool):
    def forward(self, tokens, num_prefix_tokens, grid_size):
        return tokens[:, 0] / tokens.shape[1]


class RemembersGrid(Maximum):
    def forward(self, tokens, num_prefix_tokens, grid_size):
        self.rows = getattr(self, "rows", grid_size[0])
        return super().forward(tokens, num_prefix_tokens, grid_size) * self.rows


class OtherWithoutGradients(Maximum):
    def forward(self, tokens, num_prefix_tokens, grid_size):
        found = super().forward(tokens, num_prefix_tokens, grid_size)
        return found if torch.is_grad_enabled() or tokens.shape[1] == 10 else 2 * found


class MixesSamples(Maximum):
    def forward(self, tokens, num_prefix_tokens, grid_size):
        found = super().forward(tokens, num_prefix_tokens, grid_size)
        return found - found.mean(0)


class NeedsMore(Maximum):
    def __init__(self, *, depth):
        super().__init__()


POOLS = testing.checks.pools


@pytest.mark.parametrize(
    ("check", "part", "words"),
    [
        (MODULE.check_protocol, NoSide, "NoSide lacks norm_first"),
        (POOLS.check_attributes, WordForSide, "norm_first is 'no'"),
        (POOLS.check_attributes, ReadsNothing, "reads is 0"),
        (POOLS.check_outputs, GivesHalf, "a 2x4 grid, it gives (2, 16), expected (2, 32)"),
        (POOLS.check_outputs, StatesTwo, "it gives (2, 32), expected (2, 2, 32)"),
        (POOLS.check_outputs, Square, "1 prefix tokens and a 2x4 grid: ValueError: 8"),
        (POOLS.check_outputs, OldCall, "TypeError: OldCall.forward() takes 2 positional"),
        (POOLS.check_reads, ReadsMore, "reads = 1, but other tokens change its result"),
        (POOLS.check_reads, CountsTokens, "its first 1 tokens alone, it gives other numbers"),
        (POOLS.check_network, RemembersGrid, "after set_input_size it differs"),
        (POOLS.check_network, OtherWithoutGradients, "without gradients"),
        (MODULE.check_instances, MixesSamples, "depends on the other samples"),
        (MODULE.check_constructor, NeedsMore, "but no value for depth"),
    ],
)
def test_a_broken_pool(blames, check, part, words):
    blames("pool", part, POOLS.Pool, check, words, check_pool)


def test_good_pools_pass():
    check_pool(Maximum)
    check_pool(MeanPool, norm_first=False)
    check_pool(PrefixPool, tokens=1)
    check_pool(AttentionPool, num_heads=4)
