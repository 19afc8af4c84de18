"""Position embeddings: what each adds, where, and how it follows another grid."""

import math

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F

import vitzoo
from helpers import SMALL as SQUARE, message, randn, refuses, says
from vitzoo.errors import InvalidOption
from vitzoo.parts.pos_embed import (
    Learned2dPositions,
    LearnedPositions,
    NoPositions,
    SinCos2dPositions,
)
from vitzoo.parts.resample import RESAMPLING, resample_grid
from vitzoo.parts.rope import RotaryPositions
from vitzoo.parts.rope_mixed import MixedRotaryPositions

SMALL = SQUARE | {"image_size": [32, 24]}


def big_vision_sincos_2d(height, width, dim, temperature=10_000.0):
    """`posemb_sincos_2d` of big_vision's models/vit.py, in numpy."""
    y, x = np.mgrid[:height, :width]
    omega = np.arange(dim // 4) / (dim // 4 - 1)
    omega = 1.0 / (temperature**omega)
    y = np.einsum("m,d->md", y.flatten(), omega)
    x = np.einsum("m,d->md", x.flatten(), omega)
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)


@pytest.mark.parametrize("grid", [(14, 14), (5, 9), (9, 5), (1, 3)])
@pytest.mark.parametrize("dim", [8, 48, 192])
def test_sincos_2d_is_big_visions(grid, dim):
    part = SinCos2dPositions(grid_size=grid, num_prefix_tokens=0, embed_dim=dim)
    expected = torch.from_numpy(big_vision_sincos_2d(*grid, dim)).float()
    tokens = torch.zeros(1, grid[0] * grid[1], dim)
    torch.testing.assert_close(part(tokens)[0], expected, rtol=0, atol=1e-7)


def test_sincos_2d_takes_another_temperature():
    part = SinCos2dPositions(grid_size=(3, 4), num_prefix_tokens=0, embed_dim=16, temperature=100.0)
    expected = torch.from_numpy(big_vision_sincos_2d(3, 4, 16, 100.0)).float()
    torch.testing.assert_close(part(torch.zeros(1, 12, 16))[0], expected, rtol=0, atol=1e-7)


def test_sincos_2d_follows_another_grid():
    part = SinCos2dPositions(grid_size=(3, 4), num_prefix_tokens=1, embed_dim=16)
    assert part.resample(None, (3, 4), (5, 2)) is None
    part.to_grid((5, 2))
    fresh = SinCos2dPositions(grid_size=(5, 2), num_prefix_tokens=1, embed_dim=16)
    assert torch.equal(part.table, fresh.table)


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_sincos_2d_leaves_prefix_tokens_alone(prefix):
    part = SinCos2dPositions(grid_size=(2, 3), num_prefix_tokens=prefix, embed_dim=8)
    tokens = randn(2, prefix + 6, 8)
    result = part(tokens)
    assert torch.equal(result[:, :prefix], tokens[:, :prefix])
    assert torch.equal(result[:, prefix:], tokens[:, prefix:] + part.table)


@pytest.mark.parametrize("dim", [4, 10, 50])
def test_sincos_2d_needs_a_multiple_of_four(dim):
    text = message(
        vitzoo.InvalidOption,
        SinCos2dPositions,
        grid_size=(2, 2),
        num_prefix_tokens=0,
        embed_dim=dim,
    )
    says(text, "sincos_2d", "embed_dim", 4, 8, f"got {dim}")


@pytest.mark.parametrize("temperature", [1, 0, -3, math.inf, math.nan, True, "9"])
def test_sincos_2d_needs_a_temperature_above_one(temperature):
    spec = SMALL | {"pos_embed": {"name": "sincos_2d", "temperature": temperature}}
    text = message(vitzoo.InvalidOption, vitzoo.create, spec)
    says(text, "temperature", "above 1", f"got {temperature!r}")


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_learned_positions_keep_prefix_tokens_when_resampled(prefix):
    part = LearnedPositions(num_prefix_tokens=prefix, embed_dim=8)
    table = randn(1, prefix + 12, 8)
    result = part.resample(table, (3, 4), (5, 6))
    assert result.shape == (1, prefix + 30, 8)
    assert torch.equal(result[:, :prefix], table[:, :prefix])


