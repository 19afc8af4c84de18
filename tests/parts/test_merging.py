"""Token merging (arXiv:2210.09461) against loops over tokens, and what it does not go with."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import vitzoo
from helpers import SMALL, close, fill, randn, refuses
from tables import cases
from vitzoo.errors import InvalidOption
from vitzoo.network.summary import summarize
from vitzoo.parts import Block, Merged, MergingBlock, TokenMerging
from vitzoo.parts.block import unmerged

pytestmark = pytest.mark.usefixtures("_one_thread")
NETWORKS = {
    "class token": ({}, {"merge": 2}),
    "odd numbers of tokens": ({"image_size": (40, 24)}, {"merge": 3}),
    "registers and a mean": ({"num_registers": 2, "pool": "mean"}, {"merge": 3}),
    "no class token": ({"class_token": False, "pool": "attention"}, {"merge": 3}),
    "all tokens pooled": ({"pool": {"name": "attention", "prefix": True}}, {"merge": 3}),
    "norms after": ({"pos_embed": "sincos_2d"}, {"merge": 3, "post_norm": True, "qk_norm": True}),
    "layer scale": ({"pool": "class_mean", "num_classes": 0}, {"merge": 3, "layer_scale": 0.5}),
    "more than there are": ({"depth": 5}, {"merge": 6}),
    "one token at the end": ({"depth": 5, "image_size": 16, "pool": "mean"}, {"merge": 9}),
}


def make(name, weights="scaled"):
    changes, block = NETWORKS[name]
    return fill(vitzoo.create(SMALL | changes, block=block), weights).double()


def images(model, count=2):
    return randn(count, 3, *model.image_size, seed=3).double()


class Reference:
    """Encodes one image by loops over its tokens; a token is a vector and its original tokens."""

    def __init__(self, model, image):
        self.block, self.prefix = model.spec.block, model.num_prefix_tokens
        vectors = model.embed(image[None])[0]
        self.tokens = [(vector, [i]) for i, vector in enumerate(vectors)]
        self.results, self.maps = [], []
        for block in model.blocks:
            self.encode(block)
            self.results.append(self.spread())
        self.features = model.norm(self.results[-1])
        self.logits = model.forward_head(self.features[None])[0]

    def spread(self):
        """Return a vector for each original token."""
        vectors = {i: vector for vector, group in self.tokens for i in group}
        return torch.stack([vectors[i] for i in sorted(vectors)])

    def encode(self, block):
        post = self.block.post_norm
        added, keys = self.attend(block.attn, (lambda x: x) if post else block.norm1)
        for i, (vector, group) in enumerate(self.tokens):
            branch = block.norm1(added[i]) if post else added[i]
            self.tokens[i] = vector + block.ls1(branch), group
        self.merge(keys)
        for i, (vector, group) in enumerate(self.tokens):
            branch = block.norm2(block.mlp(vector)) if post else block.mlp(block.norm2(vector))
            self.tokens[i] = vector + block.ls2(branch), group

    def attend(self, attn, norm):
        """Let every token attend to each original token, of which those of one group are equal."""
        q, k, v = zip(*(attn.qkv(norm(vector)).chunk(3) for vector, _ in self.tokens), strict=True)
        q, k, v = ([x.reshape(attn.num_heads, -1) for x in kind] for kind in (q, k, v))
        q, k = [attn.q_norm(x) for x in q], [attn.k_norm(x) for x in k]
        owners = {j: i for i, (_, group) in enumerate(self.tokens) for j in group}
        added, shown = [], torch.zeros(attn.num_heads, len(owners), len(owners)).double()
        for i, (_, group) in enumerate(self.tokens):
            heads = []
            for head in range(attn.num_heads):
                logits = [
                    float(q[i][head] @ k[owners[j]][head]) * attn.scale for j in range(len(owners))
                ]
                exps = [math.exp(logit) for logit in logits]
                shares = [e / sum(exps) for e in exps]
                heads.append(sum(s * v[owners[j]][head] for j, s in enumerate(shares)))
                for row in group:
                    shown[head, row] = torch.tensor(shares).double()
            added.append(attn.proj(torch.cat(heads)))
        self.maps.append(shown)
        return added, [sum(x) / len(x) for x in k]

    def merge(self, keys):
        def cosine(a, b):
            return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))

        places = range(self.prefix, len(self.tokens))
        first, second = places[::2], places[1::2]
        edges = []
        for a in first if second else ():
            best = max(second, key=lambda b: cosine(keys[a], keys[b]))
            edges.append((cosine(keys[a], keys[best]), a, best))
        edges.sort(key=lambda edge: -edge[0])
        moved = edges[: min(self.block.merge, len(second))]
        gone = {a for _, a, _ in moved}
        merged = []
        for i in (*range(self.prefix), *(a for a in first if a not in gone), *second):
            joined = [i, *(a for _, a, b in moved if b == i)]
            count = sum(len(self.tokens[j][1]) for j in joined)
            mean = sum(len(self.tokens[j][1]) * self.tokens[j][0] for j in joined) / count
            merged.append((mean, [k for j in joined for k in self.tokens[j][1]]))
        self.tokens = merged


@pytest.mark.slow
@cases("weights", ["own", "scaled"])
@cases("name", NETWORKS)
@torch.inference_mode()
def test_every_result_equals_that_of_loops_over_tokens(name, weights):
    model = make(name, weights)
    given = images(model)
    expected = [Reference(model, image) for image in given]
    last = len(model.blocks) - 1
    found = model.features(given, [f"blocks.{i}" for i in range(last + 1)])
    for i in range(last + 1):
        close(found[f"blocks.{i}"], torch.stack([one.results[i] for one in expected]))
    close(model.forward_features(given), torch.stack([one.features for one in expected]))
    close(model(given), torch.stack([one.logits for one in expected]))
    maps = model.attention_maps(given)
    for i in range(last + 1):
        close(maps[i], torch.stack([one.maps[i] for one in expected]))


@torch.inference_mode()
def test_all_methods_give_one_vector_for_each_position():
    model = make("registers and a mean")
    given = images(model)
    tokens = model.forward_features(given)
    assert tokens.shape == (2, 2 + 1 + 16, 48)
    last, results = model.forward_intermediates(given, norm=True)
    assert torch.equal(last, tokens)
    assert torch.equal(results[-1].flatten(2).transpose(1, 2), tokens[:, 3:])
    (grid,) = model.get_intermediate_layers(given, reshape=True, norm=True)
    assert torch.equal(grid, results[-1])
    hooked = []
    model.blocks.register_forward_hook(lambda *call: hooked.append(call[-1]))
    assert torch.equal(model.forward_features(given), tokens)
    assert torch.equal(model.norm(hooked[0]), tokens)
    model.blocks = nn.ModuleList(model.blocks)
    assert torch.equal(model.forward_features(given), tokens)


@torch.inference_mode()
def test_tokens_are_really_left_out():
    model = make("class token")
    shapes = []
    for block in model.blocks:
        block.mlp.register_forward_hook(lambda _, args, __: shapes.append(args[0].shape[1]))
    model.forward_features(images(model))
    assert shapes == [1 + 16 - 2, 1 + 16 - 4, 1 + 16 - 6]


@torch.inference_mode()
def test_the_mlp_runs_without_the_memory_of_the_attention():
    block = fill(vitzoo.create(SMALL, block={"merge": 2})).blocks[0]
    made, freed = {}, []

    def remember(module, _, output):
        made[module] = StorageWeakRef(output.untyped_storage())

    for module in (block.norm1, block.attn.qkv, block.attn.proj):
        module.register_forward_hook(remember)
    block.mlp.register_forward_pre_hook(
        lambda *_: freed.extend(storage.expired() for storage in made.values())
    )
    assert isinstance(block(randn(2, 17, block.attn.proj.out_features)), Merged)
    assert freed == [True] * 3


@pytest.mark.parametrize("training", [False, True])
def test_zero_is_the_block_without_merging(training):
    options = {"drop_path": 0.4, "dropout": 0.1}
    torch.manual_seed(0)
    usual = vitzoo.create(SMALL, **options).train(training)
    torch.manual_seed(0)
    zero = vitzoo.create(SMALL, block={"merge": 0}, **options).train(training)
    assert [type(block) for block in zero.blocks] == [Block] * 3
    assert zero.spec == usual.spec
    given, grads = randn(4, 3, 32, 32), []
    for model in (fill(usual), fill(zero)):
        torch.manual_seed(1)
        model.train(training)(given).square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *grads))


def test_gradients_reach_every_parameter_also_when_blocks_are_computed_again():
    model = vitzoo.create(SMALL | {"drop_path": 0.4}, block={"merge": 3}, pool="mean")
    fill(model).train()
    grads = []
    for again in (False, True):
        model.set_grad_checkpointing(again)
        model.zero_grad()
        torch.manual_seed(0)
        model(randn(4, 3, 32, 32)).square().sum().backward()
        grads.append([p.grad.clone() for n, p in model.named_parameters() if n != "cls_token"])
    assert all(grad.any() for grad in grads[0])
    assert all(map(torch.equal, *grads))


def test_gradients_are_those_of_means():
    merging = TokenMerging(count=2, num_prefix_tokens=1)
    tokens = randn(2, 8, 4).double().requires_grad_()
    keys = randn(2, 3, 8, 4, seed=1)
    assert torch.autograd.gradcheck(lambda x: merging(x, keys).tokens, tokens)


def test_equal_edges_are_taken_in_their_order():
    """All keys are equal: the first tokens of the first set join the first of the second set."""
    merged = TokenMerging(count=2, num_prefix_tokens=1)(randn(1, 9, 4), torch.ones(1, 2, 9, 4))
    assert merged.sizes.tolist() == [[1, 1, 1, 3, 1, 1, 1]]
    assert merged.source.tolist() == [[0, 3, 3, 3, 4, 1, 5, 2, 6]]


def test_a_token_alone_stays():
    merging, tokens = TokenMerging(count=3, num_prefix_tokens=2), randn(2, 3, 4)
    assert merging(tokens, randn(2, 1, 3, 4)) is tokens
    two = merging(randn(2, 4, 4), randn(2, 1, 4, 4))
    assert two.tokens.shape == (2, 3, 4)
    assert merging(two, randn(2, 1, 3, 4)) is two


@torch.inference_mode()
def test_unmerged_tokens_are_the_merged_ones_at_every_position():
    tokens, source = randn(2, 3, 4), torch.tensor([[0, 2, 1, 2], [0, 1, 1, 2]])
    expected = torch.stack([tokens[i, source[i]] for i in range(2)])
    assert torch.equal(unmerged(Merged(tokens, torch.ones(2, 3), source)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_image_has_one_value_at_every_position(dtype):
    predictor = vitzoo.Predictor(
        vitzoo.create("vit_digits", pretrained=True, block={"merge": 3}),
        outputs=("logits", "blocks.2"),
        dtype=dtype,
    )
    assert predictor.chunk == 8
    inputs = [randn(1, 28, 28, seed=i) for i in range(8)]
    (expected,) = predictor.compute(inputs[:1])
    for place in range(8):
        found = predictor.compute([*inputs[1 : place + 1], inputs[0], *inputs[place + 1 :]])
        for name, value in expected.items():
            assert found[place][name].tobytes() == value.tobytes(), (name, place)


@torch.inference_mode()
def test_other_images_and_nan_beside_an_image_change_nothing():
    model = make("odd numbers of tokens")
    given = images(model, 3)
    given[0] = float("nan")
    alone = model(given[1:2])
    close(model(given)[1:2], alone)


@torch.inference_mode()
def test_published_weights_take_the_option(tmp_path):
    model = vitzoo.create("vit_digits", pretrained=True, block={"merge": 2}).eval()
    assert any("block.merge = 2" in line for line in model.load_report.assumed)
    usual = vitzoo.create("vit_digits", pretrained=True)
    assert all(map(torch.equal, model.parameters(), usual.parameters()))
    given = randn(2, 1, 28, 28)
    again = vitzoo.create(vitzoo.save(model, tmp_path / "merging.safetensors")).eval()
    assert again.spec.block.merge == 2
    assert torch.equal(again(given), model(given))
    plain = vitzoo.create(tmp_path / "merging.safetensors", block={"merge": 0}).eval()
    assert plain.spec.block.merge == 0
    assert torch.equal(plain(given), usual.eval()(given))


@torch.inference_mode()
def test_other_image_sizes():
    model = vitzoo.create(SMALL, block={"merge": 3}, dynamic=True)
    fill(model)
    given = randn(2, 3, 56, 40)
    found = model(given)
    model.set_input_size((56, 40))
    assert torch.equal(model(given), found)
    assert model.forward_features(given).shape == (2, 1 + 7 * 5, 48)


@torch.inference_mode()
def test_a_hook_on_the_last_block_changes_no_logits():
    model = make("class token")
    given = images(model)
    before = model(given)
    model.blocks[-1].register_forward_hook(lambda *_: None)
    close(model(given), before)


@torch.inference_mode()
def test_bfloat16_tokens_are_merged_as_float32_ones():
    merging, tokens, keys = (
        TokenMerging(count=3, num_prefix_tokens=1),
        randn(2, 9, 4),
        randn(2, 3, 9, 4),
    )
    keys = keys.bfloat16()
    found, expected = merging(tokens.bfloat16(), keys), merging(tokens, keys.float())
    assert found.tokens.dtype == torch.bfloat16
    assert torch.equal(found.source, expected.source)
    torch.testing.assert_close(found.tokens.float(), expected.tokens, rtol=0, atol=0.02)
    model = fill(vitzoo.create(SMALL, block={"merge": 3})).bfloat16()
    assert model(randn(2, 3, 32, 32).bfloat16()).dtype == torch.bfloat16


REFUSED = {
    "parallel": ({}, {"parallel": True}, ("parallel = true", "leave out parallel")),
    "subset": (
        {"drop_path": {"name": "linear", "rate": 0.1, "mode": "subset"}},
        {},
        ("'subset'", "dropped samples", "use mode 'mask'"),
    ),
    **{
        str(positions): (
            {"pos_embed": positions},
            {},
            ("position of each token", "positions that are added before the first block"),
        )
        for positions in (
            *("rope", "rope_mixed", "relative", "mim/relative"),
            {"name": "learned", "where": "layers"},
            {"name": "learned_2d", "where": "layers_shared"},
        )
    },
}


@cases("case", REFUSED)
def test_what_needs_every_token_is_refused(case):
    changes, block, parts = REFUSED[case]
    with refuses(InvalidOption, "merge = 4", *parts, "leave out merge"):
        vitzoo.create(SMALL | changes, block=block | {"merge": 4}, device="meta")


@pytest.mark.parametrize("value", [-1, 1.5, True, "8", 262_145])
def test_values_that_are_not_possible(value):
    with refuses(InvalidOption, "merge must be a whole number"):
        vitzoo.create(SMALL, block={"merge": value})


def test_the_parts_refuse_wrong_arguments():
    with refuses(InvalidOption, "merge", "at least 1", "0"):
        TokenMerging(count=0, num_prefix_tokens=1)
    block = vitzoo.create(SMALL, block={"merge": 2}).blocks[0]
    assert isinstance(block, MergingBlock)
    with refuses(InvalidOption, "no position", "merge=0"):
        block(randn(1, 17, 48), lambda x: x)


def test_the_summary_counts_the_tokens_that_are_left():
    entering, leaving = (17, 13, 9), (13, 9, 5)
    usual, merging = (
        summarize(vitzoo.create(SMALL, block={"merge": merge}, device="meta")) for merge in (0, 4)
    )
    shapes = {layer.name: layer.output for layer in merging.layers}
    assert [shapes[f"blocks.{i}.attn"] for i in range(2)] == [(1, n, 48) for n in entering[:2]]
    assert [shapes[f"blocks.{i}"] for i in range(2)] == [(1, n, 48) for n in leaving[:2]]
    less = sum(4 * 48**2 * (17 - n) + 2 * 48 * (17**2 - n**2) for n in entering)
    less += sum(8 * 48**2 * (17 - n) for n in leaving)
    more = sum(n * n * 16 + 4 * n * 48 for n in (8, 6, 4))  # similarities and means
    assert usual.flops - merging.flops == 2 * (less - more)


@pytest.mark.compile
@torch.inference_mode()
def test_merging_compiles_as_one_graph():
    model = fill(vitzoo.create(SMALL, block={"merge": 3}, pool="mean"))
    torch.compiler.reset()  # networks of other tests count too
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for count in (2, 3):
        given = randn(count, 3, 32, 32)
        torch.testing.assert_close(compiled(given), model(given), rtol=0, atol=1e-5)
