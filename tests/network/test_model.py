"""The whole network, with small networks from specs."""

import copy
import importlib
import io
import itertools
import math
import pickle
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitzoo
from helpers import SMALL, message, randn, refuses, says
from tables import cases
from vitzoo import VisionTransformer
from vitzoo.parts import MeanPool

WIDE = SMALL | {"embed_dim": 192, "depth": 2}
POOLS = {
    "class": {"pool": "class"},
    "norm_then_mean": {"pool": "mean"},
    "mean_then_norm": {"pool": {"name": "mean", "norm_first": False}},
    "no_class_token": {"pool": "mean", "class_token": False},
}
HEADS = ("linear", "tanh", "mlp", "cosine")
POSITIONS = ("learned", "sincos_2d", "none")


def make(spec=None, *, seed=0, **changes):
    """Return a small network in which nothing is zero, in evaluation mode."""
    torch.manual_seed(seed)
    model = vitzoo.create((spec or SMALL) | changes).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def images(*shape, seed=1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (2, 3, 32, 32)), generator=generator).to(dtype)


def count(model):
    return sum(p.numel() for p in model.parameters())


# Parameters and shapes.


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("vit_b16", 86_567_656),
        ("vit_b32", 88_224_232),
        ("vit_l16", 304_326_632),
        ("vit_l32", 306_535_400),
        ("vit_h14", 632_045_800),
        ("vit_b16_in21k", 103_186_515),
    ],
)
def test_published_parameter_counts(name, params):
    assert count(vitzoo.create(name, device="meta")) == params


def test_mlp_head_parameter_count():
    model = vitzoo.create("vit_b16", head="mlp", num_classes=10, device="meta")
    assert count(model) == 86_396_938


@torch.inference_mode()
def test_tokens_and_logits_of_a_cifar_sized_network():
    model = make(embed_dim=100, num_heads=4, num_classes=10)
    assert model.forward_features(images(4, 3, 32, 32)).shape == (4, 17, 100)
    assert model(images(4, 3, 32, 32)).shape == (4, 10)


@torch.inference_mode()
def test_without_a_class_token_there_are_only_patch_tokens():
    model = make(pool="mean", class_token=False)
    assert model.num_prefix_tokens == 0
    assert model.cls_token is None
    assert model.forward_features(images()).shape == (2, 16, 48)


@torch.inference_mode()
def test_each_image_is_computed_by_itself():
    model, batch = make(), images(3, 3, 32, 32)
    alone = torch.cat([model(image[None]) for image in batch])
    torch.testing.assert_close(model(batch), alone, rtol=0, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("pool", POOLS)
def test_forward_is_features_then_head(pool):
    model = make(**POOLS[pool])
    expected = model.forward_head(model.forward_features(images()))
    torch.testing.assert_close(model(images()), expected, rtol=0, atol=2e-6)


@torch.inference_mode()
def test_pools_give_different_results():
    models = [make(pool=POOLS[name]["pool"]) for name in list(POOLS)[:3]]
    results = [model(images()) for model in models]
    for a, b in itertools.combinations(results, 2):
        assert (a - b).abs().max() > 1e-3


# Initialisation.


def test_no_two_blocks_start_equal():
    blocks = [dict(b.named_parameters()) for b in vitzoo.create(SMALL).blocks]
    matrices = [name for name, p in blocks[0].items() if p.dim() == 2]
    assert matrices == ["attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"]
    for a, b in itertools.combinations(blocks, 2):
        for name in matrices:
            assert (a[name] != b[name]).float().mean() > 0.99, name


def test_one_seed_gives_one_network():
    for a, b in zip(make().parameters(), make().parameters(), strict=True):
        assert torch.equal(a, b)


def wide(**changes):
    torch.manual_seed(0)
    return vitzoo.create(WIDE | changes)


def assert_uniform(weight, bound):
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.99 * bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert abs(weight.mean().item()) < 0.02 * bound


@pytest.mark.parametrize("block", [0, 1])
def test_query_key_and_value_start_xavier_uniform_each_by_itself(block):
    for weight in wide().blocks[block].attn.qkv.weight.chunk(3):
        assert_uniform(weight, math.sqrt(6 / (192 + 192)))


@pytest.mark.parametrize(
    ("layer", "bound"),
    [
        ("attn.proj", math.sqrt(6 / (192 + 192))),
        ("mlp.fc1", math.sqrt(6 / (192 + 768))),
        ("mlp.fc2", math.sqrt(6 / (768 + 192))),
    ],
)
def test_projections_start_xavier_uniform(layer, bound):
    for block in wide().blocks:
        assert_uniform(block.get_submodule(layer).weight, bound)


@pytest.mark.parametrize("layer", ["fc1", "fc2"])
def test_mlp_biases_start_with_a_standard_deviation_of_1e_6(layer):
    for block in wide(embed_dim=384, num_heads=6).blocks:
        bias = block.mlp.get_submodule(layer).bias
        assert bias.std().item() == pytest.approx(1e-6, rel=0.15)
        assert bias.abs().max() < 1e-5


def test_attention_biases_start_at_zero():
    for block in wide().blocks:
        assert not block.attn.qkv.bias.any()
        assert not block.attn.proj.bias.any()


def test_norms_start_as_identities():
    norms = [m for m in wide().modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) == 5
    for norm in norms:
        assert (norm.weight == 1).all()
        assert not norm.bias.any()
        assert norm.eps == 1e-6


def test_class_token_starts_at_zero():
    assert not wide().cls_token.any()


def test_positions_start_with_a_standard_deviation_of_002():
    positions = wide(image_size=128).pos_embed
    assert positions.shape == (1, 257, 192)
    assert positions.std().item() == pytest.approx(0.02, rel=0.02)
    assert abs(positions.mean().item()) < 5e-4
    assert positions.abs().max() > 0.06  # not cut off


def assert_lecun_normal(weight, fan_in):
    assert weight.std().item() == pytest.approx(1 / math.sqrt(fan_in), rel=0.02)
    cut = 2 / math.sqrt(fan_in) / 0.87962566
    assert 0.97 * cut < weight.abs().max() <= cut * (1 + 1e-6)


def test_patch_projection_starts_lecun_normal():
    projection = wide(patch_size=[16, 8]).patch_embed.proj
    assert_lecun_normal(projection.weight, 3 * 16 * 8)
    assert not projection.bias.any()


@pytest.mark.parametrize("head", ["tanh", "mlp"])
def test_pre_logits_layer_starts_lecun_normal(head):
    layer = wide(head={"name": head, "hidden_dim": 400}).head.pre_logits
    assert_lecun_normal(layer.weight, 192)
    assert not layer.bias.any()


@pytest.mark.parametrize("head", HEADS)
def test_classifier_starts_at_zero(head):
    assert not wide(head=head).eval()(images()).any()


# Placement, types and copies.


@cases("head", HEADS)
@cases("positions", POSITIONS)
def test_nothing_is_on_meta(tmp_path, head, positions):
    model = make(head=head, pos_embed=positions)
    restored = vitzoo.create(vitzoo.save(model, tmp_path / "model.safetensors")).eval()
    for network in (model, restored):
        tensors = [*network.parameters(), *network.buffers()]
        assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert torch.equal(restored(images()), model(images()))


@torch.inference_mode()
@pytest.mark.parametrize("positions", POSITIONS)
def test_bfloat16(positions):
    model = vitzoo.create(SMALL, pos_embed=positions, dtype=torch.bfloat16).eval()
    tensors = [*model.parameters(), *model.buffers()]
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}
    tokens = model.forward_features(images(dtype=torch.bfloat16))
    assert tokens.dtype == torch.bfloat16
    assert tokens.isfinite().all()
    assert model(images(dtype=torch.bfloat16)).dtype == torch.bfloat16


