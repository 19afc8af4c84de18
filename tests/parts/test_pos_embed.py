"""Position embeddings: the values that each adds, the blocks, and another grid."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import vitzoo
from helpers import SMALL as SQUARE, message, randn, refuses, says
from positions import alive
from tables import cases
from vitzoo.errors import InvalidOption
from vitzoo.parts import (
    Learned2dPositions,
    LearnedPositions,
    NoPositions,
    SinCos1dPositions,
    SinCos2dPositions,
)
from vitzoo.parts.pos_embed import WHERE
from vitzoo.parts.resample import RESAMPLING

SMALL = SQUARE | {"image_size": [32, 24]}


def big_vision_sincos_2d(height, width, dim, temperature=10_000.0):
    """`posemb_sincos_2d` of big_vision's models/vit.py, in numpy."""
    y, x = np.mgrid[:height, :width]
    omega = np.arange(dim // 4) / (dim // 4 - 1)
    omega = 1.0 / (temperature**omega)
    y = np.einsum("m,d->md", y.flatten(), omega)
    x = np.einsum("m,d->md", x.flatten(), omega)
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)


@cases("grid", [(14, 14), (5, 9), (9, 5), (1, 3)])
@cases("dim", [8, 48, 192])
def test_sincos_2d_is_big_visions(grid, dim):
    part = SinCos2dPositions(grid_size=grid, num_prefix_tokens=0, embed_dim=dim)
    expected = torch.from_numpy(big_vision_sincos_2d(*grid, dim)).float()
    tokens = torch.zeros(1, grid[0] * grid[1], dim)
    torch.testing.assert_close(part(tokens)[0], expected, rtol=0, atol=1e-7)


def test_sincos_2d_takes_another_temperature():
    part = SinCos2dPositions(grid_size=(3, 4), num_prefix_tokens=0, embed_dim=16, temperature=100.0)
    expected = torch.from_numpy(big_vision_sincos_2d(3, 4, 16, 100.0)).float()
    torch.testing.assert_close(part(torch.zeros(1, 12, 16))[0], expected, rtol=0, atol=1e-7)


def test_sincos_2d_without_endpoint_divides_by_the_number_of_frequencies():
    part = SinCos2dPositions(grid_size=(1, 4), num_prefix_tokens=0, embed_dim=8, endpoint=False)
    x = torch.arange(4.0)[:, None] * torch.tensor([1.0, 0.01])
    torch.testing.assert_close(part.table[0, :, :4], torch.cat((x.sin(), x.cos()), dim=1))
    with refuses(InvalidOption, "endpoint", "got 1"):
        SinCos2dPositions(grid_size=(1, 4), num_prefix_tokens=0, embed_dim=8, endpoint=1)


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


def transformer_sincos(length, dim, temperature=10_000.0):
    """Section 3.5 of arXiv:1706.03762, number by number."""
    table = np.zeros((length, dim))
    for t in range(length):
        for i in range(dim // 2):
            angle = t / temperature ** (2 * i / dim)
            table[t, 2 * i], table[t, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return torch.from_numpy(table).float()


@pytest.mark.parametrize("dim", [2, 10, 48])
@pytest.mark.parametrize("temperature", [10_000.0, 100])
def test_sincos_1d_is_that_of_the_first_transformer(dim, temperature):
    sizes = {"grid_size": (3, 5), "num_prefix_tokens": 2, "embed_dim": dim}
    tokens, options = randn(2, 17, dim), {"temperature": temperature}
    table = transformer_sincos(17, dim, temperature)
    part = SinCos1dPositions(**sizes, **options)
    torch.testing.assert_close(part(tokens), tokens + table, rtol=0, atol=1e-6)
    part = SinCos1dPositions(**sizes, **options, prefix=False)
    added = torch.cat((torch.zeros(2, dim), table[:15]))
    torch.testing.assert_close(part(tokens), tokens + added, rtol=0, atol=1e-6)


@pytest.mark.parametrize("where", WHERE)
def test_sincos_1d_before_the_first_block_or_before_each(where):
    sizes = {"grid_size": (2, 3), "num_prefix_tokens": 1, "embed_dim": 8}
    part, tokens = SinCos1dPositions(**sizes, where=where), randn(2, 7, 8)
    assert torch.equal(part(tokens, None, 0), tokens + part.table)
    assert torch.equal(part(tokens, None, 1), tokens + (0 if where == "stem" else part.table))
    part.to_grid((4, 2))
    fresh = SinCos1dPositions(**(sizes | {"grid_size": (4, 2)}), where=where)
    assert torch.equal(part.table, fresh.table)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"temperature": 1}, ("temperature", "above 1", "got 1")),
        ({"prefix": 1}, ("prefix", "true or false", "got 1")),
        ({"where": "everywhere"}, ("where", "'everywhere'", "layers_shared")),
    ],
)
def test_wrong_options_of_sincos_1d_are_refused(options, said):
    spec = SMALL | {"pos_embed": {"name": "sincos_1d", **options}}
    says(message(vitzoo.InvalidOption, vitzoo.create, spec), *said)


def test_sincos_1d_needs_an_even_width():
    spec = SMALL | {"embed_dim": 27, "num_heads": 3, "pos_embed": "sincos_1d"}
    says(message(vitzoo.InvalidOption, vitzoo.create, spec), "sincos_1d", "even", "27")


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
    """Compute the (p + n, d) values that learned_2d adds, from its definition, token by token."""
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


@pytest.mark.parametrize("name", ["learned", "learned_2d", "relative", "rope"])
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


WITH_TABLE = [
    *({"name": name, "where": where} for name in ("learned", "learned_2d") for where in WHERE),
    *({"name": "relative", "shared": shared} for shared in (False, True)),
]


@cases("part", WITH_TABLE, ids=lambda part: "-".join(map(str, part.values())))
def test_positions_follow_the_image_size_of_a_whole_model(tmp_path, part):
    model = alive(vitzoo.create(SMALL, pos_embed=part))
    vitzoo.save(model, tmp_path / "model.safetensors")
    loaded = vitzoo.create(tmp_path / "model.safetensors", image_size=(48, 40)).eval()
    model.set_input_size((48, 40))
    assert torch.equal(loaded.pos_embed, model.pos_embed)
    assert loaded.load_report.resampled == ("pos_embed",)
    images = randn(1, 3, 48, 40)
    torch.testing.assert_close(loaded(images), model(images), rtol=0, atol=1e-5)


class Distances(NoPositions):
    """A learned bias for each layer and head, times the distance of two tokens in the sequence."""

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


FIXED = ("sincos_1d", "sincos_2d", "rope", "none")
KINDS = ("learned", "learned_2d", "relative", "decomposed", "rope_mixed", *FIXED)


@cases("name", KINDS)
def test_every_kind_trains_and_survives_a_spec(name):
    model = vitzoo.create(SMALL, pos_embed=name, drop_path={"name": "linear", "rate": 0.3})
    model.set_grad_checkpointing()
    model(randn(2, 3, 32, 24)).square().sum().backward()
    again = vitzoo.create(model.spec.to_data()).eval()
    again.load_state_dict(model.state_dict(), strict=True)
    images = randn(2, 3, 32, 24)
    torch.testing.assert_close(again(images), model.eval()(images))


@pytest.mark.one_in(4)
@pytest.mark.compile
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_compiles_as_one_graph(name):
    model, images = alive(vitzoo.create(SMALL, pos_embed=name)), randn(2, 3, 32, 24)
    torch.compiler.reset()  # networks of other tests count too
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images))
