"""Every number of every plot, compared with loops and with other algorithms.

Two weight sets; class token, registers, neither; square and non-square images.
"""

import math

import numpy as np
import pytest
import torch

import vitzoo
from helpers import fill, randn, refuses
from tables import cases
from vitzoo.apps.plot import arrays
from vitzoo.errors import InvalidInput, InvalidOption
from vitzoo.parts import ConvPatchEmbed

SIZES = {"embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
NETWORKS = {
    "class": {"image_size": (16, 24), "patch_size": 4},
    "registers": {"image_size": 42, "patch_size": 14, "num_registers": 3},
    "no prefix": {
        "image_size": (24, 8), "patch_size": (4, 2), "class_token": False, "pool": "mean",
    },
    "distilled": {
        "image_size": 12, "patch_size": 4, "num_registers": 1, "pool": "prefix",
        "head": "deit/distilled",
    },
    "only registers": {
        "image_size": 8, "patch_size": 2, "class_token": False, "num_registers": 2, "pool": "mean",
    },
}  # fmt: skip


@pytest.fixture(params=NETWORKS)
def described(request):
    """The spec of a small network."""
    return SIZES | NETWORKS[request.param]


@pytest.fixture(params=["own", "scaled"])
def model(request, described):
    """A network with one of two weight sets."""
    return fill(vitzoo.create(described), request.param)


@pytest.fixture
def images(model):
    """Three inputs."""
    return list(randn(3, model.patch_embed.in_chans, *model.image_size, seed=5))


def same(actual, expected):
    """Compare every element; the expected numbers must not be trivial."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * max(1, np.abs(expected).max()))


def by_eigenvectors(rows, count):
    """Principal components from the covariance, each with its largest number positive."""
    values, vectors = np.linalg.eigh(np.cov(rows.T))
    order = np.argsort(values)[::-1][:count]
    found = vectors[:, order].T
    signs = [math.copysign(1, max(vector, key=abs)) for vector in found]
    return found * np.array(signs)[:, None], values[order] / values.sum()


def maps_of(model, image, layer):
    with torch.no_grad():
        return model.attention_maps(image[None], [layer])[layer][0].double().numpy()


@pytest.mark.parametrize("in_chans", [1, 3, 5])
@pytest.mark.parametrize("weights", ["own", "scaled"])
def test_filters_are_the_principal_components_of_the_kernels(in_chans, weights):
    spec = SIZES | {"image_size": 16, "patch_size": (4, 2), "in_chans": in_chans, "embed_dim": 48}
    model = fill(vitzoo.create(spec), weights)
    kernels = model.state_dict()["patch_embed.proj.weight"].double().reshape(48, -1).numpy()
    count = min(28, kernels.shape[1])
    expected, shares = by_eigenvectors(kernels, count)
    found = arrays.patch_filters(model)
    assert found["filters"].shape == (count, 4, 2, in_chans)
    for k in range(count):
        for c in range(in_chans):
            pixels = expected[k].reshape(in_chans, 4, 2)[c]
            same(found["filters"][k, :, :, c], pixels)
    same(found["variance"], shares)


def test_filters_of_a_patch_embedder_without_kernel_are_refused():
    class Other(ConvPatchEmbed):
        input_conv = "norm.weight"

    stem = Other(patch_size=(4, 4), in_chans=3, embed_dim=24, norm="layer")
    model = vitzoo.create(SIZES | {"image_size": 8, "patch_size": 4}, patch_embed=stem)
    with refuses(InvalidOption, "Other", "norm.weight (d, c, h, w)", "proj.weight (24, 3, 4, 4)"):
        arrays.patch_filters(model)


def test_filters_of_a_hybrid_are_those_of_the_resnets_first_kernel():
    part = {"name": "hybrid/resnet_stem", "width": 32}
    model = vitzoo.create(SIZES | {"image_size": 32, "patch_size": 8, "patch_embed": part})
    kernel = dict(model.named_parameters())["patch_embed.backbone.conv.weight"]
    expected, _ = by_eigenvectors(kernel.detach().double().reshape(32, -1).numpy(), 3)
    found = arrays.patch_filters(model, 3)["filters"]
    same(found.transpose(0, 3, 1, 2).reshape(3, -1), expected)


def cosine(a, b):
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def test_learned_positions_are_compared_by_cosine(model):
    (height, width), prefix = model.grid_size, model.num_prefix_tokens
    found, what = arrays.position_similarity(model)
    assert what == arrays.ADDED
    table = model.pos_embed[0].double().detach()
    for y, x, v, u in np.ndindex(height, width, height, width):
        a, b = table[prefix + y * width + x], table[prefix + v * width + u]
        assert found["similarity"][y, x, v, u] == pytest.approx(cosine(a, b), abs=1e-9)


def test_two_dimensional_positions_join_column_and_row():
    model = fill(vitzoo.create(SIZES | NETWORKS["class"], pos_embed="learned_2d"))
    table = model.pos_embed[0, 2:].double().detach()  # after the two halves of the class token
    columns, rows = table[:6], table[6:]
    found = arrays.position_similarity(model)[0]["similarity"]
    for y, x, v, u in np.ndindex(4, 6, 4, 6):
        a, b = torch.cat((columns[x], rows[y])), torch.cat((columns[u], rows[v]))
        assert found[y, x, v, u] == pytest.approx(cosine(a, b), abs=1e-6)


def test_a_table_of_each_block_is_chosen_by_its_index():
    part = {"name": "learned", "where": "layers"}
    model = fill(vitzoo.create(SIZES | NETWORKS["class"], pos_embed=part))
    for layer in (0, 2):
        table = model.pos_embed[layer].double().detach()
        found = arrays.position_similarity(model, layer)[0]["similarity"]
        assert found[1, 2, 3, 4] == pytest.approx(cosine(table[1 + 8], table[1 + 22]), abs=1e-9)


def test_sines_and_cosines_are_compared():
    model = vitzoo.create(SIZES | NETWORKS["class"], pos_embed="sincos_2d")
    found = arrays.position_similarity(model)[0]["similarity"]
    frequency = [10_000 ** (-i / 5) for i in range(6)]

    def vector(y, x):
        waves = [f(a * w) for a in (x, y) for f in (math.sin, math.cos) for w in frequency]
        return np.array(waves)

    for y, x, v, u in np.ndindex(4, 6, 4, 6):
        expected = cosine(vector(y, x), vector(v, u))
        assert found[y, x, v, u] == pytest.approx(expected, abs=1e-6)


def test_rotary_positions_give_the_mean_cosine_of_the_angles_between_patches():
    model = vitzoo.create(SIZES | NETWORKS["class"], pos_embed="rope")
    found, what = arrays.position_similarity(model)
    assert what == arrays.ROTATED
    height, width = model.grid_size
    frequency = [100.0 ** (-i / 2) for i in range(2)]
    for y, x, v, u in np.ndindex(height, width, height, width):
        sides = (4 * math.pi * (y - v) / height, 4 * math.pi * (x - u) / width)
        angles = [side * w for side in sides for w in frequency]
        expected = sum(map(math.cos, angles)) / len(angles)
        assert found["similarity"][y, x, v, u] == pytest.approx(expected, abs=1e-5)


def test_learned_rotations_are_compared_by_block_and_head():
    model = fill(vitzoo.create(SIZES | NETWORKS["class"], pos_embed="rope_mixed"))
    freqs = model.positions.freqs.double().detach()  # (2, depth, heads, head_dim / 2)
    for layer, heads in ((0, [1]), (2, [0, 2])):
        found = arrays.position_similarity(model, layer, heads)[0]["similarity"]
        for y, x, v, u in np.ndindex(4, 6, 4, 6):
            angles = (x - u) * freqs[0, layer, heads] + (y - v) * freqs[1, layer, heads]
            assert found[y, x, v, u] == pytest.approx(angles.cos().mean().item(), abs=1e-5)


def test_a_bias_is_shown_by_difference_of_rows_and_columns():
    spec = SIZES | {"image_size": (12, 16), "patch_size": 4, "pos_embed": "mim/relative"}
    model = fill(vitzoo.create(spec))
    table = model.pos_embed.double().detach()
    found, _ = arrays.position_similarity(model, 1, [2])
    assert set(found) == {"bias"}
    for y, x, v, u in np.ndindex(3, 4, 3, 4):
        row = (y - v + 2) * 7 + x - u + 3
        assert found["bias"][y, x, v, u] == pytest.approx(table[1, row, 2].item(), abs=1e-6)


@pytest.mark.parametrize(
    ("part", "layer", "parts"),
    [
        ("none", 0, ["NoPositions", "adds nothing before block 0", "another kind"]),
        ("relative", 0, ["RelativePositions", "depends on the image"]),
        ("learned", 1, ["LearnedPositions", "before block 1", "layers=[0]"]),
    ],
)
def test_positions_that_cannot_be_compared_are_named(part, layer, parts):
    model = vitzoo.create(SIZES | NETWORKS["class"], pos_embed=part)
    with refuses(InvalidOption, *parts):
        arrays.position_similarity(model, layer)


def test_positions_of_too_many_patches_are_refused():
    model = vitzoo.create(SIZES | {"image_size": 130, "patch_size": 2, "depth": 1})
    with refuses(InvalidOption, "4096", "65x65", "smaller image_size"):
        arrays.position_similarity(model)


def test_positions_that_are_added_have_no_heads():
    with refuses(InvalidOption, "no heads", "[1]"):
        arrays.position_similarity(vitzoo.create(SIZES | NETWORKS["class"]), 0, [1])


def test_attention_distance_is_that_of_a_loop(model, images):
    (height, width), prefix = model.grid_size, model.num_prefix_tokens
    side = [a / b for a, b in zip(model.image_size, model.grid_size, strict=True)]
    patches = [(y, x) for y in range(height) for x in range(width)]
    found = arrays.attention_distance(model, images[:2], [-1, 0])
    assert found["layers"].tolist() == [0, 2]
    for i, layer in enumerate((0, 2)):
        expected, shares = np.zeros(3), np.zeros(3)
        for image in images[:2]:
            maps = maps_of(model, image, layer)
            for head in range(3):
                for q, (y, x) in enumerate(patches):
                    row = maps[head, prefix + q, prefix:]
                    far = [math.dist((y * side[0], x * side[1]), (v * side[0], u * side[1]))
                           for v, u in patches]  # fmt: skip
                    total = sum(w * d for w, d in zip(row, far, strict=True)) / sum(row)
                    expected[head] += total / len(patches) / 2
                    shares[head] += maps[head, prefix + q, :prefix].sum() / len(patches) / 2
        same(found["distance"][i], expected)
        np.testing.assert_allclose(found["to_prefix"][i], shares, atol=2e-6)
    everywhere = [math.dist((y * side[0], x * side[1]), (v * side[0], u * side[1]))
                  for y, x in patches for v, u in patches]  # fmt: skip
    assert found["uniform"] == pytest.approx(sum(everywhere) / len(everywhere))


def test_the_distance_is_in_px_of_the_image_where_patches_leave_pixels_out():
    spec = {"image_size": 15, "patch_size": 4, "patch_embed": "siglip/cropped"}
    model = fill(vitzoo.create(SIZES | spec))
    found = arrays.attention_distance(model, [randn(3, 15, 15)])
    steps = [math.hypot(4 * (a - c), 4 * (b - d)) for a, b, c, d in np.ndindex(3, 3, 3, 3)]
    assert found["uniform"] == pytest.approx(np.mean(steps))


def test_attention_is_that_of_the_class_token_or_the_mean_over_patches(model, images):
    prefix, grid = model.num_prefix_tokens, model.grid_size
    found = arrays.attention_of(model, images[0], [2, 0], [-1, 1])
    assert (found["layers"].tolist(), found["heads"].tolist()) == ([2, 0], [2, 1])
    for i, layer in enumerate((2, 0)):
        maps = maps_of(model, images[0], layer)
        for j, head in enumerate((2, 1)):
            queries = maps[head, :1] if model.cls_token is not None else maps[head, prefix:]
            row = sum(queries) / len(queries)
            same(found["attention"][i, j], row[prefix:].reshape(grid))
            np.testing.assert_allclose(found["to_prefix"][i, j], row[:prefix], atol=2e-6)
    sums = found["attention"].sum(axis=(2, 3)) + found["to_prefix"].sum(axis=2)
    np.testing.assert_allclose(sums, 1, atol=1e-6)


def test_attention_of_a_patch(model, images):
    (_, width), prefix = model.grid_size, model.num_prefix_tokens
    found = arrays.attention_of(model, images[1], query=(1, 2))
    for layer in range(3):
        row = maps_of(model, images[1], layer)[:, prefix + width + 2]
        same(found["attention"][layer].reshape(3, -1), row[:, prefix:])


@pytest.mark.parametrize("query", [(4, 0), (0, -1), (1,), 3, "11", (0.0, 1), (True, 1)])
def test_a_query_that_is_no_patch_is_refused(query):
    model = vitzoo.create(SIZES | NETWORKS["class"])
    with refuses(InvalidOption, "(0, 0) to (3, 5)", repr(query)):
        arrays.attention_of(model, randn(3, 16, 24), query=query)


@pytest.mark.parametrize("heads", [[3], [-4], [], "1", [0.0], 2, [True]])
def test_heads_that_do_not_exist_are_refused(heads):
    model = vitzoo.create(SIZES | NETWORKS["class"])
    with refuses(InvalidOption, "indices from 0 to 2", repr(heads)):
        arrays.attention_of(model, randn(3, 16, 24), heads=heads)


def test_rollout_is_the_product_of_a_loop(model, images):
    prefix, grid, tokens = model.num_prefix_tokens, model.grid_size, None
    for layer in range(3):
        maps = maps_of(model, images[2], layer)
        size = maps.shape[1]
        mixed = np.zeros((size, size))
        for i in range(size):
            for j in range(size):
                mixed[i, j] = 0.5 * sum(maps[h, i, j] for h in range(3)) / 3 + 0.5 * (i == j)
            mixed[i] /= sum(mixed[i])
        if tokens is None:
            tokens = mixed
        else:  # what each token of the block reads, traced back to the tokens before the first
            tokens = np.array([[sum(mixed[i, k] * tokens[k, j] for k in range(size))
                                for j in range(size)] for i in range(size)])  # fmt: skip
    found = arrays.rollout_of(model, images[2])
    same(found["matrix"], tokens)
    np.testing.assert_allclose(found["matrix"].sum(axis=1), 1, atol=1e-9)
    row = tokens[0] if model.cls_token is not None else tokens[prefix:].mean(axis=0)
    same(found["rollout"], row[prefix:].reshape(grid))
    of_patch = arrays.rollout_of(model, images[2], query=(0, 1))
    same(of_patch["rollout"], tokens[prefix + 1, prefix:].reshape(grid))


@cases("layers", [None, [0, -1]])
def test_token_colours_are_scaled_principal_components(model, images, layers):
    prefix, shape = model.num_prefix_tokens, (3, *model.grid_size, 3)
    names = ["norm"] if layers is None else ["blocks.0", "blocks.2"]
    found = arrays.token_colours(model, images, layers)
    assert found["layers"].tolist() == ([] if layers is None else [0, 2])
    with torch.no_grad():  # one by one: close eigenvalues enlarge the rounding of another batch
        outputs = [model.features(image[None], names) for image in images]
    for i, name in enumerate(names):
        rows = (
            torch.cat([one[name] for one in outputs])[:, prefix:].double().reshape(-1, 24).numpy()
        )
        components, shares = by_eigenvectors(rows, 3)
        same(found["components"][i], components)
        same(found["variance"][i], shares)
        scores = (rows - rows.mean(axis=0)) @ components.T
        same(found["scores"][i], scores.reshape(shape))
        for c in range(3):
            column = scores[:, c]
            expected = (column - min(column)) / (max(column) - min(column))
            same(found["colours"][i, ..., c], expected.reshape(shape[:3]))


def test_three_colours_need_four_patches():
    model = vitzoo.create(SIZES | {"image_size": (4, 12), "patch_size": 4})
    image = randn(3, 4, 12)
    with refuses(InvalidOption, "3 principal components", "1x3", "more images"):
        arrays.token_colours(model, [image])
    assert arrays.token_colours(model, [image, image + 1])["colours"].shape == (1, 2, 1, 3, 3)


def test_equal_tokens_have_one_colour():
    model = vitzoo.create(SIZES | {"image_size": 8, "patch_size": 4}, pos_embed="none")
    found = arrays.token_colours(model, [torch.zeros(3, 8, 8)])
    assert np.isfinite(found["variance"]).all()
    assert np.ptp(found["colours"], axis=(1, 2, 3)).max() <= 1


def test_the_maps_of_few_blocks_at_a_time_give_the_same_numbers(monkeypatch):
    model = fill(vitzoo.create(SIZES | NETWORKS["class"]))
    image = randn(3, 16, 24)
    at_once = arrays.rollout_of(model, image)["matrix"]
    calls = []
    original = model.attention_maps
    counted = lambda x, part: calls.append(part) or original(x, part)  # noqa: E731
    monkeypatch.setattr(model, "attention_maps", counted)
    monkeypatch.setattr(arrays, "MAPS_AT_ONCE", 1)
    assert (arrays.rollout_of(model, image)["matrix"] == at_once).all()
    assert calls == [[0], [1], [2]]


def test_the_model_computes_as_in_evaluation_and_keeps_its_mode():
    model = fill(vitzoo.create(SIZES | NETWORKS["class"], dropout=0.5, drop_path=0.5))
    image = randn(3, 16, 24)
    expected = arrays.token_colours(model, [image])["scores"]
    model.train()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    assert (arrays.token_colours(model, [image])["scores"] == expected).all()
    assert [module.training for module in model.modules()] == modes
    with refuses(InvalidInput, "(b, 3, 16, 24)"):
        arrays.rollout_of(model, image[:1])
    assert [module.training for module in model.modules()] == modes


def test_half_precision_and_dynamic_sizes():
    model = fill(vitzoo.create(SIZES | NETWORKS["class"], dynamic=True))
    image = randn(3, 24, 32)
    found = arrays.attention_of(model, image)["attention"]
    assert found.shape == (3, 3, 6, 8)
    model.set_input_size((24, 32))
    same(found, arrays.attention_of(model, image)["attention"])
    half = arrays.attention_of(model.bfloat16(), image.bfloat16())["attention"]
    np.testing.assert_allclose(half, found, atol=0.05)