@torch.inference_mode()
@pytest.mark.parametrize("positions", POSITIONS)
def test_float64_agrees_with_float32(positions):
    single = make(pos_embed=positions)
    double = vitzoo.create(SMALL, pos_embed=positions, dtype=torch.float64).eval()
    double.load_state_dict(single.state_dict())
    result = double(images(dtype=torch.float64))
    assert result.dtype == torch.float64
    torch.testing.assert_close(single(images()).double(), result, rtol=0, atol=1e-5)


@torch.inference_mode()
@cases("head", HEADS)
@cases(
    "copied",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_copies_compute_the_same(copied, head):
    model = make(head=head, pos_embed="sincos_2d")
    other = copied(model)
    assert torch.equal(other(images()), model(images()))
    assert other.spec == model.spec
    other.cls_token.add_(1)
    assert not torch.equal(other(images()), model(images()))


@torch.inference_mode()
@pytest.mark.parametrize("pool", POOLS)
def test_state_dict_round_trip(pool):
    model, other = make(**POOLS[pool]), make(**POOLS[pool], seed=5)
    assert not torch.equal(other(images()), model(images()))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert torch.equal(other(images()), model(images()))


def test_positions_that_are_not_learned_are_not_in_the_state_dict():
    assert "pos_embed" in vitzoo.create(SMALL).state_dict()
    for positions in ("sincos_2d", "none"):
        state = vitzoo.create(SMALL, pos_embed=positions).state_dict()
        assert not [key for key in state if "pos" in key]


# Compilation and export.


@pytest.mark.one_in(3)
@pytest.mark.compile
@torch.inference_mode()
@pytest.mark.parametrize("pool", POOLS)
def test_compiles_as_one_graph(pool):
    model = make(**POOLS[pool])
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images()), model(images()), rtol=0, atol=1e-6)


@pytest.mark.compile
def test_compiles_as_one_graph_in_training():
    model = make(drop_path=0.3, dropout=0.1).train()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    compiled(images()).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.long
@pytest.mark.compile
@pytest.mark.parity
@torch.inference_mode()
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside torch
def test_inductor_agrees_with_eager():
    model = make()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(images()), model(images()), rtol=0, atol=1e-5)


@pytest.mark.one_in(3)
@pytest.mark.compile
@pytest.mark.parametrize("pool", POOLS)
def test_exports_for_any_batch_size(pool):
    model = make(**POOLS[pool])
    batch = {"images": {0: torch.export.Dim("b", min=1, max=64)}}
    exported = torch.export.export(model, (images(),), dynamic_shapes=batch).module()
    for size in (2, 5):
        given = images(size, 3, 32, 32)
        torch.testing.assert_close(exported(given), model(given), rtol=0, atol=1e-6)


# Training.


def gradients(model):
    torch.manual_seed(2)
    F.cross_entropy(model.train()(images()), torch.tensor([1, 5])).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def test_every_parameter_gets_a_gradient():
    for name, gradient in gradients(make()).items():
        assert gradient.isfinite().all(), name
        assert gradient.any(), name


def test_checkpointing_gives_equal_gradients():
    plain, saving = (make(drop_path=0.5, dropout=0.2) for _ in range(2))
    saving.set_grad_checkpointing()
    expected, results = gradients(plain), gradients(saving)
    for name in expected:
        assert torch.equal(results[name], expected[name]), name


