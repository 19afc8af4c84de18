"""Relative positions: every number where the formula puts it, on every grid."""

import numpy as np
import pytest
import torch

import vitzoo
from tables import cases
from vitzoo.errors import InvalidOption
from vitzoo_mim.relative import RelativePositions
from vitzoo_mim.resample import METHODS, geometric_weights, resample_distances

GRIDS = [(3, 3), (2, 5), (4, 1)]


def part(grid=(3, 4), prefix=1, heads=2, **options):
    numbers = {"grid_size": grid, "num_prefix_tokens": prefix, "num_heads": heads, "depth": 3}
    return RelativePositions(**numbers, **options)


def numbered(part, grid):
    """Return a table of all different numbers."""
    table = part.initial_table(grid)
    return torch.arange(float(table.numel())).reshape(table.shape)


@cases("grid", GRIDS)
@cases("prefix", [0, 1, 3])
def test_each_pair_reads_the_number_of_its_distance(grid, prefix):
    positions = part(grid, prefix)
    table, (h, w) = numbered(positions, grid), grid
    rows = (2 * h - 1) * (2 * w - 1)
    assert table.shape == (3, rows + 3 * bool(prefix), 2)
    for layer in range(3):
        bias = positions.attention_bias(table, layer)
        assert bias.shape == (2, prefix + h * w, prefix + h * w)
        for query in range(prefix + h * w):
            for key in range(prefix + h * w):
                if query < prefix and key < prefix:
                    row = rows + 2
                elif query < prefix:
                    row = rows
                elif key < prefix:
                    row = rows + 1
                else:
                    y, x = ((query - prefix) // w, (query - prefix) % w)
                    v, u = ((key - prefix) // w, (key - prefix) % w)
                    row = (y - v + h - 1) * (2 * w - 1) + x - u + w - 1
                assert torch.equal(bias[:, query, key], table[layer, row])


def test_a_shared_table_acts_in_every_block():
    positions = part(shared=True)
    table = numbered(positions, (3, 4))
    assert table.shape[0] == 1
    first, last = (positions.attention_bias(table, layer) for layer in (0, 2))
    assert torch.equal(first, last)


def test_tables_start_at_zero_and_tokens_pass():
    positions, tokens = part(), torch.randn(2, 13, 8)
    assert not positions.initial_table((3, 4)).any()
    assert positions(tokens, positions.initial_table((3, 4)), 1) is tokens


@pytest.mark.parametrize("grid", [(91, 91), (10_000, 10_000), (1, 8192)])
def test_more_tokens_than_the_index_may_have_are_refused(grid, monkeypatch):
    """The index has a number for each pair of tokens."""

    def never(*_, **__):
        raise AssertionError("memory is allocated")

    positions = part()
    monkeypatch.setattr(torch, "arange", never)
    tokens = grid[0] * grid[1] + 1
    with pytest.raises(InvalidOption, match=rf"8192 tokens, got {tokens} .*image_size"):
        part(grid)
    with pytest.raises(InvalidOption, match="8192 tokens"):
        positions.to_grid(grid)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shared": 1}, "shared.*true.*false.*1"),
        ({"resample": "bilinaer"}, "resample distances 'bilinaer'.*bilinear"),
        ({"resample": 3}, "resample.* 3.*geometric_cubic"),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(InvalidOption, match=text):
        part(**options)


# Other grids.


@cases("method", METHODS)
@cases("prefix", [0, 1])
def test_extra_rows_are_kept_and_the_own_grid_changes_nothing(method, prefix):
    positions = part((3, 4), prefix, resample=method)
    table = torch.randn(3, 35 + 3 * prefix, 2)
    moved = positions.resample(table, (3, 4), (5, 2))
    assert moved.shape == (3, 27 + 3 * prefix, 2)
    assert torch.equal(moved[:, 27:], table[:, 35:])
    assert positions.resample(table, (3, 4), (3, 4)) is table
    positions.to_grid((5, 2))
    assert torch.equal(positions.index, part((5, 2), prefix).index)


def reference_places(old, new):
    """Return where BEiT's code puts old distances, written out as its loop is described."""
    left, right = 1.01, 1.5
    while right - left > 1e-6:
        q = (left + right) / 2
        if (1 - q ** (old // 2)) / (1 - q) > new // 2:
            right = q
        else:
            left = q
    places, here = [0.0], 0.0
    for step in range(old // 2):
        here += q**step
        places = [-here, *places, here]
    return np.array(places)


PAIRS = [(27, 47), (27, 19), (7, 13), (9, 5), (5, 63)]


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_geometric_distances_are_interpolated_linearly(old, new):
    values = np.random.default_rng(0).normal(size=old)
    expected = np.interp(np.arange(new) - new // 2, reference_places(old, new), values)
    found = geometric_weights(old, new).double() @ torch.from_numpy(values)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("old", "new"), [((14, 14), (24, 24)), ((4, 7), (9, 3)), ((5, 3), (4, 8))])
def test_the_cubic_spline_is_that_of_scipy(old, new):
    """BEiT's own code called scipy's interp2d, which fitted this spline."""
    from scipy.interpolate import RectBivariateSpline

    sides = [(2 * a - 1, 2 * b - 1) for a, b in zip(old, new, strict=True)]
    places = [reference_places(*side) for side in sides]
    wanted = [
        np.clip(np.arange(new) - new // 2, place[0], place[-1])
        for (_, new), place in zip(sides, places, strict=True)
    ]
    table = torch.randn(1, sides[0][0] * sides[1][0], 2)
    moved = resample_distances(table, old, new, "geometric_cubic")
    for head in range(2):
        values = table[0, :, head].reshape(sides[0][0], sides[1][0]).numpy()
        expected = RectBivariateSpline(*places, values, s=0)(*wanted)
        found = moved[0, :, head].reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:torch.searchsorted.*", "ignore:Using a non-tuple sequence.*")
@cases("old", [(14, 14), (3, 5), (2, 2), (1, 3)])
@cases("new", [(24, 24), (5, 4), (7, 3), (1, 1)])
def test_geometric_resampling_is_that_of_timm(old, new):
    from timm.layers import resize_rel_pos_bias_table

    rows = (2 * old[0] - 1) * (2 * old[1] - 1)
    table = torch.randn(3, rows + 3, 2)
    shape = ((2 * new[0] - 1) * (2 * new[1] - 1) + 3, 2)
    moved = part(old).resample(table, old, new)
    for layer in range(3):
        expected = resize_rel_pos_bias_table(table[layer], new, shape, old)
        torch.testing.assert_close(moved[layer], expected, rtol=0, atol=1e-5)


def test_the_other_methods_stretch_evenly():
    table = torch.randn(2, 35, 3)
    grid = table.reshape(2, 5, 7, 3).permute(0, 3, 1, 2)
    for method in ("bilinear", "bicubic"):
        expected = torch.nn.functional.interpolate(grid, size=(9, 3), mode=method)
        found = resample_distances(table, (3, 4), (5, 2), method)
        torch.testing.assert_close(found, expected.permute(0, 2, 3, 1).flatten(1, 2))


# In a network.


def test_a_plain_network_takes_it_by_name(small, randomise):
    """The row of the paper's table 8 by name, as far as distances alone say it."""
    options = {"pos_embed": {"name": "mim/relative", "shared": True}}
    model = randomise(vitzoo.create(small, **options))
    assert model.pos_embed.shape == (1, 52, 2)
    images = torch.randn(1, 3, 32, 32)
    before = model(images)
    with torch.no_grad():
        model.pos_embed[0, 30] += 1
    assert not torch.allclose(model(images), before)
    assert "pos_embed" in model.no_weight_decay()
    maps = model.attention_maps(images)
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(1, 2, 17))


def test_registers_share_what_the_class_token_has(small, randomise):
    model = randomise(vitzoo.create({**small, "num_registers": 2}, pos_embed="mim/relative"))
    assert model.pos_embed.shape == (2, 52, 2)
    bias = model.positions.attention_bias(model.pos_embed, 1)
    assert bias.shape == (2, 19, 19)
    assert (bias[:, :3, 3:] == bias[:, :1, 3:4]).all()
    assert (bias[:, 3:, :3] == bias[:, 3:4, :1]).all()


def test_a_network_follows_another_image_size(small, randomise):
    model = randomise(vitzoo.create(small, pos_embed="mim/relative"))
    table = model.pos_embed.detach().clone()
    model.set_input_size((48, 24))
    assert model.pos_embed.shape == (2, 11 * 5 + 3, 2)
    expected = resample_distances(table[:, :-3], (4, 4), (6, 3), "geometric")
    assert torch.equal(model.pos_embed[:, :-3], expected)
    assert model(torch.randn(1, 3, 48, 24)).shape == (1, 5)
