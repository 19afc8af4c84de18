"""Window attention against loops over tokens, and what it does not go with."""

from __future__ import annotations

import pytest
import torch
from torch import fx

import vitzoo
from helpers import SMALL, close, fill, randn, refuses
from tables import cases
from vitzoo.errors import InvalidOption
from vitzoo.network.summary import summarize

pytestmark = pytest.mark.usefixtures("_one_thread")
NETWORKS = {
    "class token": ({}, {"window": 2}),
    "filled": ({"image_size": (40, 24), "num_registers": 2}, {"window": 2, "qk_norm": True}),
    "no prefix tokens": ({"image_size": (24, 56), "class_token": False, "pool": "mean"},
                         {"window": 3, "global_blocks": [1]}),
    "rotary": ({"image_size": (40, 24), "pos_embed": "rope"}, {"window": 2, "global_blocks": [-1]}),
    "mixed rotary": ({"pos_embed": "rope_mixed", "pool": "mean"}, {"window": 3, "qkv_bias": "qv"}),
    "norms after": ({"pool": {"name": "attention", "prefix": True}},
                    {"window": 3, "post_norm": True, "layer_scale": 0.5}),
    "parallel": ({"image_size": (24, 40)}, {"window": 2, "parallel": True, "attn_norm": True}),
    "larger than the image": ({"image_size": 24}, {"window": 5, "qkv_bias": False}),
}  # fmt: skip


def make(name, weights="scaled"):
    changes, block = NETWORKS[name]
    return fill(vitzoo.create(SMALL | changes, block=block), weights).double()


def images(model, count=2):
    return randn(count, 3, *model.image_size, seed=3).double()


def attention(model, layer, x):
    """Return the attention branch and the maps of block `layer`, by a loop over the tokens."""
    attn, p = model.blocks[layer].attn, model.num_prefix_tokens
    (rows, columns), window = model.grid_size, model.spec.block.window
    everywhere = layer in [i % len(model.blocks) for i in model.spec.block.global_blocks]
    zero = torch.zeros_like(x[:1])
    qkv = attn.qkv(torch.cat((x, zero)))
    if attn.q_bias is not None:
        qkv = qkv + torch.cat((attn.q_bias, torch.zeros_like(attn.q_bias), attn.v_bias))
    q, k, v = qkv.reshape(len(x) + 1, 3, attn.num_heads, attn.head_dim).permute(1, 2, 0, 3)
    q, k = attn.q_norm(q), attn.k_norm(k)
    if hasattr(model.positions, "rotate"):
        q, k = (
            torch.cat((model.positions.rotate(one[None, :, :-1], layer)[0], one[:, -1:]), dim=1)
            for one in (q, k)
        )
    maps, results = torch.zeros(attn.num_heads, len(x), len(x)).double(), []
    for token in range(len(x)):
        keys = list(range(len(x)))
        if token >= p and not everywhere:
            row, column = divmod(token - p, columns)
            top, left = row // window * window, column // window * window
            places = [(r, c) for r in range(top, top + window) for c in range(left, left + window)]
            inside = [p + r * columns + c if r < rows and c < columns else -1 for r, c in places]
            keys = [*range(p), *inside]
        share = (k[:, keys] @ q[:, token, :, None] * attn.scale).softmax(dim=1)[..., 0]
        results.append((share[:, None] @ v[:, keys])[:, 0].flatten())
        for number, key in enumerate(keys):
            maps[:, token, key] += share[:, number] * (key >= 0)
    return attn.proj(attn.norm(torch.stack(results))), maps


def reference(model, image):
    """Return the tokens after each block, and the attention maps."""
    x, found, every = model.embed(image[None])[0], [], []
    for layer, block in enumerate(model.blocks):
        options = model.spec.block
        if options.parallel:
            normed = block.norm(x)
            branch, maps = attention(model, layer, normed)
            x = x + branch + block.mlp(normed)
        elif options.post_norm:
            branch, maps = attention(model, layer, x)
            x = x + block.ls1(block.norm1(branch))
            x = x + block.ls2(block.norm2(block.mlp(x)))
        else:
            branch, maps = attention(model, layer, block.norm1(x))
            x = x + block.ls1(branch)
            x = x + block.ls2(block.mlp(block.norm2(x)))
        found.append(x)
        every.append(maps)
    return found, every


@pytest.mark.slow
@cases("weights", ["own", "scaled"])
@cases("name", NETWORKS)
@torch.inference_mode()
def test_every_token_equals_a_loop_over_windows(name, weights):
    model = make(name, weights)
    batch = images(model)
    maps = model.attention_maps(batch)
    names = [f"blocks.{i}" for i in range(len(model.blocks))]
    results = model.features(batch, names)
    logits = []
    for number, image in enumerate(batch):
        tokens, expected = reference(model, image)
        for layer, block in enumerate(names):
            torch.testing.assert_close(results[block][number], tokens[layer], rtol=0, atol=1e-9)
            torch.testing.assert_close(maps[layer][number], expected[layer], rtol=0, atol=1e-9)
        logits.append(model.forward_head(model.norm(tokens[-1][None]))[0])
    torch.testing.assert_close(model(batch), torch.stack(logits), rtol=0, atol=1e-9)
    for block in model.blocks:
        block.attn.fused_attn = False
    torch.testing.assert_close(model(batch), torch.stack(logits), rtol=0, atol=1e-9)