def test_checkpointing_runs_blocks_twice_until_switched_off():
    model = make()
    calls = []
    model.blocks[1].register_forward_pre_hook(lambda *_: calls.append(1))
    for enable, expected in ((True, 2), (False, 1)):
        calls.clear()
        model.set_grad_checkpointing(enable)
        gradients(model)
        assert len(calls) == expected


def test_no_weight_decay_names_parameters():
    assert vitzoo.create(SMALL).no_weight_decay() == {"pos_embed", "cls_token"}
    model = vitzoo.create(SMALL | {"class_token": False}, pool="mean", pos_embed="sincos_2d")
    assert model.no_weight_decay() == set()


@pytest.mark.parametrize("pool", POOLS)
def test_group_matcher_finds_stem_and_blocks(pool):
    model = make(**POOLS[pool])
    matcher = model.group_matcher()
    names = [name for name, _ in model.named_parameters()]
    stem = {name.split(".")[0] for name in names if re.match(matcher["stem"], name)}
    assert stem == {"cls_token", "pos_embed", "patch_embed"} - (
        {"cls_token"} if model.cls_token is None else set()
    )
    block = matcher["blocks"][0][0]
    assert {re.match(block, n)[1] for n in names if n.startswith("blocks")} == {"0", "1", "2"}


def test_layer_decay_in_timm():
    from timm.optim import create_optimizer_v2

    model = make()
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1.0, weight_decay=0.1, layer_decay=0.5)
    names = {id(p): name for name, p in model.named_parameters()}
    found = {
        names[id(p)]: (group["lr_scale"], group["weight_decay"])
        for group in optimizer.param_groups
        for p in group["params"]
    }
    assert found.keys() == set(names.values())
    assert found["cls_token"] == found["pos_embed"] == (0.5**4, 0)
    assert found["patch_embed.proj.weight"] == (0.5**4, 0.1)
    for i in range(3):
        assert found[f"blocks.{i}.mlp.fc1.weight"] == (0.5 ** (3 - i), 0.1)
        assert found[f"blocks.{i}.mlp.fc1.bias"] == (0.5 ** (3 - i), 0)
    assert found["norm.weight"] == (0.5, 0)  # in timm the final norm goes with the last block
    assert found["head.weight"] == (1, 0.1)


# Looking inside.


@torch.inference_mode()
@cases("head", HEADS)
@cases("pool", POOLS)
def test_features_are_what_the_modules_give(pool, head):
    model = make(**POOLS[pool], head=head)
    seen = {}

    def keep(name):
        return lambda *call: seen.update({name: call[-1]})

    model.patch_embed.register_forward_hook(keep("patch_embed"))
    model.pos_drop.register_forward_hook(keep("embed"))
    for i, block in enumerate(model.blocks):
        block.register_forward_hook(keep(f"blocks.{i}"))
    model.norm.register_forward_hook(keep("norm"))
    model.fc_norm.register_forward_hook(keep("pool"))
    seen["logits"] = model(images())
    seen["pre_logits"] = model.forward_head(seen["norm"], pre_logits=True)

    names = model.feature_names()
    results = model.features(images(), names)
    assert (
        list(results)
        == names
        == [
            "patch_embed",
            "embed",
            "blocks.0",
            "blocks.1",
            "blocks.2",
            "norm",
            "pool",
            "pre_logits",
            "logits",
        ]
    )
    for name in names:
        assert torch.equal(results[name], seen[name]), name


@torch.inference_mode()
def test_embedding_is_patches_class_token_and_positions():
    model = make()
    found = model.features(images(), ["patch_embed", "embed"])
    class_tokens = model.cls_token.expand(2, 1, 48)
    expected = torch.cat((class_tokens, found["patch_embed"]), dim=1) + model.pos_embed
    assert torch.equal(found["embed"], expected)


def test_only_the_features_asked_for_in_that_order():
    assert list(make().features(images(), ["logits", "blocks.1"])) == ["logits", "blocks.1"]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("blocks.9", ["'blocks."]),
        ("prelogits", ["'pre_logits'", "'logits'"]),
        ("xyz", ["patch_embed, embed, blocks.0, blocks.1, blocks.2, norm, pool"]),
    ],
)
def test_unknown_feature(name, known):
    with refuses(vitzoo.errors.UnknownOption, "feature", repr(name), *known):
        make().features(images(), ["norm", name])


@torch.inference_mode()
def test_attention_maps_are_softmaxes_of_scaled_products():
    model = make()
    maps = model.attention_maps(images())
    assert list(maps) == [0, 1, 2]
    x = model.embed(images())
    for i, block in enumerate(model.blocks):
        qkv = block.attn.qkv(block.norm1(x)).reshape(2, 17, 3, 3, 16)
        q, k, _ = qkv.permute(2, 0, 3, 1, 4)
        expected = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / 4, dim=-1)
        torch.testing.assert_close(maps[i], expected, rtol=0, atol=1e-6)
        x = block(x)


@torch.inference_mode()
def test_attention_rows_sum_to_one():
    for attention in make().attention_maps(images()).values():
        assert attention.shape == (2, 3, 17, 17)
        torch.testing.assert_close(attention.sum(-1), torch.ones(2, 3, 17), rtol=0, atol=1e-5)
        assert (attention >= 0).all()


@torch.inference_mode()
@pytest.mark.parametrize(
    ("layers", "expected"),
    [(1, [2]), (2, [1, 2]), ([0], [0]), ([-1, 0], [0, 2]), (None, [0, 1, 2])],
)
def test_attention_of_chosen_layers(layers, expected):
    model = make()
    every, chosen = model.attention_maps(images()), model.attention_maps(images(), layers)
    assert list(chosen) == expected
    for i in expected:
        assert torch.equal(chosen[i], every[i])


