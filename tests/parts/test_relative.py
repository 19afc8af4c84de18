"""Relative positions against a loop written from the ViT paper's appendix D.4; other grids."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import vitzoo
from helpers import SMALL, close, fill, message, randn, says
from tables import cases
from vitzoo.parts.relative import RelativePositions
from vitzoo.parts.resample import RESAMPLING

NETWORKS = {
    "class token": {},
    "registers": {"num_registers": 2},
    "no prefix tokens": {"class_token": False, "pool": "mean"},
    "a factor of its own, normed queries": {"block": {"qk_scale": 0.4, "qk_norm": True}},
    "parallel": {"block": {"parallel": True}},
}


def encode(model, tokens):
    """Encode the tokens (t, d) of one image with loops; return them and the probabilities.

    For every pair of patches, one as query and the other as key, there is an offset p_q - p_k with
    an embedding. An extra attention has the same queries, and those embeddings as keys. Its logits
    are a bias, added to the logits of the main attention before the softmax.
    """
    prefix, heads = model.num_prefix_tokens, model.spec.num_heads
    patches, maps = len(tokens) - prefix, []
    for layer, block in enumerate(model.blocks):
        embeddings = model.pos_embed[layer % len(model.pos_embed)]  # (2 n - 1, d)
        norm = block.norm if model.spec.block.parallel else block.norm1
        queries, keys, values = block.attn.qkv(norm(tokens)).chunk(3, dim=-1)  # (t, d) each
        width = queries.shape[1] // heads
        probabilities, joined = torch.zeros(heads, len(tokens), len(tokens)), []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            for i in range(len(tokens)):
                query, logits = block.attn.q_norm(queries[i, part]), []
                for j in range(len(tokens)):
                    logit = query @ block.attn.k_norm(keys[j, part])
                    if i >= prefix and j >= prefix:
                        offset = (i - prefix) - (j - prefix)  # p_q - p_k
                        logit = logit + query @ embeddings[offset + patches - 1, part]
                    logits.append(logit * (model.spec.block.qk_scale or width**-0.5))
                probabilities[head, i] = torch.stack(logits).softmax(0)
            joined.append(probabilities[head] @ values[:, part])
        attended = block.attn.proj(torch.cat(joined, dim=1))
        if model.spec.block.parallel:
            tokens = tokens + attended + block.mlp(norm(tokens))
        else:
            tokens = tokens + attended
            tokens = tokens + block.mlp(block.norm2(tokens))
        maps.append(probabilities)
    return tokens, maps


@pytest.mark.slow
@torch.no_grad()
@cases("weights", ["own", "scaled"])
@cases("shared", [False, True])
@cases("network", NETWORKS)
def test_every_number_is_that_of_the_papers_text(network, shared, weights):
    spec = SMALL | NETWORKS[network] | {"image_size": [32, 24]}
    model = fill(vitzoo.create(spec, pos_embed={"name": "relative", "shared": shared}), weights)
    images = randn(2, 3, 32, 24)
    entering, features = model.embed(images), model.forward_features(images)
    maps = model.attention_maps(images)
    for image in range(2):
        tokens, expected = encode(model, entering[image])
        for layer, probabilities in enumerate(expected):
            close(maps[layer][image], probabilities)
        close(features[image], model.norm(tokens))
    close(model(images), model.forward_head(features))  # computes only what the pool reads


def test_the_embeddings_move_the_result():
    model = fill(vitzoo.create(SMALL, pos_embed="relative"))
    images = randn(2, 3, 32, 32)
    with torch.no_grad():
        before = model.forward_features(images)
        for layer in range(3):
            table = model.pos_embed.clone()
            model.pos_embed[layer] = table[layer].flip(0)
            assert (model.forward_features(images) - before).abs().max() > 1e-3
            model.pos_embed.copy_(table)


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_pairs_with_prefix_tokens_have_no_bias(prefix):
    part = RelativePositions(num_prefix_tokens=prefix, embed_dim=8, num_heads=2, depth=1)
    bias = part.attention_bias(part.initial_table((2, 3)), 0)
    queries = randn(2, 2, prefix + 6, 4)
    whole = bias(queries)
    assert whole.shape == (2, 2, prefix + 6, prefix + 6)
    assert not whole[:, :, :prefix].any()
    assert not whole[:, :, :, :prefix].any()
    assert whole[:, :, prefix:, prefix:].all()
    for count in range(1, prefix + 7):
        torch.testing.assert_close(bias(queries[:, :, :count]), whole[:, :, :count])


@cases("method", ["bicubic_antialias", "bilinear"])
@cases(("old", "new"), [((3, 4), (5, 2)), ((2, 2), (4, 3)), ((4, 4), (1, 5)), ((5, 3), (3, 1))])
def test_another_grid_by_definition(old, new, method):
    part = RelativePositions(
        num_prefix_tokens=1, embed_dim=6, num_heads=2, depth=2, resample=method
    )
    table = part.initial_table(old)
    (h, w), (height, width) = old, new
    laid = torch.zeros(2, 6, 2 * h - 1, 2 * w - 1)  # by rows and columns between two patches
    for down, right in itertools.product(range(1 - h, h), range(1 - w, w)):
        laid[:, :, down + h - 1, right + w - 1] = table[:, down * w + right + h * w - 1]
    size = (2 * height - 1, 2 * width - 1)
    if width == 1:  # torch's antialiased pass is wrong for one column
        options = RESAMPLING[method]
        laid = F.interpolate(laid.transpose(2, 3), size=size[::-1], **options).transpose(2, 3)
    else:
        laid = F.interpolate(laid, size=size, **RESAMPLING[method])
    expected, found = part.initial_table(new), {}
    places = list(itertools.product(range(height), range(width)))
    for (p, query), (q, key) in itertools.product(enumerate(places), repeat=2):
        down, right = query[0] - key[0], query[1] - key[1]
        found.setdefault(p - q, []).append(laid[:, :, down + height - 1, right + width - 1])
    for offset, vectors in found.items():
        expected[:, offset + height * width - 1] = sum(vectors) / len(vectors)
    assert len(found) == expected.shape[1]
    torch.testing.assert_close(part.resample(table, old, new), expected, rtol=0, atol=1e-6)
    assert part.resample(table, old, old) is table


def test_a_checkpoint_of_another_size_keeps_what_it_learned(tmp_path):
    """Neighbours in a row have the same attention on a larger grid."""
    model = fill(vitzoo.create(SMALL, pos_embed="relative"))
    path = vitzoo.save(model, tmp_path / "net.safetensors")
    larger = vitzoo.create(path, image_size=64).eval()
    assert larger.load_report.resampled == ("pos_embed",)
    assert larger.pos_embed.shape == (3, 2 * 64 - 1, 48)
    model.set_input_size(64)
    images = randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(larger(images), model(images))


def test_it_starts_as_the_other_tables():
    part = RelativePositions(num_prefix_tokens=1, embed_dim=64, num_heads=2, depth=4)
    table = part.initial_table((14, 14))
    assert table.shape == (4, 2 * 196 - 1, 64)
    assert math.isclose(float(table.std()), 0.02, rel_tol=0.02)
    tokens = randn(2, 5, 64)
    assert part(tokens, table, 1) is tokens


def test_wrong_options():
    part = {"name": "relative", "shared": 1}
    says(message(vitzoo.InvalidOption, vitzoo.create, SMALL, pos_embed=part), "shared", "false", 1)


@pytest.mark.parametrize("mode", ["mask", "subset"])
def test_it_trains_with_dropped_branches(mode):
    rates = {"name": "constant", "rate": 0.5, "mode": mode}
    model = fill(vitzoo.create(SMALL, pos_embed="relative", pool="mean", drop_path=rates)).train()
    torch.manual_seed(0)
    model(randn(8, 3, 32, 32)).square().sum().backward()
    reached = model.pos_embed.grad.abs().amax(-1) > 0  # every offset of every block
    assert reached.all()


@pytest.mark.compile
def test_it_exports_for_any_batch_size():
    model = fill(vitzoo.create(SMALL, pos_embed="relative"))
    batch = {"images": {0: torch.export.Dim("b", min=1, max=64)}}
    exported = torch.export.export(model, (randn(2, 3, 32, 32),), dynamic_shapes=batch).module()
    for size in (2, 5):
        images = randn(size, 3, 32, 32)
        torch.testing.assert_close(exported(images), model(images), rtol=0, atol=1e-6)
