"""Rotary positions with learned, mixed frequencies."""

import numpy as np
import pytest
import torch

import vitzoo
from helpers import SMALL as SQUARE, randn, refuses
from positions import turn
from vitzoo.errors import InvalidOption
from vitzoo.parts import MixedRotaryPositions

SMALL = SQUARE | {"image_size": [32, 24]}


@torch.inference_mode()
def test_mixed_rotation_by_definition():
    grid, width, heads = (2, 3), 8, 2
    part = MixedRotaryPositions(
        grid_size=grid, num_prefix_tokens=1, embed_dim=heads * width, num_heads=heads, depth=3
    )
    start = part.freqs.norm(dim=0).flatten(0, 1)  # of each head's pairs, whatever its direction
    for rows in start:
        torch.testing.assert_close(rows, torch.tensor([1.0, 10**-0.5] * 2))
    part.freqs.copy_(randn(2, 3, heads, width // 2, seed=5))
    queries = randn(2, heads, 7, width)
    pairs = [(2 * i, 2 * i + 1) for i in range(width // 2)]
    for layer in range(3):
        result = part.rotate(queries, layer)
        assert torch.equal(result[:, :, 0], queries[:, :, 0])  # the class token is not turned
        for b, head, n in np.ndindex(2, heads, 6):
            across, down = part.freqs[:, layer, head]
            angle = (n % 3 * across + n // 3 * down).tolist()
            expected = turn(queries[b, head, 1 + n], angle, pairs)
            torch.testing.assert_close(result[b, head, 1 + n], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"temperature": 1}, ["temperature", "above 1", "got 1"]),
        ({"absolute": 1}, ["absolute", "true", "false", 1]),
    ],
)
def test_options_of_mixed_rotation_are_checked(options, parts):
    with refuses(InvalidOption, *parts):
        vitzoo.create(SMALL, pos_embed={"name": "rope_mixed"} | options)