@torch.inference_mode()
@pytest.mark.parametrize(
    ("indices", "blocks"),
    [(None, [0, 1, 2]), (1, [2]), (2, [1, 2]), ([0, 2], [0, 2]), ([-1], [2]), ((-3, 1), [0, 1])],
)
def test_intermediates_of_chosen_blocks(indices, blocks):
    model = make()
    tokens, results = model.forward_intermediates(images(), indices)
    features = model.features(images(), model.feature_names())
    assert torch.equal(tokens, features["norm"])
    assert len(results) == len(blocks)
    for result, i in zip(results, blocks, strict=True):
        patches = features[f"blocks.{i}"][:, 1:]
        assert torch.equal(result, patches.transpose(1, 2).reshape(2, 48, 4, 4))


@torch.inference_mode()
def test_intermediates_as_tokens_with_prefix():
    model = make()
    ((patches, prefix),) = model.forward_intermediates(
        images(), [1], output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
    )
    expected = model.features(images(), ["blocks.1"])["blocks.1"]
    assert torch.equal(torch.cat((prefix, patches), dim=1), expected)
    assert prefix.shape == (2, 1, 48)


@torch.inference_mode()
def test_intermediates_after_the_final_norm():
    model = make()
    tokens, results = model.forward_intermediates(images(), norm=True, output_fmt="NLC")
    assert torch.equal(results[-1], tokens[:, 1:])
    first = model.norm(model.features(images(), ["blocks.0"])["blocks.0"])
    assert torch.equal(results[0], first[:, 1:])


@torch.inference_mode()
@pytest.mark.parametrize(("stop_early", "ran"), [(True, False), (False, True)])
def test_stopping_early_skips_the_last_blocks(stop_early, ran):
    model = make()
    calls = []
    model.blocks[2].register_forward_hook(lambda *_: calls.append(1))
    tokens, results = model.forward_intermediates(images(), [0, 1], stop_early=stop_early)
    assert bool(calls) is ran
    last = model.features(images(), ["blocks.1", "norm"])
    assert torch.equal(tokens, last["norm"] if ran else model.norm(last["blocks.1"]))
    assert len(results) == 2


@torch.inference_mode()
def test_maps_of_an_image_that_is_not_square():
    model = make(image_size=[32, 16])
    given = images(2, 3, 32, 16)
    found = model.forward_intermediates(given, [2], intermediates_only=True)[0]
    tokens = model.features(given, ["blocks.2"])["blocks.2"]
    assert found.shape == (2, 48, 4, 2)
    assert torch.equal(found[:, :, 3, 1], tokens[:, 8])
    assert torch.equal(found[:, :, 1, 0], tokens[:, 3])


