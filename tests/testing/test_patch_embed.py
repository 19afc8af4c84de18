"""Each check of patch embedders fails for a part with one error, and names a fix."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from vitzoo import testing
from vitzoo.errors import InvalidOption
from vitzoo.parts import ConvPatchEmbed, tiled
from vitzoo.testing import Sizes, check_patch_embedder


class Patches(ConvPatchEmbed):
    """A correct patch embedder. The classes below add one error each."""

    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)


class ByPosition(ConvPatchEmbed):
    def __init__(self, patch_size, in_chans, embed_dim):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)


class AnyKeyword(ConvPatchEmbed):
    def __init__(self, **options):
        super().__init__(**options)


class Needy(ConvPatchEmbed):
    def __init__(self, *, patch_size, in_chans, embed_dim, stride):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)


class Loose:
    def __init__(self, *, patch_size, in_chans, embed_dim):
        self.in_chans = in_chans


class WithoutChannels(nn.Module):
    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__()

    def grid(self, image_size):
        return image_size


class FixedChannels(Patches):
    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)
        self.in_chans = 3


class TransposedGrid(Patches):
    def grid(self, image_size):
        rows, columns = super().grid(image_size)
        return columns, rows + 1


class WidthFirst(Patches):
    def grid(self, image_size):
        return super().grid(image_size)[::-1]


class SquareGrid(Patches):
    def grid(self, image_size):
        side = int((image_size[0] * image_size[1]) ** 0.5) // self.patch_size[0]
        return side, side


class ListGrid(Patches):
    def grid(self, image_size):
        return list(super().grid(image_size))


class ColumnByColumn(Patches):
    def forward(self, images):
        return self.proj(images).transpose(2, 3).flatten(2).transpose(1, 2)


class UpsideDown(Patches):
    def forward(self, images):
        return self.proj(images).flip(2).flatten(2).transpose(1, 2)


class NoTokens(Patches):
    def grid(self, image_size):
        return image_size[0] // self.patch_size[0], image_size[1] // self.patch_size[1]

    def forward(self, images):
        x = nn.functional.adaptive_avg_pool2d(self.proj(images), self.grid(images.shape[2:]))
        return x.flatten(2).transpose(1, 2)


class OtherError(Patches):
    def grid(self, image_size):
        assert image_size[0] % self.patch_size[0] == 0, "bad size"
        return super().grid(image_size)


class WrongInput(Patches):
    input_conv = "conv.weight"


class WrongKernel(Patches):
    input_conv = "proj.bias"


class Detached(Patches):
    def forward(self, images):
        return super().forward(images).detach()


class IdleBias(Patches):
    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)
        self.shift = nn.Parameter(torch.zeros(embed_dim))


class InSingle(Patches):
    def forward(self, images):
        return super().forward(images).float()


class MixedTypes(Patches):
    def forward(self, images):
        return super().forward(images.float())


class CoarseInDouble(Patches):
    def forward(self, images):
        coarse = images.dtype == torch.float64
        return super().forward(images.half().to(images.dtype) if coarse else images)


class OnCpu(Patches):
    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)
        self.shift = nn.Parameter(torch.zeros(embed_dim, device="cpu"))

    def forward(self, images):
        return super().forward(images) + self.shift


class StaysOnMeta(Patches):
    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)
        self.register_buffer("shift", torch.ones(embed_dim), persistent=False)

    def forward(self, images):
        return super().forward(images) + self.shift


class ReadsValues(Patches):
    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)
        self.rate = torch.linspace(0, 1, 3)[1].item()


class Branches(Patches):
    def forward(self, images):
        x = super().forward(images)
        return x if images.sum() > 1e9 else x + 0


class Lambda(Patches):
    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)
        self.act = lambda x: x


class Sharing(nn.Module):
    table = nn.Parameter(torch.ones(32))

    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__()
        self.in_chans, self.patch_size = in_chans, patch_size
        self.proj = nn.Conv2d(in_chans, embed_dim, patch_size, patch_size)
        self.gain = Sharing.table

    def grid(self, image_size):
        return tiled(image_size, self.patch_size)

    def forward(self, images):
        return self.proj(images).flatten(2).transpose(1, 2) * self.gain


class EvenGrid(Patches):
    """Refuses odd grids, but has no `grid_multiple`."""

    def grid(self, image_size):
        rows, columns = super().grid(image_size)
        if rows % 2 or columns % 2:
            raise InvalidOption(f"{rows}x{columns} is odd")
        return rows, columns


class EvenGridSaid(EvenGrid):
    grid_multiple = (2, 2)


class FourByFour(EvenGrid):
    """Has a rule that no grid of default size meets."""

    grid_multiple = (4, 4)

    def grid(self, image_size):
        rows, columns = super().grid(image_size)
        if rows % 4 or columns % 4:
            raise InvalidOption(f"{rows}x{columns} is not 4x4")
        return rows, columns


class TooStrict(FourByFour):
    """States multiples of 4 and takes multiples of 8."""

    def grid(self, image_size):
        rows, columns = super().grid(image_size)
        if rows % 8 or columns % 8:
            raise InvalidOption(f"{rows}x{columns} is not 8x8")
        return rows, columns


class NotRefused(Patches):
    grid_multiple = (2, 2)

    def grid(self, image_size):
        return tiled(image_size, self.patch_size)


class OneNumber(Patches):
    grid_multiple = 2


class OnlySquare(Patches):
    def grid(self, image_size):
        rows, columns = super().grid(image_size)
        if rows != columns:
            raise InvalidOption(f"{rows}x{columns} is not square")
        return rows, columns


class Shifted(Patches):
    """Adds a parameter to the tokens."""

    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)
        self.shift = nn.Parameter(self.start(embed_dim))

    def start(self, width):
        return torch.zeros(width)

    def forward(self, images):
        return super().forward(images) + self.shift


class Unwritten(Shifted):
    def start(self, width):
        return torch.empty(width)


class OfItsOwn(Shifted):
    def start(self, width):
        return torch.tensor([random.random() for _ in range(width)])


class Undecayed(Shifted):
    def no_weight_decay(self):
        return {"shift"}


class Misspelt(Shifted):
    def no_weight_decay(self):
        return {"proj.wieght"}


class Mixing(Patches):
    def forward(self, images):
        return super().forward(images - images.mean(0))


class Random(Patches):
    def forward(self, images):
        return nn.functional.dropout(super().forward(images), 0.5, training=True)


class Forgetful(Patches):
    """Uses a number that neither the constructor gets nor the state dict holds."""

    count = 0

    def __init__(self, *, patch_size, in_chans, embed_dim):
        super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)
        Forgetful.count += 1
        self.gain = float(Forgetful.count)

    def forward(self, images):
        return super().forward(images) * self.gain


@pytest.mark.parametrize(
    ("part", "sizes"),
    [
        (Patches, None),
        (Undecayed, None),
        (EvenGridSaid, None),
        (EvenGridSaid, Sizes(grid_size=(4, 6))),
        (FourByFour, None),
        (FourByFour, Sizes(patch_size=(16, 8))),
        (EvenGrid, Sizes(grid_size=(4, 8))),
        (OnlySquare, Sizes(grid_size=(3, 3))),
    ],
)
def test_the_good_ones_pass(part, sizes):
    check_patch_embedder(part, sizes=sizes)


def test_the_grid_of_sizes_must_be_accepted(complaint):
    for part, grid in ((EvenGrid, (3, 4)), (OnlySquare, (2, 4))):
        subject = EMBEDDER.PatchEmbedder(part, sizes=Sizes(grid_size=grid))
        said = complaint(EMBEDDER.check_grid, subject)
        assert f"refuses an image of {grid[0]}x{grid[1]} patches" in said
        assert "grid_multiple" in said


def test_multiples_of_the_stated_grid_must_be_accepted(complaint):
    assert "refuses an image of 4x8 patches" in complaint(check_patch_embedder, TooStrict)


@pytest.mark.parametrize(
    ("part", "grid"),
    [(Patches, (2, 4)), (EvenGridSaid, (2, 4)), (FourByFour, (4, 8)), (OnlySquare, None)],
)
def test_sizes_are_found_that_a_part_accepts(part, grid):
    found = EMBEDDER.PatchEmbedder(part).fitted()
    assert (found and found.sizes.grid_size) == grid


EMBEDDER, MODULE = testing.checks.patch_embed, testing.checks.modules


@pytest.mark.parametrize(
    ("check", "part", "words"),
    [
        (MODULE.check_constructor, ByPosition, "takes 'patch_size' by position"),
        (MODULE.check_constructor, AnyKeyword, "takes **options, which vitzoo never passes"),
        (MODULE.check_constructor, Needy, "embed_dim, but no value for stride"),
        (MODULE.check_protocol, Loose, "Loose is no torch.nn.Module"),
        (MODULE.check_protocol, WithoutChannels, "WithoutChannels lacks in_chans"),
        (EMBEDDER.check_grid, FixedChannels, "in_chans is 3, but it was built for 1 channels"),
        (EMBEDDER.check_grid, TransposedGrid, "tokens of shape (2, 12, 32), but it is (2"),
        (EMBEDDER.check_grid, WidthFirst, "becomes (4, 4) instead of (4, 2) when the height"),
        (EMBEDDER.check_grid, SquareGrid, "give tokens of shape (2, 4, 32), but it is (2, 8"),
        (EMBEDDER.check_grid, ListGrid, "returns [2, 4]"),
        (EMBEDDER.check_grid, EvenGrid, "refuses an image of 3x4 patches: 3x4 is odd"),
        (EMBEDDER.check_grid, NotRefused, "accepts an image of 3x4 patches"),
        (EMBEDDER.check_grid, OneNumber, "grid_multiple is 2"),
        (EMBEDDER.check_order, ColumnByColumn, "token 3 should see the top right of the image"),
        (EMBEDDER.check_order, UpsideDown, "on a 2x4 grid, token 3 should see the top right"),
        (EMBEDDER.check_sizes, NoTokens, "grid((1, 32)) returns (0, 4), expected (rows, col"),
        (EMBEDDER.check_sizes, OtherError, "grid((17, 32)) raises AssertionError: bad size"),
        (EMBEDDER.check_input_conv, WrongInput, "is 'conv.weight', no key of its state dict"),
        (EMBEDDER.check_input_conv, WrongKernel, "input_conv names 'proj.bias' of shape (32,)"),
        (MODULE.check_initialisation, Unwritten, "leaves NaN, infinity or no value in shift"),
        (MODULE.check_initialisation, OfItsOwn, "it starts with different values of shift"),
        (MODULE.check_weight_decay, Misspelt, "proj.bias; no_weight_decay() names 'proj.wieght'"),
        (MODULE.check_gradients, Detached, "its result has no gradient"),
        (MODULE.check_gradients, IdleBias, "no gradient reaches shift"),
        (MODULE.check_dtypes, InSingle, "in float64 its result is float32"),
        (MODULE.check_dtypes, MixedTypes, "fails when used in float64: RuntimeError"),
        (MODULE.check_dtypes, CoarseInDouble, "in float64 and in float32 it gives different"),
        (MODULE.check_meta, OnCpu, "torch.device('meta'), these take memory: shift"),
        (MODULE.check_meta, StaysOnMeta, "because the state dict lacks them: shift"),
        (MODULE.check_meta, ReadsValues, "embed_dim=32 under torch.device('meta'): RuntimeError: "),
        (MODULE.check_compiles, Branches, "fails when compiled as one graph"),
        (MODULE.check_copies, Lambda, "fails when pickled"),
        (MODULE.check_instances, Sharing, "two instances share gain"),
        (MODULE.check_instances, Mixing, "depends on the other samples"),
        (MODULE.check_instances, Random, "depends on the other samples"),
        (MODULE.check_saved, Forgetful, "a saved network gives other numbers after it is"),
    ],
)  # fmt: skip
def test_a_broken_patch_embedder(blames, check, part, words):
    blames("patch embedder", part, EMBEDDER.PatchEmbedder, check, words, check_patch_embedder)


def test_sample_options_that_do_not_fit(complaint):
    said = complaint(check_patch_embedder, ConvPatchEmbed, bias="yes")
    assert (
        "cannot be built from patch_size=(8, 8), in_chans=3, embed_dim=32, bias=yes: bias" in said
    )
    assert "give other values in the tables `options` or `sizes`" in said


def test_an_option_that_a_spec_cannot_hold(complaint):
    class Odd(Patches):
        def __init__(self, *, patch_size, in_chans, embed_dim, table=None):
            super().__init__(patch_size=patch_size, in_chans=in_chans, embed_dim=embed_dim)

    subject = testing.checks.patch_embed.PatchEmbedder(Odd, options={"table": {"a": 1}})
    said = complaint(MODULE.check_options, subject)
    assert "patch embedder 'Odd': a spec cannot hold its sample options: options.table" in said