@cases("weights", ["own", "scaled"])
@cases(
    "changes",
    [{}, {"num_registers": 2}, {"class_token": False, "pool": "mean"}, {"pos_embed": "rope"}],
    ids=str,
)
@torch.inference_mode()
def test_a_window_of_the_whole_image_changes_nothing(changes, weights):
    whole = fill(vitzoo.create(SMALL | changes), weights)
    model = vitzoo.create(SMALL | changes, block={"window": 4}).eval()
    model.load_state_dict(whole.state_dict())
    batch = randn(2, 3, 32, 32)
    for one, other in (
        (model.forward_features(batch), whole.forward_features(batch)),
        (model(batch), whole(batch)),
        (model.attention_maps(batch)[2], whole.attention_maps(batch)[2]),
    ):
        scale = max(1, other.abs().max().item())
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * scale)


def test_gradients_reach_the_filling():
    model = make("filled").train()
    model.set_grad_checkpointing()
    batch = images(model)
    model(batch).square().sum().backward()
    bias = model.blocks[0].attn.qkv.bias
    found = bias.grad[0].item()
    model.set_grad_checkpointing(False)
    values = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            bias[0] += step
            values.append(model(batch).square().sum().item())
            bias[0] -= step
    assert found == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4)


@torch.inference_mode()
def test_the_grid_follows_the_size_of_the_images():
    model = fill(vitzoo.create(SMALL, block={"window": 3, "global_blocks": [1]}, dynamic=True))
    batch = randn(2, 3, 40, 56)
    found = model(batch)
    assert model.grid_size == (4, 4)
    model.set_input_size((40, 56))
    assert torch.equal(found, model(batch))
    found, _ = reference(model.double(), batch[0].double())
    actual = model.features(batch.double(), ["blocks.2"])["blocks.2"][0]
    torch.testing.assert_close(actual, found[2], rtol=0, atol=1e-9)


@torch.inference_mode()
def test_the_last_block_computes_the_first_tokens_alone():
    model = fill(vitzoo.create(SMALL | {"num_registers": 1, "depth": 1}, block={"window": 3}))
    batch = images(model.double())
    expected = model.forward_features(batch)
    x = model.embed(batch)
    for count in (1, 2, 5, 18):
        found = model.norm(model._encode(x, 0, count))
        torch.testing.assert_close(found, expected[:, :count], rtol=0, atol=1e-9)


@torch.inference_mode()
def test_fx_traces_windows():
    model = make("filled")
    traced = fx.symbolic_trace(model)
    for count in (1, 3):
        batch = images(model, count)
        torch.testing.assert_close(traced(batch), model(batch), rtol=0, atol=1e-9)


@pytest.mark.compile
@torch.inference_mode()
def test_windows_compile_as_one_graph():
    model = make("filled")
    torch.compiler.reset()  # networks of other tests count too
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for count in (2, 3):
        batch = images(model, count)
        torch.testing.assert_close(compiled(batch), model(batch), rtol=0, atol=1e-9)


def test_windows_survive_a_file(tmp_path):
    model = fill(vitzoo.create(SMALL, block={"window": 3, "global_blocks": [0, -1]}))
    again = vitzoo.create(vitzoo.save(model, tmp_path / "windows.safetensors")).eval()
    assert again.spec == model.spec
    assert [block.window for block in again.blocks] == [0, 3, 0]
    batch = randn(1, 3, 32, 32)
    close(again(batch), model(batch))
    whole = vitzoo.create(tmp_path / "windows.safetensors", block={"window": 0})
    assert whole.spec.block == vitzoo.BlockSpec()
    assert [block.window for block in whole.blocks] == [0, 0, 0]


@cases(
    ("block", "parts"),
    [
        ({"window": -1}, ("window", "from 0 to 512", -1)),
        ({"window": 513}, ("window", "from 0 to 512", 513)),
        ({"global_blocks": [1]}, ("global_blocks", "[1]", "window = 0", "pass window")),
        ({"window": 2, "global_blocks": 1}, ("global_blocks", "list of indices", 1)),
        ({"window": 2, "global_blocks": [True]}, ("global_blocks", "list of indices")),
        ({"window": 2, "global_blocks": [3]}, ("global_blocks", "3 blocks", "-3 to 2", "[3]")),
        ({"window": 2, "global_blocks": [0, -4]}, ("-3 to 2", "[0, -4]")),
        ({"window": 2, "merge": 1}, ("window = 2", "merge = 1", "leave out window or merge")),
    ],
    ids=str,
)
def test_impossible_windows_are_refused(block, parts):
    with refuses(InvalidOption, *parts):
        vitzoo.create(SMALL, block=block, device="meta")


@pytest.mark.parametrize("name", ["relative", "mim/relative"])
def test_positions_of_whole_grids_are_refused(name):
    with refuses(InvalidOption, "window = 2", repr(name), "leave out window or this pos_embed"):
        vitzoo.create(SMALL, block={"window": 2}, pos_embed=name, device="meta")
    everywhere = {"window": 2, "global_blocks": [0, 1, 2]}
    vitzoo.create(SMALL, block=everywhere, pos_embed=name, device="meta")


def test_windows_compute_fewer_products():
    whole, windows = (
        summarize(vitzoo.create(SMALL | {"class_token": False, "pool": "mean"}, block=block,
                                device="meta"))
        for block in ({}, {"window": 2, "global_blocks": [0]})
    )  # fmt: skip
    assert whole.flops - windows.flops == 2 * 2 * 2 * 48 * (16**2 - 4 * 4**2)
    assert whole.params == windows.params