def test_learned_positions_that_are_constant_stay_so():
    part = LearnedPositions(num_prefix_tokens=0, embed_dim=8)
    result = part.resample(torch.full((1, 12, 8), 0.7), (3, 4), (6, 2))
    torch.testing.assert_close(result, torch.full((1, 12, 8), 0.7), rtol=0, atol=1e-6)


def test_learned_positions_keep_rows_and_columns_apart():
    rows = torch.arange(4.0).repeat_interleave(3).reshape(1, 12, 1)  # grows down, not across
    part = LearnedPositions(num_prefix_tokens=0, embed_dim=1)
    result = part.resample(rows, (4, 3), (8, 5)).reshape(8, 5)
    torch.testing.assert_close(result, result[:, :1].expand(8, 5), rtol=0, atol=1e-5)
    assert (result[1:, 0] > result[:-1, 0]).all()


def test_learned_positions_on_their_own_grid_are_not_touched():
    part = LearnedPositions(num_prefix_tokens=1, embed_dim=8)
    table = randn(1, 13, 8)
    assert part.resample(table, (3, 4), (3, 4)) is table


def test_learned_positions_are_added():
    part = LearnedPositions(num_prefix_tokens=1, embed_dim=8)
    table, tokens = part.initial_table((2, 2)), randn(2, 5, 8)
    assert table.shape == (1, 5, 8)
    assert torch.equal(part(tokens, table), tokens + table)


def test_no_positions_make_a_bag_of_patches():
    part = NoPositions()
    tokens = randn(2, 5, 8)
    assert part.initial_table((2, 2)) is None
    assert part.resample(None, (2, 2), (3, 3)) is None
    assert part(tokens) is tokens


# Where positions are added: the three columns of the paper's table 8.


def by_hand(model, images, added):
    """Run a network with `added[i]` added before block i."""
    x = model.patch_embed(images)
    x = torch.cat((model.cls_token.expand(len(x), -1, -1), x), dim=1)
    for table, block in zip(added, model.blocks, strict=True):
        x = block(x if table is None else x + table)
    return model.forward_head(model.norm(x))


def alive(model):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return model.eval()


@torch.inference_mode()
@pytest.mark.parametrize(
    ("where", "rows"), [("stem", [0]), ("layers", [0, 1, 2]), ("layers_shared", [0, 0, 0])]
)
def test_learned_positions_where(where, rows):
    model = alive(vitzoo.create(SMALL, pos_embed={"name": "learned", "where": where}))
    assert model.pos_embed.shape == (max(rows) + 1, 13, 48)
    added = [model.pos_embed[i] for i in rows] + [None] * (3 - len(rows))
    images = randn(2, 3, 32, 24)
    torch.testing.assert_close(model(images), by_hand(model, images, added), rtol=0, atol=1e-5)


def two_d(table, grid, prefix, dim):
    """Say what learned_2d adds, (p + n, d), from its definition, token by token."""
    heads = table[: 2 * prefix].reshape(prefix, dim)
    columns = table[2 * prefix : 2 * prefix + grid[1]]
    rows = table[2 * prefix + grid[1] :]
    patches = [torch.cat((columns[x], rows[y])) for y in range(grid[0]) for x in range(grid[1])]
    return torch.cat((heads, torch.stack(patches)))


