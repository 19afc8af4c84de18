"""Resampling of positions, against the functions of the libraries that weights come from."""

import pytest
import torch

import vitzoo
from helpers import SMALL as SQUARE, randn
from internals import RESAMPLING
from tables import cases
from vitzoo.parts import resample_grid

SMALL = SQUARE | {"image_size": [32, 24]}


# Resampling, against the functions of the libraries that the weights come from.


def scipy_zoom(table, old, new):
    import scipy.ndimage

    grid = table.reshape(*old, -1).numpy()
    return torch.from_numpy(
        scipy.ndimage.zoom(grid, (new[0] / old[0], new[1] / old[1], 1), order=1)
    )


@pytest.mark.parametrize(
    ("old", "new"), [((7, 7), (12, 12)), ((14, 14), (24, 24)), ((5, 9), (9, 4))]
)
def test_zoom_is_googles(old, new):
    table = randn(1, old[0] * old[1], 6)
    expected = scipy_zoom(table[0], old, new).reshape(1, -1, 6)
    torch.testing.assert_close(resample_grid(table, old, new, "zoom"), expected, rtol=0, atol=1e-5)


@cases("method", RESAMPLING)
def test_methods_differ_and_keep_prefix_tokens(method):
    table = randn(2, 3 + 20, 6)
    moved = resample_grid(table, (4, 5), (6, 3), method)
    assert moved.shape == (2, 3 + 18, 6)
    assert torch.equal(moved[:, :3], table[:, :3])
    for layer in range(2):  # each layer by itself
        alone = resample_grid(table[layer : layer + 1], (4, 5), (6, 3), method)
        torch.testing.assert_close(moved[layer : layer + 1], alone, rtol=0, atol=1e-6)
    others = [resample_grid(table, (4, 5), (6, 3), name) for name in RESAMPLING if name != method]
    assert all((moved - other).abs().max() > 1e-2 for other in others)


@cases("method", RESAMPLING)
def test_the_option_reaches_the_table(method):
    options = {"name": "learned", "resample": method}
    model = vitzoo.create(SMALL, pos_embed=options)
    table = model.pos_embed.detach().clone()
    model.set_input_size((56, 48))
    assert torch.equal(model.pos_embed, resample_grid(table, (4, 3), (7, 6), method))
    assert dict(model.spec.pos_embed.options)["resample"] == method


@cases("method", RESAMPLING)
@cases("wide", [(1, 5), (2, 5), (1, 9)])
def test_a_single_column_is_resampled_as_a_single_row(method, wide):
    table = randn(1, wide[0] * wide[1], 6)
    across = resample_grid(table, wide, (1, 3), method)
    turned = table.reshape(*wide, 6).transpose(0, 1).reshape(1, -1, 6)
    down = resample_grid(turned, wide[::-1], (3, 1), method)
    torch.testing.assert_close(down, across, rtol=0, atol=1e-6)
