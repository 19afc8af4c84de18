"""Small networks of every kind of positions, and images of other sizes for them."""

from __future__ import annotations

import copy

import torch

import vitzoo
from helpers import SMALL, randn

TABLES = {
    "learned": "learned",
    "zoom": {"name": "learned", "resample": "zoom", "prefix": False},
    "every layer": {"name": "learned", "where": "layers"},
    "learned_2d": "learned_2d",
    "relative": "relative",
    "rope and a table": {"name": "rope", "absolute": True},
    "mim": "mim/relative",
}
POSITIONS = TABLES | {
    "sincos": "sincos_2d",
    "sincos_1d": {"name": "sincos_1d", "where": "layers"},
    "rope": "rope",
    "rope by index": {"name": "rope", "coordinates": "index", "reference_grid": 4},
    "decomposed": {"name": "decomposed", "absolute": True},
    "decomposed, a large table": {"name": "decomposed", "absolute": True, "absolute_grid": 5},
    "of a reference grid": {"name": "learned", "reference_grid": 3},
    "rope_mixed": {"name": "rope_mixed", "absolute": True},
    "none": "none",
}


@torch.no_grad()
def make(positions, **arguments):
    """Return a network in which every number matters."""
    torch.manual_seed(0)
    model = vitzoo.create(SMALL, pos_embed=positions, **arguments).eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape).to(parameter), alpha=0.2)
    return model


def batch(size, seed=0):
    return randn(2, 3, *size, seed=seed)


def after(model, size):
    """Return a copy of a model after `set_input_size`."""
    model = copy.deepcopy(model)
    model.set_input_size(size)
    return model
