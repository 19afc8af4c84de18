"""Each check of position embeddings fails for a part with one error."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from vitzoo import testing
from vitzoo.parts import LearnedPositions, NoPositions, RotaryPositions, SinCos2dPositions
from vitzoo.testing import check_position_embedding

MODULE = testing.checks.modules


class Learned(LearnedPositions):
    def __init__(self, *, num_prefix_tokens, embed_dim):
        super().__init__(num_prefix_tokens=num_prefix_tokens, embed_dim=embed_dim)


class FlatTable(Learned):
    def initial_table(self, grid_size):
        return super().initial_table(grid_size)[0]


class OneTable(Learned):
    def initial_table(self, grid_size):
        self.known = getattr(self, "known", {})
        return self.known.setdefault(grid_size, super().initial_table(grid_size))


class ForgetsPrefix(Learned):
    def forward(self, tokens, table, layer=0):
        return super().forward(tokens, table, layer)[:, self.num_prefix_tokens :]


class SwapsGrid(Learned):
    def resample(self, table, old, new):
        return super().resample(table, old, (new[0], new[0]))


class ChangesItsOwn(Learned):
    def resample(self, table, old, new):
        return super().resample(table, old, new) * 1.01


class SingleTable(Learned):
    def resample(self, table, old, new):
        return super().resample(table, old, new).float()


class NeedsData(Learned):
    def resample(self, table, old, new):
        return super().resample(table, old, new) * float(table.abs().sum() > 0)


class OutOfNothing(SinCos2dPositions):
    def resample(self, table, old, new):
        return torch.zeros(1)


class StaysThere(SinCos2dPositions):
    def to_grid(self, grid_size):
        pass


class OldAngles(RotaryPositions):
    def to_grid(self, grid_size):
        super().to_grid(grid_size[::-1])


class BackToSingle(SinCos2dPositions):
    def to_grid(self, grid_size):
        self.table = self._table(grid_size)

    def forward(self, tokens, table=None, layer=0):
        return super().forward(tokens.to(self.table.dtype), table, layer)


class CutsQueries(RotaryPositions):
    def rotate(self, x, layer=0):
        return super().rotate(x, layer)[:, :, :-1]


class NoAutocast(RotaryPositions):
    def rotate(self, x, layer=0):
        return super().rotate(x.float(), layer)


class BiasOfPatches(NoPositions):
    def __init__(self, *, grid_size, num_heads):
        super().__init__()
        self.heads, self.patches = num_heads, grid_size[0] * grid_size[1]

    def attention_bias(self, table, layer):
        return torch.zeros(self.heads, self.patches, self.patches)


class Queried(NoPositions):
    """A correct part: the bias is the product of the query and a learned vector for each key."""

    def __init__(self, *, num_prefix_tokens, embed_dim, num_heads):
        super().__init__()
        self.prefix, self.width, self.heads = num_prefix_tokens, embed_dim, num_heads

    def initial_table(self, grid_size):
        return torch.randn(1, self.prefix + grid_size[0] * grid_size[1], self.width)

    def resample(self, table, old, new):
        rows = self.prefix + new[0] * new[1]
        return table if old == new else table[:, :1].expand(1, rows, self.width).clone()

    def attention_bias(self, table, layer):
        keys = table[0].unflatten(1, (self.heads, -1))
        return partial(meet, keys)


def meet(keys, queries):
    return torch.einsum("bhqc,khc->bhqk", queries, keys)


class BiasOfQueries(Queried):
    def attention_bias(self, table, layer):
        return lambda queries: queries.sum(-1)


class MixesQueries(Queried):
    def attention_bias(self, table, layer):
        bias = super().attention_bias(table, layer)
        return lambda queries: bias(queries - queries.mean(2, keepdim=True))


class Silent(nn.Module):
    def initial_table(self, grid_size):
        return None


POSITIONS = testing.checks.positions


@pytest.mark.parametrize(
    ("check", "part", "words"),
    [
        (MODULE.check_protocol, Silent, "Silent lacks resample, to_grid"),
        (POSITIONS.check_table, FlatTable, "initial_table((2, 4)) returns a tensor (10, 32)"),
        (POSITIONS.check_table, OneTable, "two calls of initial_table((2, 4)) return the same"),
        (POSITIONS.check_tokens, ForgetsPrefix, "a 2x4 grid, (2, 9, 32) becomes (2, 8"),
        (POSITIONS.check_tokens, CutsQueries, "(2, 2, 8, 16) becomes (2, 2, 7, 16)"),
        (POSITIONS.check_tokens, NoAutocast, "rotate returns torch.float32 for bfloat16 queries"),
        (POSITIONS.check_tokens, BiasOfPatches, "attention bias of 9 tokens, it gives (2, 8, 8)"),
        (POSITIONS.check_tokens, BiasOfQueries, "attention bias of 8 tokens, it gives (2, 8)"),
        (POSITIONS.check_tokens, MixesQueries, "the bias of 1 of 8 queries changes"),
        (POSITIONS.check_resample, SwapsGrid, "(4, 2), it is (1, 18, 32), expected (1, 10"),
        (POSITIONS.check_resample, ChangesItsOwn, "resampled to its own grid, its table changes"),
        (POSITIONS.check_resample, SingleTable, "in torch.float64 on cpu, it is torch.float32"),
        (POSITIONS.check_resample, NeedsData, "in torch.float32 on meta: RuntimeError"),
        (POSITIONS.check_resample, OutOfNothing, "resample(None, ...) returns a table"),
        (POSITIONS.check_to_grid, StaysThere, "fails when moved from the grid (2, 4) to (5, 4)"),
        (POSITIONS.check_to_grid, OldAngles, "after to_grid((5, 4)) it differs from a part built"),
        (POSITIONS.check_to_grid, BackToSingle, "of a float64 part, results are torch.float32"),
    ],
)  # fmt: skip
def test_a_broken_position_embedding(blames, check, part, words):
    subject = POSITIONS.PositionEmbedding
    blames("position embedding", part, subject, check, words, check_position_embedding)


def test_good_position_embeddings_pass():
    check_position_embedding(Learned)
    check_position_embedding(Queried)
    check_position_embedding(RotaryPositions, absolute=True, temperature=50.0)
