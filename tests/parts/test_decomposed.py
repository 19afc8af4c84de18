"""Decomposed relative positions against a loop over pairs of patches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import vitzoo
from helpers import SMALL, fill, randn, refuses
from tables import cases
from vitzoo.errors import InvalidOption
from vitzoo.parts import DecomposedPositions

NETWORKS = {
    "whole": ({}, {"reference_grid": 4}),
    "class token and registers": ({"num_registers": 2, "image_size": (24, 40)}, {}),
    "windows": (
        {"image_size": (40, 24), "block": {"window": 2, "global_blocks": [1]}},
        {"reference_grid": (5, 3)},
    ),
    "filled windows, moved": (
        {"class_token": False, "pool": "mean", "block": {"window": 3, "global_blocks": [0]}},
        {"reference_grid": (2, 7), "absolute": True},
    ),
}


def moved(table, size):
    """Interpolate a table of an axis by the definition of linear interpolation."""
    length = 2 * size - 1
    rows = []
    for row in range(length):
        place = min(max((row + 0.5) * len(table) / length - 0.5, 0), len(table) - 1)
        low = int(place)
        high = min(low + 1, len(table) - 1)
        rows.append(table[low] * (1 - place + low) + table[high] * (place - low))
    return torch.stack(rows)


def tokens_of(model, image):
    """Return the tokens after the blocks by a loop over queries and keys."""
    x, p = model.embed(image[None])[0], model.num_prefix_tokens
    for layer, block in enumerate(model.blocks):
        attn, size = block.attn, (block.window, block.window) if block.window else model.grid_size
        rows = moved(model.positions.rel_pos_h[layer], size[0])
        columns = moved(model.positions.rel_pos_w[layer], size[1])
        normed = torch.cat((block.norm1(x), torch.zeros_like(x[:1])))
        q, k, v = attn.qkv(normed).reshape(len(x) + 1, 3, attn.num_heads, -1).permute(1, 2, 0, 3)
        results = []
        for token in range(len(x)):
            row, column = divmod(token - p, model.grid_size[1])
            if token < p:
                keys = [(key, None, None) for key in range(len(x))]
            else:
                top, left = row // size[0] * size[0], column // size[1] * size[1]
                places = [(top + r, left + c) for r in range(size[0]) for c in range(size[1])]
                keys = [(key, None, None) for key in range(p)]
                for r, c in places:
                    inside = r < model.grid_size[0] and c < model.grid_size[1]
                    keys.append((p + r * model.grid_size[1] + c if inside else len(x), r, c))
            logits = []
            for key, r, c in keys:
                logit = (q[:, token] * k[:, key]).sum(1) * attn.scale
                if r is not None:
                    vectors = rows[row - r + size[0] - 1] + columns[column - c + size[1] - 1]
                    logit = logit + q[:, token] @ vectors
                logits.append(logit)
            share = torch.stack(logits, dim=1).softmax(dim=1)
            values = v[:, [key for key, _, _ in keys]]
            results.append((share[:, None] @ values)[:, 0].flatten())
        x = x + attn.proj(torch.stack(results))
        x = x + block.mlp(block.norm2(x))
    return x


@cases("weights", ["own", "scaled"])
@cases("name", NETWORKS)
@torch.inference_mode()
def test_every_token_equals_a_loop_over_pairs(name, weights):
    changes, options = NETWORKS[name]
    made = vitzoo.create(SMALL | changes, pos_embed={"name": "decomposed"} | options)
    model = fill(made, weights).double()
    images = randn(2, 3, *model.image_size, seed=3).double()
    expected = torch.stack([model.norm(tokens_of(model, image)) for image in images])
    torch.testing.assert_close(model.forward_features(images), expected, rtol=0, atol=1e-6)
    whole = model.forward_head(expected)
    torch.testing.assert_close(model(images), whole, rtol=0, atol=1e-6)  # with the short cut
    sums = torch.stack([one.sum(-1) for one in model.attention_maps(images).values()])
    assert sums.max() <= 1 + 1e-9


def test_the_bias_of_the_first_tokens_is_that_of_all():
    part = DecomposedPositions(
        grid_size=(2, 3), num_prefix_tokens=2, embed_dim=8, num_heads=2, depth=1
    )
    bias = part.attention_bias(None, 0)
    queries = randn(2, 2, 8, 4)
    whole = bias(queries)
    assert not whole[:, :, :2].any()
    assert not whole[:, :, :, :2].any()
    assert whole[:, :, 2:, 2:].all()
    for count in range(1, 9):
        torch.testing.assert_close(bias(queries[:, :, :count]), whole[:, :, :count])


@torch.inference_mode()
def test_a_table_of_a_reference_grid_is_interpolated_in_every_call():
    options = {"reference_grid": (2, 3), "resample": "bicubic", "prefix": False}
    model = vitzoo.create(SMALL, pos_embed={"name": "learned"} | options, dynamic=True)
    model = fill(model)
    assert model.pos_embed.shape == (1, 6, 48)
    for size in ((32, 32), (16, 24), (40, 8)):
        images = randn(1, 3, *size)
        found = model.features(images, ["embed", "patch_embed"])
        table = model.pos_embed.reshape(1, 2, 3, 48).permute(0, 3, 1, 2)
        grid = size[0] // 8, size[1] // 8
        added = F.interpolate(table, size=grid, mode="bicubic").flatten(2).transpose(1, 2)
        expected = found["patch_embed"] + added
        torch.testing.assert_close(found["embed"][:, 1:], expected, rtol=0, atol=1e-6)


def test_the_size_of_a_saved_network_can_change(tmp_path):
    block = {"window": 3, "global_blocks": [1]}
    pos_embed = {"name": "decomposed", "absolute": True, "absolute_grid": 3}
    model = fill(vitzoo.create(SMALL, block=block, pos_embed=pos_embed))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    images = randn(1, 3, 40, 24)
    again = vitzoo.create(path, image_size=(40, 24)).eval()
    model.set_input_size((40, 24))
    torch.testing.assert_close(again(images), model(images), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({"absolute": 1}, ("absolute must be true or false", 1)),
        ({"reference_grid": 0}, ("reference_grid", "whole number of px", 0)),
        ({"reference_grid": 513}, ("reference_grid", "at most 512 patches", 513)),
        ({"absolute_grid": (1, 513)}, ("at most 512 patches", (1, 513))),
        ({"resample": "cubic"}, ("resample = 'cubic'",)),
    ],
)
def test_impossible_options_are_refused(options, parts):
    with refuses(InvalidOption, *parts):
        vitzoo.create(SMALL, pos_embed={"name": "decomposed"} | options, device="meta")
