"""Each part by itself, and the messages for values that cannot be right."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitzoo
from helpers import SMALL, message, randn, says
from vitzoo.parts import drop_path as policies
from vitzoo.parts.attention import Attention
from vitzoo.parts.block import Block
from vitzoo.parts.drop_path import MaskDropPath, SubsetDropPath
from vitzoo.parts.heads import NoHead, linear_head, mlp_head, tanh_head
from vitzoo.parts.mlp import ACTIVATIONS, Mlp, QuickGELU
from vitzoo.parts.patch_embed import ConvPatchEmbed, UnfoldPatchEmbed
from vitzoo.parts.pool import ClassMeanPool, ClassPool, MeanPool

# Patch embedders.

PUBLISHED = [(16, 768), (32, 768), (16, 1024), (32, 1024), (14, 1280)]  # B, L and H


def embedders(**numbers):
    torch.manual_seed(0)
    conv, unfold = ConvPatchEmbed(**numbers), UnfoldPatchEmbed(**numbers)
    nn.init.normal_(conv.proj.bias)
    unfold.load_state_dict(conv.state_dict(), strict=True)
    return conv, unfold


@torch.inference_mode()
@pytest.mark.parametrize("patch", [(8, 8), (4, 8), (8, 2), (1, 1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_conv_and_unfold_agree(patch, channels):
    conv, unfold = embedders(patch_size=patch, in_chans=channels, embed_dim=24)
    images = randn(2, channels, 16, 24)
    tokens = conv(images)
    assert tokens.shape == (2, (16 // patch[0]) * (24 // patch[1]), 24)
    torch.testing.assert_close(unfold(images), tokens, rtol=0, atol=1e-5)


@pytest.mark.parity
@torch.inference_mode()
@pytest.mark.parametrize(("patch", "width"), PUBLISHED)
def test_conv_and_unfold_agree_at_published_sizes(patch, width):
    conv, unfold = embedders(patch_size=(patch, patch), in_chans=3, embed_dim=width)
    images = randn(2, 3, 224, 224).clamp(-1, 1)  # the range of pictures; rounding grows with it
    torch.testing.assert_close(unfold(images), conv(images), rtol=0, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("embedder", [ConvPatchEmbed, UnfoldPatchEmbed])
def test_a_token_is_the_projection_of_its_patch(embedder):
    torch.manual_seed(0)
    part = embedder(patch_size=(4, 8), in_chans=3, embed_dim=24)
    images = randn(1, 3, 16, 24)
    grid = part.grid((16, 24))
    assert grid == (4, 3)
    tokens = part(images).reshape(4, 3, 24)
    patch = images[0, :, 8:12, 16:24]
    expected = part.proj.weight.flatten(1) @ patch.flatten()
    torch.testing.assert_close(tokens[2, 2], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("embedder", ["conv", "unfold"])
@pytest.mark.parametrize(
    ("image", "patch", "wrong", "nearest"),
    [
        (225, 16, ("225x225", "16x16"), ("224x224", "240x240")),
        ([224, 230], 16, ("224x230", "16x16"), ("224x224", "224x240")),
        ([64, 50], [32, 16], ("64x50", "32x16"), ("64x48", "64x64")),
        ([8, 40], 16, ("8x40", "16x16"), ("16x32", "16x48")),
    ],
)
def test_an_image_that_patches_do_not_tile(embedder, image, patch, wrong, nearest):
    spec = SMALL | {"image_size": image, "patch_size": patch, "patch_embed": embedder}
    text = message(vitzoo.InvalidOption, vitzoo.create, spec)
    says(text, "image_size", *wrong, *nearest)


# Attention and MLP.


@torch.inference_mode()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_formula(bias, scale):
    torch.manual_seed(0)
    part = Attention(embed_dim=12, num_heads=3, qkv_bias=bias, qk_scale=scale).eval()
    if bias:
        nn.init.normal_(part.qkv.bias)
    assert (part.qkv.bias is not None) is bias
    x = randn(2, 5, 12)
    q, k, v = (t.unflatten(-1, (3, 4)).transpose(1, 2) for t in part.qkv(x).chunk(3, dim=-1))
    weights = (q @ k.transpose(-2, -1) * (scale or 0.5)).softmax(-1)
    expected = part.proj((weights @ v).transpose(1, 2).reshape(2, 5, 12))
    torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(part.probabilities(x), weights, rtol=0, atol=1e-6)


@torch.inference_mode()
def test_attention_dropout_acts_in_training_only():
    torch.manual_seed(0)
    part = Attention(embed_dim=12, num_heads=3, attention_dropout=0.5)
    x = randn(2, 5, 12)
    assert not torch.equal(part.train()(x), part(x))
    assert torch.equal(part.eval()(x), part(x))


@pytest.mark.parametrize("heads", [5, 7, 64])
def test_heads_must_divide_the_width(heads):
    text = message(vitzoo.InvalidOption, vitzoo.create, SMALL | {"num_heads": heads})
    says(text, "num_heads", "embed_dim", 48, heads)


def test_quick_gelu_formula():
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    expected = x / (1 + torch.exp(-1.702 * x))
    torch.testing.assert_close(QuickGELU()(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        (
            "gelu_tanh",
            lambda x: x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
        ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x)),
    ],
)
def test_activations_by_name(name, formula):
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[name]()(x), formula(x), rtol=0, atol=1e-12)


def test_every_activation_of_a_spec_exists():
    from vitzoo.schema.spec import ACTIVATIONS as NAMES

    assert tuple(ACTIVATIONS) == NAMES


@torch.inference_mode()
def test_mlp_formula():
    torch.manual_seed(0)
    part = Mlp(embed_dim=6, hidden_dim=20, activation=nn.GELU(), dropout=0.5).eval()
    x = randn(2, 5, 6)
    hidden = F.gelu(x @ part.fc1.weight.T + part.fc1.bias)
    expected = hidden @ part.fc2.weight.T + part.fc2.bias
    torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-6)


@torch.inference_mode()
def test_block_formula():
    torch.manual_seed(0)
    norms = [nn.LayerNorm(12), nn.LayerNorm(12)]
    for norm in norms:
        nn.init.normal_(norm.weight)
    attn = Attention(embed_dim=12, num_heads=3)
    mlp = Mlp(embed_dim=12, hidden_dim=24, activation=nn.GELU())
    block = Block(norm1=norms[0], attn=attn, norm2=norms[1], mlp=mlp, drop_path=MaskDropPath())
    x = randn(2, 5, 12)
    middle = x + attn(norms[0](x))
    assert torch.equal(block(x), middle + mlp(norms[1](middle)))


def test_every_block_gets_the_options():
    options = {
        "norm_eps": 1e-3,
        "activation": "quick_gelu",
        "qkv_bias": False,
        "qk_scale": 0.3,
        "attention_dropout": 0.2,
    }
    model = vitzoo.create(SMALL, block=options)
    for block in model.blocks:
        assert (block.norm1.eps, block.norm2.eps) == (1e-3, 1e-3)
        assert isinstance(block.mlp.act, QuickGELU)
        assert block.attn.qkv.bias is None
        assert block.attn.scale == 0.3
        assert block.attn.attention_dropout == 0.2
    assert model.norm.eps == 1e-3


# Drop path.


def ones(x):
    return torch.ones_like(x)


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.9])
def test_drop_path_expectation(rate):
    torch.manual_seed(0)
    draws = 40_000
    result = MaskDropPath(rate=rate)(torch.zeros(draws, 1, 1), ones)
    sigma = math.sqrt(rate / (1 - rate) / draws)
    assert abs(result.mean().item() - 1) < 5 * sigma
    dropped = (result == 0).float().mean().item()
    assert abs(dropped - rate) < 5 * math.sqrt(rate * (1 - rate) / draws)


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_drop_path_drops_whole_samples(rate):
    torch.manual_seed(0)
    x = randn(64, 5, 3)
    branch = randn(64, 5, 3, seed=1)
    result = MaskDropPath(rate=rate)(x, lambda _: branch)
    dropped = (result == x).flatten(1).all(1)
    assert 0 < dropped.sum() < 64
    kept = x + branch / (1 - rate)
    torch.testing.assert_close(result[~dropped], kept[~dropped], rtol=0, atol=1e-5)


def test_drop_path_draws_for_each_branch():
    torch.manual_seed(0)
    part = MaskDropPath(rate=0.5)
    x = torch.zeros(64, 1, 1)
    assert not torch.equal(part(x, ones), part(x, ones))


def test_drop_path_is_off_in_evaluation():
    part = MaskDropPath(rate=0.9).eval()
    x = randn(8, 5, 3)
    assert torch.equal(part(x, torch.sin), x + x.sin())


def test_drop_path_of_rate_zero_is_a_plain_residual():
    part = MaskDropPath().train()
    x = randn(8, 5, 3)
    assert part.rate == 0
    assert torch.equal(part(x, torch.sin), x + x.sin())


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.9])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_subset_expectation_and_variance_of_each_sample(rate, batch):
    torch.manual_seed(0)
    part, draws = SubsetDropPath(rate=rate), 4_000
    x = torch.zeros(batch, 1, 1)
    results = torch.stack([part(x, ones).flatten() for _ in range(draws)])  # (draws, b)
    variance = rate / (1 - rate)
    assert (results.mean(0) - 1).abs().max() < 5 * math.sqrt(variance / draws)
    spread = math.sqrt((1 / rate / (1 - rate) - 4) / draws) + 1e-3  # of a two-valued variance
    assert (results.var(0) / variance - 1).abs().max() < 5 * spread


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_subset_adds_the_scaled_branch_to_whole_samples(rate):
    torch.manual_seed(0)
    x = randn(64, 5, 3)
    result = SubsetDropPath(rate=rate)(x, lambda chosen: chosen.sin())
    dropped = (result == x).flatten(1).all(1)
    assert int(dropped.sum()) in (math.floor(64 * rate), math.ceil(64 * rate))
    kept = x + x.sin() / (1 - rate)
    torch.testing.assert_close(result[~dropped], kept[~dropped], rtol=0, atol=1e-6)


def test_subset_computes_the_kept_samples_only():
    torch.manual_seed(0)
    seen = []
    SubsetDropPath(rate=0.75)(randn(8, 5, 3), lambda chosen: seen.append(len(chosen)) or chosen)
    assert seen == [2]


def test_subset_has_the_gradient_of_what_it_computed():
    torch.manual_seed(0)
    part = SubsetDropPath(rate=0.5)
    x = randn(6, 2, 3).requires_grad_()
    result = part(x, torch.sin)
    kept = (result != x).flatten(1).any(1)
    result.sum().backward()
    expected = torch.where(kept[:, None, None], 1 + 2 * x.detach().cos(), 1.0)
    torch.testing.assert_close(x.grad, expected)


def test_subset_is_off_in_evaluation_and_at_rate_zero():
    x = randn(8, 5, 3)
    for part in (SubsetDropPath(rate=0.9).eval(), SubsetDropPath().train()):
        assert torch.equal(part(x, torch.sin), x + x.sin())


def test_subset_under_autocast_keeps_the_type_of_the_residual():
    part = SubsetDropPath(rate=0.5)
    assert part(randn(8, 5, 3), lambda chosen: chosen.bfloat16()).dtype == torch.float32


def test_a_network_in_mode_subset_trains():
    torch.manual_seed(0)
    model = vitzoo.create(SMALL, drop_path={"name": "linear", "rate": 0.4, "mode": "subset"})
    assert [type(block.drop_path) for block in model.blocks] == [SubsetDropPath] * 3
    model(randn(8, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_an_unknown_mode():
    part = {"name": "linear", "rate": 0.1, "mode": "subst"}
    text = message(vitzoo.UnknownName, vitzoo.create, SMALL, drop_path=part)
    says(text, "drop_path mode", "'subst'", "'subset'")


@pytest.mark.parametrize("depth", [1, 2, 3, 12, 24])
@pytest.mark.parametrize("rate", [0, 0.1, 0.4, 0.99])
def test_linear_policy(depth, rate):
    expected = torch.linspace(0, rate, depth, dtype=torch.float64).tolist()
    assert policies.linear(depth=depth, rate=rate) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("depth", [1, 12])
def test_constant_and_no_policy(depth):
    assert policies.constant(depth=depth, rate=0.3) == (0.3,) * depth
    assert policies.none(depth=depth) == (0,) * depth


@pytest.mark.parametrize(
    ("asked", "rates"),
    [
        (None, [0, 0, 0]),
        (0.0, [0, 0, 0]),
        (0.4, [0, 0.2, 0.4]),
        ("none", [0, 0, 0]),
        ({"name": "linear", "rate": 0.2}, [0, 0.1, 0.2]),
        ({"name": "constant", "rate": 0.3}, [0.3, 0.3, 0.3]),
        ({"name": "constant", "rate": 0.3, "mode": "mask"}, [0.3, 0.3, 0.3]),
    ],
)
def test_each_block_gets_its_rate(asked, rates):
    model = vitzoo.create(SMALL, drop_path=asked)
    assert [block.drop_path.rate for block in model.blocks] == pytest.approx(rates)


@pytest.mark.parametrize("rate", [-0.1, 1, 1.5, math.nan, math.inf, True, False, "0.1", None])
@pytest.mark.parametrize(
    "call",
    [
        lambda rate: policies.linear(depth=3, rate=rate),
        lambda rate: policies.constant(depth=3, rate=rate),
        lambda rate: MaskDropPath(rate=rate),
        lambda rate: SubsetDropPath(rate=rate),
    ],
)
def test_impossible_rate(rate, call):
    says(message(vitzoo.InvalidOption, call, rate), "drop_path rate", 0, 1, f"got {rate!r}")


@pytest.mark.parametrize("rate", [-0.1, 1.0, math.nan])
def test_impossible_rate_of_a_network(rate):
    text = message(vitzoo.InvalidOption, vitzoo.create, SMALL, drop_path=rate)
    says(text, "drop_path rate", 0, 1, f"got {rate!r}")


def test_a_policy_without_its_rate():
    text = message(vitzoo.InvalidOption, vitzoo.create, SMALL, drop_path="constant")
    says(text, "drop_path 'constant'", "'rate'", "{'name': ..., 'rate': ...}")


# Dropout.


def test_dropout_acts_after_positions_projection_and_mlp():
    model = vitzoo.create(SMALL, dropout=0.1)
    rates = {name: m.p for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    expected = {"pos_drop"}
    for i in range(3):
        expected |= {f"blocks.{i}.attn.proj_drop", f"blocks.{i}.mlp.drop"}
    assert rates == dict.fromkeys(expected, 0.1)
    assert {block.attn.attention_dropout for block in model.blocks} == {0.0}


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
def test_dropout_acts_after_the_attention_projection():
    torch.manual_seed(0)
    part = Attention(embed_dim=64, num_heads=2, dropout=0.25)
    dropped = (part(randn(1, 64, 64)) == 0).float().mean()
    assert dropped == pytest.approx(0.25, abs=0.05)


@torch.inference_mode()
def test_dropout_acts_after_positions():
    torch.manual_seed(0)
    model = vitzoo.create(SMALL, dropout=0.25)
    dropped = (model.embed(randn(8, 3, 32, 32)) == 0).float().mean()
    assert dropped == pytest.approx(0.25, abs=0.05)


@torch.inference_mode()
def test_mlp_dropout_acts_after_both_layers():
    torch.manual_seed(0)
    part = Mlp(embed_dim=64, hidden_dim=256, activation=nn.GELU(), dropout=0.5)
    assert (part(randn(1, 8, 64)) == 0).float().mean() > 0.3
    part.fc2 = nn.Identity()
    hidden = part(randn(1, 8, 64))
    assert (hidden == 0).float().mean() == pytest.approx(0.75, abs=0.05)  # dropped twice


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


# Pools.


@pytest.mark.parametrize("prefix", [1, 2])
def test_class_pool_takes_the_first_token(prefix):
    tokens = randn(2, prefix + 4, 8)
    part = ClassPool()
    assert part.norm_first
    assert torch.equal(part(tokens), tokens[:, 0])


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_mean_pool_averages_patch_tokens(prefix):
    tokens = randn(2, prefix + 4, 8)
    result = MeanPool(num_prefix_tokens=prefix)(tokens)
    expected = sum(tokens[:, prefix + i] for i in range(4)) / 4
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("first", "norm", "fc_norm"), [(True, 1, 0), (False, 0, 1)])
def test_mean_pool_says_where_the_norm_acts(first, norm, fc_norm):
    model = vitzoo.create(SMALL, pool={"name": "mean", "norm_first": first})
    assert isinstance(model.norm, nn.LayerNorm) is bool(norm)
    assert isinstance(model.fc_norm, nn.LayerNorm) is bool(fc_norm)


@pytest.mark.parametrize("prefix", [1, 3])
def test_class_mean_pool_takes_the_first_token_and_the_mean_of_the_patches(prefix):
    tokens = randn(2, prefix + 4, 8)
    result = ClassMeanPool(num_prefix_tokens=prefix)(tokens)
    mean = sum(tokens[:, prefix + i] for i in range(4)) / 4
    assert torch.equal(result[:, 0], tokens[:, 0])
    torch.testing.assert_close(result[:, 1], mean, rtol=0, atol=1e-6)


def test_class_mean_pool_needs_a_class_token():
    spec = SMALL | {"class_token": False, "pool": "class_mean", "num_classes": 0}
    text = message(vitzoo.InvalidOption, vitzoo.create, spec)
    says(text, "pool 'class_mean'", "class_token", "false", "pool='mean'")


def test_class_pool_needs_a_class_token():
    text = message(vitzoo.InvalidOption, vitzoo.create, SMALL | {"class_token": False})
    says(text, "pool 'class'", "class_token", "false", "pool='mean'")


# Heads.


@pytest.mark.parametrize(
    ("make", "options", "width", "parameters"),
    [
        (linear_head, {}, 8, 8 * 5 + 5),
        (tanh_head, {}, 8, 8 * 8 + 8 + 8 * 5 + 5),
        (tanh_head, {"hidden_dim": 20}, 20, 8 * 20 + 20 + 20 * 5 + 5),
        (mlp_head, {"hidden_dim": 3}, 3, 8 * 3 + 3 + 3 * 5 + 5),
    ],
)
def test_head_shapes(make, options, width, parameters):
    part = make(in_dim=8, num_classes=5, **options)
    x = randn(2, 8)
    assert (part.num_classes, part.pre_logits_dim) == (5, width)
    assert part(x).shape == (2, 5)
    assert part(x, pre_logits=True).shape == (2, width)
    assert sum(p.numel() for p in part.parameters()) == parameters

    fresh = part.reset(3)
    assert (fresh.num_classes, fresh.pre_logits_dim) == (3, width)
    assert fresh(x).shape == (2, 3)

    headless = part.reset(0)
    assert (headless.num_classes, headless.pre_logits_dim) == (0, width)
    assert headless(x).shape == (2, width)
    again = headless.reset(4)
    assert (again.num_classes, again.pre_logits_dim) == (4, width)
    assert again(x).shape == (2, 4)


def test_linear_head_formula():
    part = linear_head(in_dim=8, num_classes=5)
    nn.init.normal_(part.weight)
    x = randn(2, 8)
    assert torch.equal(part(x, pre_logits=True), x)
    torch.testing.assert_close(part(x), x @ part.weight.T + part.bias)


@torch.inference_mode()
@pytest.mark.parametrize(("make", "activation"), [(tanh_head, torch.tanh), (mlp_head, F.gelu)])
def test_pre_logits_head_formula(make, activation):
    torch.manual_seed(0)
    part = make(in_dim=8, num_classes=5)
    for parameter in part.parameters():
        nn.init.normal_(parameter)
    x = randn(2, 8)
    pre_logits = activation(x @ part.pre_logits.weight.T + part.pre_logits.bias)
    expected = pre_logits @ part.fc.weight.T + part.fc.bias
    torch.testing.assert_close(part(x, pre_logits=True), pre_logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("make", [tanh_head, mlp_head])
def test_a_pre_logits_head_without_classes_keeps_its_layer(make):
    part = make(in_dim=8, num_classes=0)
    x = randn(2, 8)
    assert torch.equal(part(x), part(x, pre_logits=True))
    assert set(part.state_dict()) == {"pre_logits.weight", "pre_logits.bias"}


def test_no_head_gives_features():
    part = NoHead(in_dim=8)
    x = randn(2, 8)
    assert part(x) is x
    assert (part.num_classes, part.pre_logits_dim) == (0, 8)


def test_no_head_has_no_classes():
    text = message(vitzoo.InvalidOption, vitzoo.create, SMALL | {"head": "none"})
    says(text, "head 'none'", "num_classes=7", "another head")


@pytest.mark.parametrize("width", [0, -4, 2.5, True])
@pytest.mark.parametrize("head", ["tanh", "mlp"])
def test_impossible_width_of_a_head(head, width):
    spec = SMALL | {"head": {"name": head, "hidden_dim": width}}
    text = message(vitzoo.InvalidOption, vitzoo.create, spec)
    says(text, "hidden_dim", "positive", "whole number", f"got {width!r}")