@torch.inference_mode()
@pytest.mark.parametrize("reshape", [False, True])
def test_intermediate_layers_are_the_last(reshape):
    model = make()
    expected = model.forward_intermediates(
        images(), 2, output_fmt="NCHW" if reshape else "NLC", norm=True, intermediates_only=True
    )
    results = model.get_intermediate_layers(images(), 2, reshape=reshape, norm=True)
    assert len(results) == 2
    for ours, theirs in zip(results, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("indices", [0, 4, -1, [3], [-4], []])
def test_blocks_that_do_not_exist(indices):
    for call in (make().forward_intermediates, make().attention_maps):
        with refuses(vitzoo.InvalidOption, "blocks", "0 to 2", "1 to 3", f"got {indices!r}"):
            call(images(), indices)


def test_unknown_output_format():
    with refuses(vitzoo.InvalidOption, "output_fmt", "NCHW", "NLC", "'NHWC'"):
        make().forward_intermediates(images(), output_fmt="NHWC")


# Heads and sizes.


def test_head_widths():
    assert make(head="tanh").head_hidden_size == 48
    model = make(head={"name": "mlp", "hidden_dim": 20})
    assert model.head_hidden_size == 20
    assert model.num_features == model.embed_dim == 48
    assert model.forward_head(model.forward_features(images()), pre_logits=True).shape == (2, 20)
    assert model(images()).shape == (2, 7)


@torch.inference_mode()
@pytest.mark.parametrize("head", HEADS)
def test_another_classifier(head):
    model = make(head=head)
    model.reset_classifier(5)
    assert model.num_classes == model.spec.num_classes == 5
    assert model.get_classifier() is model.head
    assert model(images()).shape == (2, 5)
    assert not model(images()).any()
    assert not model.head.training


@torch.inference_mode()
def test_resetting_the_classifier_keeps_the_trunk_and_forgets_labels():
    model = make()
    before = model.forward_features(images())
    model.labels = tuple("abcdefg")
    model.reset_classifier(7)
    assert model.labels == ()
    assert torch.equal(model.forward_features(images()), before)


@torch.inference_mode()
@pytest.mark.parametrize("head", HEADS)
def test_no_classifier_leaves_the_pre_logits(head):
    model = make(head=head)
    expected = model.features(images(), ["pre_logits"])["pre_logits"]  # of the trained layer
    assert expected.shape == (2, 48)
    model.reset_classifier(0)
    assert model.num_classes == model.spec.num_classes == 0
    torch.testing.assert_close(model(images()), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("head", [*HEADS, "none"])
def test_a_reset_network_is_described_by_its_spec(head):
    model = vitzoo.create(SMALL | {"head": head, "num_classes": 0})
    for classes in (5, 0, 3):
        model.reset_classifier(classes)
        again = vitzoo.create(model.spec)
        assert again.state_dict().keys() == model.state_dict().keys()
        assert again.num_classes == classes


def test_a_new_classifier_takes_the_type_of_the_network():
    model = vitzoo.create(SMALL, dtype=torch.float64)
    model.reset_classifier(3)
    assert {p.dtype for p in model.head.parameters()} == {torch.float64}


def linear(*shape, seed=3):
    """Return a linear layer whose numbers do not depend on the order of the tests."""
    layer = nn.Linear(*shape)
    with torch.no_grad():
        layer.weight.copy_(randn(*layer.weight.shape, seed=seed))
        if layer.bias is not None:
            layer.bias.copy_(randn(shape[1], seed=seed + 1))
    return layer


@torch.inference_mode()
@cases("pool", POOLS)
@cases("head", [*HEADS, "none"])
def test_a_linear_layer_as_head_equals_a_model_with_that_many_classes(pool, head):
    arguments = POOLS[pool] | {"head": head}
    model = make(**arguments, **({"num_classes": 0} if head == "none" else {}))
    model.labels = tuple("abcdefg")
    layer = linear(48, 5)
    model.head = layer
    assert model.head is model.get_classifier() is layer
    other = vitzoo.create(SMALL | POOLS[pool], num_classes=5).eval()
    other.load_state_dict(model.state_dict(), strict=True)
    assert model.num_classes == model.spec.num_classes == 5
    assert model.spec == other.spec
    assert model.labels == ()
    assert model.head_hidden_size == 48
    assert model.pretrained_cfg["num_classes"] == 5
    assert torch.equal(model(images()), other(images()))
    names = model.feature_names()
    found, expected = (m.features(images(), names) for m in (model, other))
    assert all(torch.equal(found[name], expected[name]) for name in names)
    tokens = model.forward_features(images())
    assert torch.equal(
        model.forward_head(tokens, pre_logits=True), other.forward_head(tokens, pre_logits=True)
    )


def test_a_linear_layer_as_head_is_trained():
    model = make()
    model.head = linear(48, 5)
    F.cross_entropy(model.train()(images()), torch.tensor([1, 4])).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


@torch.inference_mode()
@pytest.mark.parametrize("head", HEADS)
def test_an_identity_as_head_gives_the_pooled_features(head):
    model = make(head=head)
    expected = model.features(images(), ["pool"])["pool"]
    model.head = nn.Identity()
    assert model.num_classes == model.spec.num_classes == 0
    assert model.spec.head.name == "none"
    torch.testing.assert_close(model(images()), expected, rtol=0, atol=2e-6)
    again = vitzoo.create(model.spec).eval()
    again.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(again(images()), model(images()))


@torch.inference_mode()
@pytest.mark.parametrize(
    "head",
    [
        nn.Linear(48, 5),
        nn.Linear(48, 5, bias=False),
        nn.Sequential(nn.Dropout(0.1), nn.Linear(48, 9), nn.GELU(), nn.Linear(9, 5)),
        nn.Identity(),
    ],
    ids=["linear", "no bias", "several layers", "identity"],
)
def test_the_classifier_is_reset_after_a_head_by_hand(head):
    model = make(head="tanh")
    model.head = head
    logits = model(images())
    assert logits.shape == (2, model.num_classes or 48)
    model.reset_classifier(3)
    assert model.num_classes == 3
    assert torch.equal(model(images()), torch.zeros(2, 3))
    assert model.spec == vitzoo.create(SMALL, num_classes=3).spec
    assert model.checked_parts == {}


def test_a_head_that_no_spec_describes_is_opaque():
    model = make()
    for head in (nn.Linear(48, 5, bias=False), nn.Sequential(nn.Linear(48, 5))):
        model.head = head
        assert model.num_classes == model.spec.num_classes == 5
        assert model.spec.to_data()["head"] == {"name": type(head).__name__, "opaque": True}
        assert model(images()).shape == (2, 5)
    model.head = nn.LazyLinear(4)
    assert model(images()).shape == (2, 4)
    assert model.spec.head.name == "linear"


def test_a_head_needs_a_number_of_classes():
    model = make(head="tanh")
    expected = model.features(images(), ["pre_logits"])["pre_logits"]
    with refuses(vitzoo.InvalidOption, "Conv1d", "num_classes"):
        model.head = nn.Conv1d(48, 5, 1)
    assert model.num_classes == model.spec.num_classes == 7
    assert torch.equal(model.features(images(), ["pre_logits"])["pre_logits"], expected)
    head = nn.Bilinear(48, 48, 5)
    head.num_classes = 5
    model.head = head
    assert model.num_classes == 5


class Wrapper(nn.Module):
    """Passes calls on, as wrappers of adapters do."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x, *args):
        return self.module(x, *args)


@torch.inference_mode()
@pytest.mark.parametrize("head", ["linear", "tanh"])
@pytest.mark.parametrize("wrap", [Wrapper, lambda head: torch.compile(head, backend="eager")])
def test_a_wrapped_head_is_the_same_head(wrap, head):
    model = make(head=head)
    model.labels = tuple("abcdefg")
    spec, expected, old = model.spec, model(images()), model.head
    for changed in (wrap(old), old):
        model.head = changed
        assert model.spec == spec
        assert model.labels == tuple("abcdefg")
        assert model.num_classes == 7
    model.head = Wrapper(old)
    torch.testing.assert_close(model(images()), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("classes", [-1, 2.0, True, "7", None])
def test_impossible_number_of_classes(classes):
    with refuses(vitzoo.InvalidOption, "num_classes", 0, f"got {classes!r}"):
        make().reset_classifier(classes)


@torch.inference_mode()
@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("size", [48, (40, 24)])
def test_another_image_size(size, positions):
    height, width = (size, size) if isinstance(size, int) else size
    model = make(pos_embed=positions)
    model.set_input_size(size)
    assert model.image_size == model.spec.image_size == (height, width)
    assert model.grid_size == (height // 8, width // 8)
    given = images(2, 3, height, width)
    assert model(given).shape == (2, 7)
    assert model.forward_intermediates(given, 1, intermediates_only=True)[0].shape == (
        2,
        48,
        height // 8,
        width // 8,
    )
    again = vitzoo.create(model.spec).eval()
    again.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(again(given), model(given))


def test_another_image_size_keeps_frozen_positions_frozen():
    model = make()
    model.pos_embed.requires_grad_(False)
    model.set_input_size(64)
    assert not model.pos_embed.requires_grad
    assert make().pos_embed.requires_grad


@torch.inference_mode()
def test_the_same_image_size_changes_nothing():
    model = make()
    before = model.pos_embed
    model.set_input_size((32, 32))
    assert model.pos_embed is before


def test_an_image_size_that_patches_do_not_tile_changes_nothing():
    model = make()
    with refuses(vitzoo.InvalidOption, "image_size", "36x32", "8x8", "32x32", "40x32"):
        model.set_input_size((36, 32))
    assert model.image_size == model.spec.image_size == (32, 32)
    assert model(images()).shape == (2, 7)


@pytest.mark.parametrize("size", [0, -8, (32,), 32.0, "32", None])
def test_impossible_image_size(size):
    got = f"{size!r} ({type(size).__name__})"
    with refuses(vitzoo.InvalidOption, "image_size", "px", 1, 65536, got):
        make().set_input_size(size)


@cases("shape", [(2, 3, 32, 24), (2, 3, 64, 64), (1, 2, 3, 32, 32)])
@cases("entry", ["forward", "forward_features", "attention_maps", "features"])
def test_images_of_another_shape(shape, entry):
    model = make()
    names = (["patch_embed"],) if entry == "features" else ()
    fix = ("image_size=", "in_chans=", "set_input_size")
    with refuses(vitzoo.InvalidInput, "(b, 3, 32, 32)", f"got {shape}", *fix):
        getattr(model, entry)(images(*shape), *names)


def test_timm_finds_how_images_become_inputs():
    from timm.data import resolve_model_data_config

    model = vitzoo.create("vit_digits", pretrained=True)
    config = resolve_model_data_config(model)
    assert config["input_size"] == (1, 28, 28)
    assert config["mean"] == (0.3,)
    assert config["interpolation"] == "bilinear"


def test_pixels_that_are_no_floats_are_refused():
    model = vitzoo.create("vit_digits")
    with refuses(vitzoo.InvalidInput, "floating", "torch.uint8"):
        model(torch.zeros(1, 1, 28, 28, dtype=torch.uint8))


LAST_BLOCKS = {
    "class token": {},
    "registers": {"num_registers": 3},
    "positions in every layer": {"pos_embed": {"name": "learned", "where": "layers"}},
    "rope": {"pos_embed": "rope"},
    "relative": {"pos_embed": "relative"},
    "parallel": {"block": {"parallel": True, "layer_scale": 0.5}},
    "norms after": {"block": {"post_norm": True, "qk_norm": True}},
    "two tokens": {"num_registers": 2, "pool": {"name": "prefix", "tokens": 2}, "num_classes": 0},
}


def widths_in_last_mlp(model):
    """Record the number of tokens in the last block's MLP without a hook, which would change it."""
    mlp, widths = model.blocks[-1].mlp, []
    forward = mlp.forward
    mlp.forward = lambda x: (widths.append(x.shape[1]), forward(x))[1]
    return widths


@cases("option", LAST_BLOCKS)
def test_the_last_block_computes_what_the_pool_reads(small, randomise, option):
    model = randomise(vitzoo.create(small | LAST_BLOCKS[option]))
    widths = widths_in_last_mlp(model)
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        expected = model.forward_head(model.forward_features(images))
        result = model(images)
    assert widths == [16 + model.num_prefix_tokens, 2 if option == "two tokens" else 1]
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-6)
    with torch.inference_mode():
        model.pool = MeanPool()
        model(images)
    assert widths[2:] == [16 + model.num_prefix_tokens]  # this pool reads all


def own_features(model):
    model.forward_features = lambda images: VisionTransformer.forward_features(model, images)


class OwnFeatures(VisionTransformer):
    def forward_features(self, images):
        return super().forward_features(images)


@pytest.mark.parametrize(
    "why",
    {
        "dropout": lambda model: setattr(model.train().blocks[-1].mlp.drop, "p", 0.1),
        "attention dropout": lambda model: setattr(
            model.train().blocks[-1].attn.attn_drop, "p", 0.1
        ),
        "a hook of gradients": lambda model: model.blocks[-1].register_full_backward_hook(
            lambda *_: None
        ),
        "a hook": lambda model: model.blocks[-1].mlp.fc1.register_forward_hook(lambda *_: None),
        "a hook before": lambda model: model.norm.register_forward_pre_hook(lambda *_: None),
        "own features": own_features,
        "a subclass": lambda model: setattr(model, "__class__", OwnFeatures),
    }.items(),
    ids=lambda item: item[0],
)
def test_the_last_block_computes_all_tokens_for(small, randomise, why):
    model = randomise(vitzoo.create(small))
    why[1](model)
    widths = widths_in_last_mlp(model)
    with torch.no_grad():
        model(torch.randn(2, 3, 32, 32))
    assert widths == [17]


@cases("mode", ["mask", "subset"])
@cases("option", LAST_BLOCKS)
def test_training_computes_what_the_pool_reads_with_the_same_gradients(
    small, randomise, option, mode
):
    drop_path = {"name": "constant", "rate": 0.3, "mode": mode}
    model = randomise(vitzoo.create(small | LAST_BLOCKS[option], drop_path=drop_path)).train()
    widths, results = widths_in_last_mlp(model), []
    given = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    for forward in (model, lambda images: model.forward_head(model.forward_features(images))):
        torch.manual_seed(3)
        model.zero_grad()
        logits = forward(given)
        logits.square().sum().backward()
        results.append([logits.detach(), *(p.grad for p in model.parameters())])
    assert widths == [2 if option == "two tokens" else 1, 16 + model.num_prefix_tokens]
    for found, expected in zip(*results, strict=True):
        scale = max(1, expected.abs().max().item())
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * scale)


