"""Attention against its formula."""

import pytest
import torch
from torch import nn

import vitzoo
from helpers import SMALL, message, randn, says
from tables import cases
from vitzoo.parts import Attention, attention


@torch.inference_mode()
@cases("bias", [True, False])
@cases("after", [True, False])
@cases("scale", [None, 0.3])
def test_attention_formula(bias, after, scale):
    torch.manual_seed(0)
    options = {"qkv_bias": bias, "proj_bias": after, "qk_scale": scale}
    part = Attention(embed_dim=12, num_heads=3, **options).eval()
    for layer, wanted in ((part.qkv, bias), (part.proj, after)):
        assert (layer.bias is not None) is wanted
        if wanted:
            nn.init.normal_(layer.bias)
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


@torch.inference_mode()
def test_dropout_acts_after_the_attention_projection():
    torch.manual_seed(0)
    part = Attention(embed_dim=64, num_heads=2, dropout=0.25)
    dropped = (part(randn(1, 64, 64)) == 0).float().mean()
    assert dropped == pytest.approx(0.25, abs=0.05)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_of_keys_and_values_change_no_byte(monkeypatch, dtype):
    torch.manual_seed(0)
    part = Attention(embed_dim=96, num_heads=3).eval().to(dtype)
    x = randn(2, attention.LONG + 65, 96).to(dtype)
    plain, seen = torch.nn.functional.scaled_dot_product_attention, []

    def kept(q, k, v, *args, **options):
        seen.append(k.is_contiguous() and v.is_contiguous())
        return plain(q, k, v, *args, **options)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", kept)
    copied = part(x), part(x, tokens=1)
    monkeypatch.setattr(attention, "LONG", x.shape[1] + 1)
    assert torch.equal(copied[0], part(x))
    assert seen == [dtype == torch.float32, False, False]
    torch.testing.assert_close(copied[1], copied[0][:, :1], rtol=0, atol=1e-5)
