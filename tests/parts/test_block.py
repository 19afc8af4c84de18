"""Options of blocks, pools and prefix tokens against their formulas, and errors about misuse."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import vitzoo
from helpers import SMALL as DEEPER, message, randn, refuses, says
from tables import cases
from vitzoo.parts import (
    Attention,
    AttentionPool,
    Block,
    LayerScale,
    MaskDropPath,
    Mlp,
    PackedSwiGLU,
    PrefixPool,
    QuickGELU,
    SwiGLU,
)

SMALL = DEEPER | {"depth": 2}


def alive(module):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return module.eval()


def linear(layer, x):
    return x @ layer.weight.T + layer.bias


@torch.inference_mode()
def test_swiglu_formula():
    mlp, x = alive(SwiGLU(embed_dim=8, hidden_dim=20)), randn(2, 5, 8)
    gate = linear(mlp.fc1_g, x)
    expected = linear(mlp.fc2, gate * torch.sigmoid(gate) * linear(mlp.fc1_x, x))
    torch.testing.assert_close(mlp(x), expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_packed_swiglu_is_swiglu_with_the_gate_first():
    mlp, packed, x = alive(SwiGLU(embed_dim=8, hidden_dim=20)), None, randn(2, 5, 8)
    packed = PackedSwiGLU(embed_dim=8, hidden_dim=20).eval()
    packed.fc1.weight.copy_(torch.cat((mlp.fc1_g.weight, mlp.fc1_x.weight)))
    packed.fc1.bias.copy_(torch.cat((mlp.fc1_g.bias, mlp.fc1_x.bias)))
    packed.fc2.load_state_dict(mlp.fc2.state_dict())
    torch.testing.assert_close(packed(x), mlp(x), rtol=0, atol=1e-6)


@torch.inference_mode()
def test_layer_scale_multiplies_branches():
    plain = alive(vitzoo.create(SMALL))
    scaled = vitzoo.create(SMALL, block={"layer_scale": 0.5}).eval()
    scaled.load_state_dict(plain.state_dict(), strict=False)
    block, reference, x = scaled.blocks[0], plain.blocks[0], randn(2, 5, 48)
    nn.init.normal_(block.ls1.gamma)
    nn.init.normal_(block.ls2.gamma)
    expected = x + block.ls1.gamma * reference.attn(reference.norm1(x))
    expected = expected + block.ls2.gamma * reference.mlp(reference.norm2(expected))
    torch.testing.assert_close(block(x), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("initial", [1e-5, 1, 0.1])
def test_layer_scale_starts_where_it_is_told(initial):
    scale = LayerScale(embed_dim=6, initial=initial)
    assert torch.equal(scale.gamma, torch.full((6,), float(initial)))


@torch.inference_mode()
def test_queries_and_keys_are_normalised_by_head():
    model = alive(vitzoo.create(SMALL, block={"qk_norm": True, "norm_eps": 1e-3}))
    attn, x = model.blocks[0].attn, randn(2, 5, 48)
    q, k, v = linear(attn.qkv, x).reshape(2, 5, 3, 3, 16).permute(2, 0, 3, 1, 4)
    q = F.layer_norm(q, (16,), attn.q_norm.weight, attn.q_norm.bias, eps=1e-3)
    k = F.layer_norm(k, (16,), attn.k_norm.weight, attn.k_norm.bias, eps=1e-3)
    weights = (q @ k.transpose(-2, -1) / 4).softmax(-1)
    expected = linear(attn.proj, (weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attn(x), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(attn.probabilities(x), weights, rtol=0, atol=1e-6)
    assert not torch.equal(attn.q_norm.weight, attn.k_norm.weight)


def test_parallel_blocks_have_no_norm_after():
    with refuses(vitzoo.InvalidOption, "parallel", "true", "one norm", "post_norm"):
        vitzoo.create(SMALL, block={"parallel": True, "post_norm": True})


@torch.inference_mode()
@pytest.mark.parametrize("scale", [None, 0.3])
def test_parallel_blocks_add_attention_and_mlp_of_the_same_tokens(scale):
    block = {"parallel": True} | ({} if scale is None else {"layer_scale": scale})
    model = alive(vitzoo.create(SMALL, block=block))
    one, x = model.blocks[1], randn(2, 5, 48)
    normed = F.layer_norm(x, (48,), one.norm.weight, one.norm.bias, eps=1e-6)
    branch = one.attn(normed) + one.mlp(normed)
    expected = x + branch * (1 if scale is None else one.ls.gamma)
    torch.testing.assert_close(one(x), expected, rtol=0, atol=1e-5)
    maps = model.attention_maps(randn(1, 3, 32, 32))
    assert maps[1].shape == (1, 3, 17, 17)


@torch.inference_mode()
@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("registers", [0, 3])
def test_prefix_tokens_stand_in_order(class_token, registers):
    spec = SMALL | {"class_token": class_token, "num_registers": registers}
    model = alive(vitzoo.create(spec, pool="mean", pos_embed="none"))
    prefix = class_token + registers
    assert model.num_prefix_tokens == prefix
    tokens = model.embed(randn(2, 3, 32, 32))
    assert tokens.shape == (2, prefix + 16, 48)
    if class_token:
        assert torch.equal(tokens[:, 0], model.cls_token[0].expand(2, -1))
    if registers:
        assert torch.equal(tokens[:, class_token:prefix], model.reg_token.expand(2, -1, -1))
        assert len(set(map(float, model.reg_token[0, :, 0]))) == registers
    _, (patches, found) = (
        None,
        model.get_intermediate_layers(randn(2, 3, 32, 32), 1, return_prefix_tokens=True)[0],
    )
    assert (patches.shape[1], found.shape[1]) == (16, prefix)


@torch.inference_mode()
def test_pre_norm_acts_before_the_first_block():
    model = alive(vitzoo.create(SMALL | {"pre_norm": True}))
    norm, images = model.norm_pre, randn(2, 3, 32, 32)
    model.norm_pre = nn.Identity()
    tokens = model.embed(images)
    model.norm_pre = norm
    expected = F.layer_norm(tokens, (48,), norm.weight, norm.bias, eps=1e-6)
    torch.testing.assert_close(model.embed(images), expected, rtol=0, atol=1e-6)


@torch.inference_mode()
@pytest.mark.parametrize("prefix", [True, False])
def test_attention_pool_formula(prefix):
    pool = alive(AttentionPool(embed_dim=12, num_heads=3, mlp_dim=20, prefix=prefix))
    tokens = randn(2, 6, 12)
    seen = tokens if prefix else tokens[:, 1:]
    q = linear(pool.q, pool.latent[0, 0]).reshape(3, 4)
    k, v = linear(pool.kv, seen).chunk(2, dim=-1)
    k, v = (x.reshape(2, -1, 3, 4) for x in (k, v))
    weights = torch.einsum("hc,bnhc->bhn", q, k).div(2).softmax(-1)
    x = linear(pool.proj, torch.einsum("bhn,bnhc->bhc", weights, v).flatten(1))
    y = F.layer_norm(x, (12,), pool.norm.weight, pool.norm.bias, eps=1e-6)
    expected = x + linear(pool.mlp.fc2, F.gelu(linear(pool.mlp.fc1, y)))
    torch.testing.assert_close(pool(tokens, 1, (1, 5)), expected, rtol=0, atol=1e-5)


def test_attention_pool_takes_the_networks_numbers_or_its_own():
    model = vitzoo.create(SMALL, pool="attention", block={"norm_eps": 1e-3})
    assert (model.attn_pool.num_heads, model.attn_pool.norm.eps) == (3, 1e-3)
    assert model.pool is None
    own = {"name": "attention", "num_heads": 6, "mlp_dim": 24, "activation": "quick_gelu"}
    model = vitzoo.create(SMALL, pool=own)
    assert (model.attn_pool.num_heads, model.attn_pool.mlp.fc1.out_features) == (6, 24)
    assert vitzoo.create(model.spec).spec == model.spec
    assert any(name.startswith("attn_pool.") for name in model.state_dict())


@pytest.mark.parametrize("tokens", [1, 2, 4])
def test_prefix_pool_takes_the_first_tokens(tokens):
    x = randn(2, 4 + 9, 6)
    some = PrefixPool(num_prefix_tokens=4, tokens=tokens)
    assert torch.equal(some(x, 4, (3, 3)), x[:, :tokens])
    assert torch.equal(PrefixPool(num_prefix_tokens=4)(x, 4, (3, 3)), x[:, :4])


@cases(
    ("options", "parts"),
    [
        (
            {"pool": {"name": "prefix", "tokens": 2}},
            ["pool 'prefix'", "1 to 1", "class_token", "num_registers", "tokens=2"],
        ),
        (
            {"pool": {"name": "attention", "num_heads": 5}},
            ["num_heads", "pool", "embed_dim", 48, 5],
        ),
        (
            {"pool": {"name": "attention", "activation": "swish"}},
            ["activation", "gelu, gelu_tanh, quick_gelu", "silu", "'swish'"],
        ),
        ({"pool": {"name": "attention", "prefix": 1}}, ["prefix", "true", "false", 1]),
        (
            {"pool": {"name": "attention", "embed_dim": 7}},
            ["pool 'attention'", "'embed_dim'", "'mlp_dim'"],
        ),
        ({"patch_embed": {"name": "conv", "bias": "no"}}, ["bias", "true", "false", "'no'"]),
        ({"block": {"layer_scale": 0}}, ["[block]", "layer_scale", "positive", "0.0"]),
        (
            {"block": {"mlp": "swiglue"}},
            ["[block]", "mlp, swiglu, swiglu_packed", "'swiglue'", "'swiglu'", "'swiglu_packed'"],
        ),
    ],
    ids=str,
)
def test_wrong_options(options, parts):
    says(message(vitzoo.VitzooError, vitzoo.create, SMALL, **options), *parts)


@pytest.mark.parametrize("head", ["linear", "tanh", "mlp"])
def test_a_head_of_one_vector_refuses_several_tokens(head):
    spec = SMALL | {"num_registers": 1, "pool": "prefix"}
    text = message(vitzoo.InvalidOption, vitzoo.create, spec, head=head)
    says(text, f"head {head!r}", "one vector", "pool 'prefix'", "2 tokens")
    features = vitzoo.create(spec, num_classes=0)(randn(2, 3, 32, 32))
    assert features.shape == (2, 2, 48)


OPTIONS = {
    "layer_scale": {"block": {"layer_scale": 0.1}},
    "qk_norm": {"block": {"qk_norm": True}},
    "swiglu": {"block": {"mlp": "swiglu"}},
    "swiglu_packed": {"block": {"mlp": "swiglu_packed"}},
    "parallel": {"block": {"parallel": True}},
    "norms inside": {"block": {"attn_norm": True, "mlp_norm": True, "mlp": "swiglu"}},
    "rms norm": {"block": {"norm": "rms", "qk_norm": True}},
    "norms after": {"block": {"post_norm": True}},
    "biases of queries and values": {"block": {"qkv_bias": "qv"}},
    "attention": {"pool": "attention"},
    "no biases": {"block": {"qkv_bias": False, "proj_bias": False, "mlp_bias": False}},
    "no bias after attention": {"block": {"proj_bias": False, "mlp": "swiglu"}},
    "no biases in the gate": {"block": {"mlp_bias": False, "mlp": "swiglu_packed"}},
    "norm of patches": {"patch_embed": {"name": "conv", "norm": "rms", "norm_eps": 1e-5}},
    "patch bias": {"patch_embed": {"name": "conv", "bias": False}},
    "unfold without bias": {"patch_embed": {"name": "unfold", "bias": False}},
}


MODES = ("mask", "subset")


def with_option(option, mode):
    """Return a network with an option and a mode of drop path, in evaluation mode."""
    drop_path = {"name": "linear", "rate": 0.3, "mode": mode}
    spec = SMALL | {"num_registers": 2, "pre_norm": True}
    return alive(vitzoo.create(spec, drop_path=drop_path, **OPTIONS[option]))


@pytest.mark.slow
@cases("mode", MODES)
@cases("option", OPTIONS)
def test_every_option_trains_and_saves(tmp_path, option, mode):
    model = with_option(option, mode).train()
    model.blocks[0].drop_path.rate = model.blocks[1].drop_path.rate = 0.0
    model(randn(2, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    path = vitzoo.save(model, tmp_path / "model.safetensors")
    again = vitzoo.create(path).eval()
    images = randn(2, 3, 32, 32)
    torch.testing.assert_close(again(images), model.eval()(images), rtol=0, atol=1e-5)


@pytest.mark.compile
@pytest.mark.one_in(5)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("option", OPTIONS)
@torch.inference_mode()
def test_every_option_compiles_as_one_graph(option, mode):
    model, images = with_option(option, mode), randn(2, 3, 32, 32)
    torch.compiler.reset()  # networks of other tests count too
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images), rtol=0, atol=1e-5)


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
        "proj_bias": False,
        "mlp_bias": False,
    }
    model = vitzoo.create(DEEPER, block=options)
    for block in model.blocks:
        assert (block.norm1.eps, block.norm2.eps) == (1e-3, 1e-3)
        assert isinstance(block.mlp.act, QuickGELU)
        assert block.attn.qkv.bias is block.attn.proj.bias is None
        assert block.mlp.fc1.bias is block.mlp.fc2.bias is None
        assert block.attn.scale == 0.3
        assert block.attn.attn_drop.p == 0.2
    assert model.norm.eps == 1e-3