def test_the_last_block_is_computed_again_in_the_backward_pass(small, randomise):
    model = randomise(vitzoo.create(small)).train()
    widths, grads = widths_in_last_mlp(model), []
    for again in (False, True):
        model.set_grad_checkpointing(again)
        model.zero_grad()
        model(torch.ones(2, 3, 32, 32)).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    assert widths == [1, 1, 1]
    assert all(map(torch.equal, *grads))


@torch.inference_mode()
@pytest.mark.parametrize("head", [None, nn.Linear(48, 5)], ids=["own", "by hand"])
def test_replicas_of_data_parallel_keep_spec_and_labels(head):
    """DataParallel assigns the modules of a replica before their parameters."""
    model = make()
    if head is not None:
        model.head = head
    model.labels = tuple("abcdefg")[: model.num_classes]
    copies = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, replica in copies.items():
        for name, child in module._modules.items():
            if child is not None:
                setattr(replica, name, copies[child])
        for name, parameter in module._parameters.items():
            setattr(replica, name, parameter if parameter is None else parameter.detach())
    replica = copies[model]
    assert replica.spec == model.spec
    assert replica.labels == model.labels
    assert torch.equal(replica(images()), model(images()))


# Dropout.


def test_dropout_acts_after_positions_projection_and_mlp():
    model = vitzoo.create(SMALL, dropout=0.1)
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    expected = {"pos_drop"}
    for i in range(3):
        expected |= {f"blocks.{i}.attn.proj_drop", f"blocks.{i}.mlp.drop"}
    assert {name for name, rate in rates.items() if rate} == expected
    assert set(rates.values()) == {0.0, 0.1}  # 0 for the attention probabilities
    assert {block.attn.attn_drop.p for block in model.blocks} == {0.0}