@torch.inference_mode()
@pytest.mark.parametrize(
    ("where", "rows"), [("stem", [0]), ("layers", [0, 1, 2]), ("layers_shared", [0, 0, 0])]
)
def test_learned_2d_positions_where(where, rows):
    model = alive(vitzoo.create(SMALL, pos_embed={"name": "learned_2d", "where": where}))
    assert model.pos_embed.shape == (max(rows) + 1, 2 + 3 + 4, 24)
    added = [two_d(model.pos_embed[i], (4, 3), 1, 48) for i in rows] + [None] * (3 - len(rows))
    images = randn(2, 3, 32, 24)
    torch.testing.assert_close(model(images), by_hand(model, images, added), rtol=0, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("where", ["layers", "layers_shared"])
def test_attention_maps_are_of_the_tokens_with_their_positions(where):
    model = alive(vitzoo.create(SMALL, pos_embed={"name": "learned", "where": where}))
    images, entered = randn(2, 3, 32, 24), []
    for block in model.blocks:
        block.norm1.register_forward_hook(lambda *call: entered.append(call[-1]))
    model(images)
    expected = [b.attn.probabilities(x) for b, x in zip(model.blocks, entered, strict=True)]
    maps = model.attention_maps(images)
    for layer, theirs in enumerate(expected):
        torch.testing.assert_close(maps[layer], theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_learned_2d_by_definition(prefix):
    part = Learned2dPositions(grid_size=(4, 5), num_prefix_tokens=prefix, embed_dim=12)
    table, tokens = part.initial_table((4, 5)), randn(2, prefix + 20, 12)
    expected = tokens + two_d(table[0], (4, 5), prefix, 12)
    torch.testing.assert_close(part(tokens, table), expected, rtol=0, atol=1e-6)


def test_learned_2d_follows_another_grid():
    part = Learned2dPositions(grid_size=(4, 5), num_prefix_tokens=1, embed_dim=12)
    table = randn(1, 2 + 5 + 4, 6)
    moved = part.resample(table, (4, 5), (8, 3))
    assert torch.equal(moved[:, :2], table[:, :2])
    for old, new in ((slice(2, 7), slice(2, 5)), (slice(7, 11), slice(5, 13))):
        line = table[:, old].transpose(1, 2)[:, :, None]  # one row of pixels
        size = (1, new.stop - new.start)
        expected = F.interpolate(line, size=size, mode="bicubic", antialias=True)
        expected = expected[:, :, 0].transpose(1, 2)
        torch.testing.assert_close(moved[:, new], expected, rtol=0, atol=1e-5)
    part.to_grid((8, 3))
    assert part(randn(1, 25, 12), moved).shape == (1, 25, 12)
    assert part.resample(moved, (8, 3), (8, 3)) is moved


def test_learned_2d_needs_an_even_width():
    spec = SMALL | {"embed_dim": 45, "pos_embed": "learned_2d"}
    text = message(vitzoo.InvalidOption, vitzoo.create, spec)
    says(text, "learned_2d", "even embed_dim", 45)


@pytest.mark.parametrize("name", ["learned", "learned_2d"])
def test_an_unknown_place(name):
    text = message(
        vitzoo.InvalidOption, vitzoo.create, SMALL, pos_embed={"name": name, "where": "layer"}
    )
    says(text, "where", "stem, layers, layers_shared", "'layer'")


@pytest.mark.parametrize("name", ["learned", "learned_2d", "rope"])
def test_an_unknown_way_to_resample(name):
    text = message(
        vitzoo.InvalidOption, vitzoo.create, SMALL, pos_embed={"name": name, "resample": "bicubik"}
    )
    says(text, "resample", "'bicubik'", "'bicubic'")
    text = message(
        vitzoo.InvalidOption, vitzoo.create, SMALL, pos_embed={"name": name, "resample": 3}
    )
    says(text, "resample", 3, ", ".join(RESAMPLING))


@torch.inference_mode()
def test_positions_of_patches_only():
    model = alive(vitzoo.create(SMALL, pos_embed={"name": "learned", "prefix": False}))
    assert model.pos_embed.shape == (1, 12, 48)
    zero = torch.zeros(1, 1, 48)
    images = randn(2, 3, 32, 24)
    added = [torch.cat((zero, model.pos_embed), dim=1), None, None]
    torch.testing.assert_close(model(images), by_hand(model, images, added), rtol=0, atol=1e-5)
    assert model.positions.resample(model.pos_embed, (4, 3), (2, 2)).shape == (1, 4, 48)


@pytest.mark.parametrize("where", ["stem", "layers", "layers_shared"])
@pytest.mark.parametrize("name", ["learned", "learned_2d"])
def test_positions_follow_the_image_size_of_a_whole_model(tmp_path, name, where):
    model = alive(vitzoo.create(SMALL, pos_embed={"name": name, "where": where}))
    vitzoo.save(model, tmp_path / "model.safetensors")
    loaded = vitzoo.create(tmp_path / "model.safetensors", image_size=(48, 40)).eval()
    model.set_input_size((48, 40))
    assert torch.equal(loaded.pos_embed, model.pos_embed)
    assert loaded.load_report.resampled == ("pos_embed",)
    images = randn(1, 3, 48, 40)
    torch.testing.assert_close(loaded(images), model(images), rtol=0, atol=1e-5)


# Resampling, against the functions of the libraries that the weights come from.


def scipy_zoom(table, old, new):
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


@pytest.mark.parametrize("method", RESAMPLING)
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


@pytest.mark.parametrize("method", RESAMPLING)
def test_the_option_reaches_the_table(method):
    options = {"name": "learned", "resample": method}
    model = vitzoo.create(SMALL, pos_embed=options)
    table = model.pos_embed.detach().clone()
    model.set_input_size((56, 48))
    assert torch.equal(model.pos_embed, resample_grid(table, (4, 3), (7, 6), method))
    assert dict(model.spec.pos_embed.options)["resample"] == method


@pytest.mark.parametrize("method", RESAMPLING)
@pytest.mark.parametrize("wide", [(1, 5), (2, 5), (1, 9)])
def test_a_single_column_is_resampled_as_a_single_row(method, wide):
    table = randn(1, wide[0] * wide[1], 6)
    across = resample_grid(table, wide, (1, 3), method)
    turned = table.reshape(*wide, 6).transpose(0, 1).reshape(1, -1, 6)
    down = resample_grid(turned, wide[::-1], (3, 1), method)
    torch.testing.assert_close(down, across, rtol=0, atol=1e-6)


# Rotation.


def turn(x, angle, pairs):
    """Turn each pair of elements of a vector by its angle."""
    result = x.clone()
    for (i, j), a in zip(pairs, angle, strict=True):
        result[i] = x[i] * math.cos(a) - x[j] * math.sin(a)
        result[j] = x[i] * math.sin(a) + x[j] * math.cos(a)
    return result


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
    """The product of a turned query and key depends on how far apart they stand."""
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
    """Exchanging the axes turns a grid as its transpose; an offset is a shift before scaling."""
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


class Distances(NoPositions):
    """A learned bias per layer and head, times how far apart two tokens stand in the sequence."""

    def __init__(self, *, num_heads, depth):
        super().__init__()
        self.shape = (depth, 1, num_heads)

    def initial_table(self, grid_size):
        return torch.ones(self.shape)

    def resample(self, table, old, new):
        return table

    def attention_bias(self, table, layer):
        places = torch.arange(17.0)
        return table[layer, 0][:, None, None] * (places[:, None] - places).abs()


def test_a_bias_reaches_every_block_and_the_attention_maps():
    positions = Distances(num_heads=3, depth=3)
    model = alive(vitzoo.create(SMALL | {"image_size": 32}, pos_embed=positions))
    images = randn(2, 3, 32, 32)
    maps = model.attention_maps(images)
    x = model.embed(images)
    places = torch.arange(17.0)
    for i, block in enumerate(model.blocks):
        qkv = block.attn.qkv(block.norm1(x)).reshape(2, 17, 3, 3, 16).permute(2, 0, 3, 1, 4)
        distances = (places[:, None] - places).abs() * model.pos_embed[i, 0][:, None, None]
        products = qkv[0] @ qkv[1].transpose(-2, -1) * block.attn.scale + distances
        torch.testing.assert_close(maps[i], products.softmax(-1), rtol=0, atol=1e-6)
        attended = (maps[i] @ qkv[2]).transpose(1, 2).flatten(2)
        x = x + block.attn.proj(attended)
        x = x + block.mlp(block.norm2(x))
    torch.testing.assert_close(model(images), model.forward_head(model.norm(x)))
    model.train().set_grad_checkpointing()
    model(images).square().sum().backward()
    assert (model.pos_embed.grad.abs() > 0).all()


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


KINDS = ("learned", "learned_2d", "sincos_2d", "rope", "rope_mixed", "none")


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_trains_and_survives_a_spec(name):
    model = vitzoo.create(SMALL, pos_embed=name, drop_path={"name": "linear", "rate": 0.3})
    model.set_grad_checkpointing()
    model(randn(2, 3, 32, 24)).square().sum().backward()
    again = vitzoo.create(model.spec.to_data()).eval()
    again.load_state_dict(model.state_dict(), strict=True)
    images = randn(2, 3, 32, 24)
    torch.testing.assert_close(again(images), model.eval()(images))


@pytest.mark.compile
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_compiles_as_one_graph(name):
    model, images = alive(vitzoo.create(SMALL, pos_embed=name)), randn(2, 3, 32, 24)
    torch.compiler.reset()  # networks of other tests count too
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images))
