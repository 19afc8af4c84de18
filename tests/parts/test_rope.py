"""Rotary positions: by definition, in every block, on another grid."""

import math

import numpy as np
import pytest
import torch

import vitzoo
from helpers import SMALL as SQUARE, message, randn, refuses, says
from positions import alive, turn
from vitzoo.errors import InvalidOption
from vitzoo.parts import RotaryPositions

SMALL = SQUARE | {"image_size": [32, 24]}


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("coordinates", ["centered", "index"])
def test_rotation_by_definition(layout, coordinates):
    grid, width = (2, 3), 8
    part = RotaryPositions(
        grid_size=grid,
        num_prefix_tokens=1,
        embed_dim=2 * width,
        num_heads=2,
        temperature=50.0,
        layout=layout,
        coordinates=coordinates,
    )
    queries = randn(2, 2, 7, width)
    result = part.rotate(queries)
    assert torch.equal(result[:, :, 0], queries[:, :, 0])  # the class token is not turned
    half = width // 2
    if layout == "half":
        pairs = [(i, i + half) for i in range(half)]
    else:
        pairs = [(2 * i, 2 * i + 1) for i in range(half)]
    for n in range(6):
        place = [float(n // 3), float(n % 3)]
        if coordinates == "centered":
            middles = [(p + 0.5) / g for p, g in zip(place, grid, strict=True)]
            place = [2 * math.pi * (2 * m - 1) for m in middles]
        angle = [p * 50.0 ** -(i / 2) for p in place for i in range(2)]
        for b, head in np.ndindex(2, 2):
            expected = turn(queries[b, head, 1 + n], angle, pairs)
            torch.testing.assert_close(result[b, head, 1 + n], expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_attention_sees_only_differences_of_positions():
    """The product of a rotated query and key depends only on the difference of their positions."""
    part = RotaryPositions(
        grid_size=(4, 4), num_prefix_tokens=0, embed_dim=8, num_heads=1, coordinates="index"
    )
    q, k = randn(8), randn(8, seed=1)
    turned_q = part.rotate(q.expand(1, 1, 16, 8))[0, 0].reshape(4, 4, 8)
    turned_k = part.rotate(k.expand(1, 1, 16, 8))[0, 0].reshape(4, 4, 8)
    products = [turned_q[y, x] @ turned_k[y + 1, x + 2] for y in range(3) for x in range(2)]
    torch.testing.assert_close(torch.stack(products), products[0].expand(6), rtol=0, atol=1e-5)
    assert abs(turned_q[0, 0] @ turned_k[2, 1] - products[0]) > 1e-2


@torch.inference_mode()
def test_rope_reaches_every_block_and_the_attention_maps():
    model = alive(vitzoo.create(SMALL, pos_embed="rope", image_size=32))
    images = randn(2, 3, 32, 32)
    maps = model.attention_maps(images)
    x = model.embed(images)
    for i, block in enumerate(model.blocks):
        qkv = block.attn.qkv(block.norm1(x)).reshape(2, 17, 3, 3, 16).permute(2, 0, 3, 1, 4)
        q, k = (model.positions.rotate(part) for part in qkv[:2])
        expected = (q @ k.transpose(-2, -1) * block.attn.scale).softmax(-1)
        torch.testing.assert_close(maps[i], expected, rtol=0, atol=1e-6)
        plain = block.attention_probabilities(x)
        assert (plain - maps[i]).abs().max() > 1e-3
        x = block(x, model.positions.rotate)
    torch.testing.assert_close(model(images), model.forward_head(model.norm(x)))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"offset": 1.0}, ["offset", "coordinates='index'"]),
        ({"coordinates": "index", "offset": True}, ["offset", "number", "True"]),
        ({"coordinates": "index", "offset": math.inf}, ["offset", "number", "inf"]),
        ({"indexing": "ij"}, ["indexing", "yx, xy", "'ij'"]),
    ],
)
def test_other_coordinates_of_rope_are_checked(options, parts):
    with refuses(InvalidOption, *parts):
        vitzoo.create(SMALL, pos_embed={"name": "rope"} | options)


@torch.inference_mode()
def test_indexing_and_offset_by_definition():
    """Exchanging the axes equals transposing the grid; an offset is a shift before scaling."""
    numbers = {"num_prefix_tokens": 0, "embed_dim": 8, "num_heads": 1, "coordinates": "index"}
    queries = randn(1, 1, 6, 8)
    wide = RotaryPositions(grid_size=(2, 3), indexing="xy", **numbers).rotate(queries)
    turned = queries.reshape(1, 1, 2, 3, 8).transpose(2, 3).reshape(1, 1, 6, 8)
    tall = RotaryPositions(grid_size=(3, 2), **numbers).rotate(turned)
    expected = tall.reshape(1, 1, 3, 2, 8).transpose(2, 3).reshape(1, 1, 6, 8)
    torch.testing.assert_close(wide, expected, rtol=0, atol=1e-6)
    shifted = RotaryPositions(grid_size=(2, 3), offset=1.0, **numbers).rotate(queries)
    larger = RotaryPositions(grid_size=(3, 4), **numbers).rotate(
        torch.zeros(1, 1, 3, 4, 8)
        .index_put(
            (torch.tensor(0), torch.tensor(0), torch.arange(1, 3)[:, None], torch.arange(1, 4)),
            queries.reshape(2, 3, 8),
        )
        .reshape(1, 1, 12, 8)
    )
    expected = larger.reshape(3, 4, 8)[1:, 1:].reshape(1, 1, 6, 8)
    torch.testing.assert_close(shifted, expected, rtol=0, atol=1e-6)


def test_rope_follows_another_grid(tmp_path):
    model = alive(vitzoo.create(SMALL, pos_embed={"name": "rope", "absolute": True}))
    assert set(model.state_dict()) >= {"pos_embed"}
    assert not any("sine" in name for name in model.state_dict())
    vitzoo.save(model, tmp_path / "model.safetensors")
    loaded = vitzoo.create(tmp_path / "model.safetensors", image_size=(48, 40)).eval()
    model.set_input_size((48, 40))
    images = randn(1, 3, 48, 40)
    torch.testing.assert_close(loaded(images), model(images), rtol=0, atol=1e-5)
    model.set_input_size((32, 24))
    assert model(randn(1, 3, 32, 24)).shape == (1, 7)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"temperature": 1}, ["temperature", "above 1", "got 1"]),
        ({"temperature": True}, ["temperature", "above 1", "got True"]),
        ({"absolute": 1}, ["absolute", "true", "false", 1]),
        ({"coordinates": "pixel"}, ["coordinates", "centered, index", "'pixel'"]),
        ({"layout": "halves"}, ["layout", "half, interleaved", "'halves'"]),
        ({"reference_grid": 16}, ["reference_grid", "coordinates='index'"]),
        (
            {"coordinates": "index", "reference_grid": 0},
            ["reference_grid", 1, 65536, "pair", 0, "(int)"],
        ),
    ],
    ids=str,
)
def test_wrong_options_of_rope(options, parts):
    with refuses(InvalidOption, *parts):
        vitzoo.create(SMALL, pos_embed={"name": "rope"} | options)


def test_rope_needs_heads_of_a_multiple_of_four():
    spec = SMALL | {"embed_dim": 42, "pos_embed": "rope"}
    says(message(vitzoo.InvalidOption, vitzoo.create, spec), "rope", "heads", 4, 14, "42 / 3")