@pytest.mark.parametrize("head", ["linear", "tanh", "mlp"])
def test_dropout_is_never_in_the_head(head):
    torch.manual_seed(0)
    model = vitzoo.create(SMALL, dropout=0.9, head=head).train()
    for parameter in model.head.parameters():
        nn.init.normal_(parameter)
    assert not [m for m in model.head.modules() if isinstance(m, nn.Dropout)]
    tokens = randn(2, 17, 48)
    assert torch.equal(model.forward_head(tokens), model.forward_head(tokens))


@torch.inference_mode()
def test_dropout_acts_after_positions():
    torch.manual_seed(0)
    model = vitzoo.create(SMALL, dropout=0.25)
    dropped = (model.embed(randn(8, 3, 32, 32)) == 0).float().mean()
    assert dropped == pytest.approx(0.25, abs=0.05)


@torch.inference_mode()
def test_dropout_is_off_in_evaluation():
    torch.manual_seed(0)
    model = vitzoo.create(SMALL, dropout=0.5, drop_path=0.5, block={"attention_dropout": 0.5})
    images = randn(2, 3, 32, 32)
    model.eval()
    assert torch.equal(model.forward_features(images), model.forward_features(images))
    model.train()
    assert not torch.equal(model.forward_features(images), model.forward_features(images))


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_impossible_dropout(rate):
    text = message(vitzoo.InvalidOption, vitzoo.create, SMALL, dropout=rate)
    says(text, "dropout", 0, 1, f"got {rate}")


# How it is shown.


def test_repr_begins_with_the_name_of_the_variant():
    model = vitzoo.create({"variant": "vit_ti16", "depth": 2}, device="meta")
    first, *below = repr(model).splitlines()
    assert first == "vit_ti16: VisionTransformer("
    assert below == nn.Module.__repr__(model).splitlines()[1:]
    assert any(line.startswith("  (blocks): Blocks(") for line in below)


def test_repr_of_a_network_without_a_name_or_a_spec():
    model = make()
    plain = nn.Module.__repr__(model)
    assert plain.startswith("VisionTransformer(\n")
    assert repr(model) == plain  # its spec names no variant
    model.spec = None
    assert repr(model) == plain
    del model.spec  # as while its constructor runs
    assert repr(model) == plain


def test_repr_inside_another_module():
    model = vitzoo.create({"variant": "vit_ti16", "depth": 1}, device="meta")
    assert "  (0): vit_ti16: VisionTransformer(" in repr(nn.Sequential(model)).splitlines()


# Parts that are not vitzoo's own.


class Wrong(nn.Module):
    """A part whose output the test chooses."""

    in_chans, num_classes, pre_logits_dim, norm_first = 3, 7, 48, True

    def __init__(self, give):
        super().__init__()
        self.give = give
        self.weight = nn.Parameter(torch.ones(5, 48))

    def grid(self, image_size):
        return image_size[0] // 8, image_size[1] // 8

    def initial_table(self, grid_size):
        return None

    def resample(self, table, old, new):
        return None

    def to_grid(self, grid_size):
        pass

    def reset(self, num_classes):
        return self

    def forward(self, x, *_):
        return getattr(self, self.give)(x)

    def fails(self, x):
        return x @ torch.ones(5, 6)

    def adds_an_axis(self, x):
        return x.flatten(1)[:, :7].unsqueeze(-1)

    def double(self, x):
        return 2 * x

    def is_right_for_a_head(self, x):
        return x[..., :7] + self.weight[0, 0]


@pytest.fixture
def wrong(install):
    """Create a network with a part of a plugin that fails or returns a wrong shape."""
    manifest = "api = 1\n" + "".join(
        f'{table}.odd = {{ target = "acme.parts:odd", summary = "s" }}\n'
        for table in ("patch_embedders", "position_embeddings", "heads")
    )
    files = {"acme/__init__.py": "", "acme/parts.py": "odd = None", "acme/registry.toml": manifest}
    install("acme-vit", "acme = acme:registry.toml", files)
    odd = importlib.import_module("acme.parts")

    def create(field, give, **arguments):
        def make():
            return Wrong(give)

        odd.odd = make
        return vitzoo.create(SMALL, **{field: "acme/odd"}, **arguments).eval()

    return create


OWNER = ("plugin 'acme' (acme-vit 1.0)", "choose another", "`vitzoo plugins check acme`")


@pytest.mark.parametrize(
    ("field", "given", "expected"),
    [
        ("patch_embed", (2, 3, 32, 32), (2, 16, 48)),
        ("pos_embed", (2, 17, 48), (2, 17, 48)),
        ("head", (2, 48), (2, 7)),
    ],
)
def test_a_part_of_a_plugin_that_gives_another_shape_is_named(wrong, field, given, expected):
    model = wrong(field, "adds_an_axis")
    said = (f"{field} 'acme/odd'", *OWNER, given, expected)
    with refuses(vitzoo.PluginError, *said, (2, 7, 1)):
        model(images())
    with refuses(vitzoo.PluginError, *said[:-1], (2, 7, 1)):
        model.features(images(), ["logits"])
    failing = wrong(field, "fails")
    with refuses(vitzoo.PluginError, *said, "RuntimeError:", "failed"), torch.no_grad():
        failing(images())
    assert isinstance(refused(failing).__cause__, RuntimeError)


def refused(model):
    with pytest.raises(vitzoo.PluginError) as caught:
        model(images())
    return caught.value


def test_a_pool_given_as_an_object_is_named():
    model = vitzoo.create(SMALL, pool=Wrong("adds_an_axis")).eval()
    with refuses(vitzoo.InvalidOption, "pool 'Wrong'", "ready object", (2, 17, 48), (2, 48)):
        model(images())


@pytest.mark.parametrize("method", ["rotate", "attention_bias"])
def test_positions_that_fail_in_the_attention_are_named(method):
    positions = Wrong("double")
    setattr(positions, method, lambda *_, **__: positions.fails(images(2, 17)))
    model = vitzoo.create(SMALL, pos_embed=positions).eval()
    with refuses(vitzoo.InvalidOption, "pos_embed 'Wrong'", "ready object", "RuntimeError:"):
        model(images())


def test_queries_that_change_their_shape_are_named():
    positions = Wrong("double")
    positions.rotate = lambda x, *_: x[:, :, 1:]
    model = vitzoo.create(SMALL, pos_embed=positions).eval()
    with refuses(vitzoo.InvalidOption, "pos_embed 'Wrong'", (2, 3, 16, 16), (2, 3, 17, 16)):
        model(images())


def test_an_error_that_is_no_fault_of_a_shape_stays(wrong, monkeypatch):
    model = wrong("head", "fails")

    def full(_):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(model.head, "fails", full, raising=False)
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        model(images())


@pytest.mark.slow
def test_checks_of_shapes_survive_copies_compilation_and_export(wrong):
    model = wrong("head", "is_right_for_a_head", pos_embed=Wrong("double"))
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert copied.checked_parts == model.checked_parts == {
            "head": "head 'acme/odd'", "pos_embed": "pos_embed 'Wrong'",
        }  # fmt: skip
    model = wrong("head", "is_right_for_a_head")
    with torch.no_grad():
        expected = model(images())
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(images()), expected)
        torch.testing.assert_close(compiled(images(3, 3, 32, 32))[:2].shape, expected.shape)
    batch = {0: torch.export.Dim("batch", min=2)}
    exported = torch.export.export(model, (images(),), dynamic_shapes=(batch,)).module()
    torch.testing.assert_close(exported(images()), expected)
    assert exported(images(5, 3, 32, 32)).shape == (5, 7)
    assert model.to("meta")(images().to("meta")).shape == (2, 7)


def test_parts_of_the_core_are_not_checked():
    assert make().checked_parts == {}


@pytest.mark.parametrize(
    ("names", "expected"), [(("weight",), {"head.weight"}), ((), set()), (None, set())]
)
def test_parts_say_which_of_their_parameters_take_no_weight_decay(names, expected):
    head, positions = Wrong("double"), Wrong("double")
    if names is not None:
        head.no_weight_decay = positions.no_weight_decay = lambda: set(names)
    found = vitzoo.create(SMALL, head=head, pos_embed=positions).no_weight_decay()
    own = {"positions.weight"} if names != () else set()
    assert found == {"cls_token"} | own | expected
