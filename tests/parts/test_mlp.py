"""The MLP and its activations against their formulas."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import randn
from tables import cases
from vitzoo.parts import Mlp, PackedSwiGLU, QuickGELU, SwiGLU
from vitzoo.parts.mlp import ACTIVATIONS

SELU, ALPHA = 1.0507009873554805, 1.6732632423543772  # arXiv:1706.02515, appendix A.1


def test_quick_gelu_formula():
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    expected = x / (1 + torch.exp(-1.702 * x))
    torch.testing.assert_close(QuickGELU()(x), expected, rtol=0, atol=1e-12)


@cases(
    ("name", "formula"),
    [
        ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        (
            "gelu_tanh",
            lambda x: x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
        ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x)),
        ("relu", lambda x: x.clamp(min=0)),
        ("silu", lambda x: x / (1 + torch.exp(-x))),
        ("elu", lambda x: torch.where(x > 0, x, torch.exp(x) - 1)),
        ("selu", lambda x: SELU * torch.where(x > 0, x, ALPHA * (torch.exp(x) - 1))),
        ("mish", lambda x: x * torch.tanh(torch.log(1 + torch.exp(x)))),
        ("hardswish", lambda x: x * (x + 3).clamp(0, 6) / 6),
        ("leaky_relu", lambda x: torch.where(x > 0, x, 0.01 * x)),
        ("tanh", lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1)),
    ],
)
def test_activations_by_name(name, formula):
    x = torch.linspace(-6, 6, 101, dtype=torch.float64)
    torch.testing.assert_close(ACTIVATIONS[name]()(x), formula(x), rtol=0, atol=1e-12)


def test_every_activation_of_a_spec_exists():
    from vitzoo.schema.spec import CHOICES

    assert tuple(ACTIVATIONS) == CHOICES["activation"]


@torch.inference_mode()
def test_mlp_formula():
    torch.manual_seed(0)
    part = Mlp(embed_dim=6, hidden_dim=20, activation=nn.GELU(), dropout=0.5).eval()
    x = randn(2, 5, 6)
    hidden = F.gelu(x @ part.fc1.weight.T + part.fc1.bias)
    expected = hidden @ part.fc2.weight.T + part.fc2.bias
    torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-6)


@torch.inference_mode()
def test_layers_without_biases():
    torch.manual_seed(0)
    x, sizes = randn(2, 5, 6), {"embed_dim": 6, "hidden_dim": 20, "bias": False}
    part = Mlp(activation=nn.GELU(), **sizes)
    expected = F.gelu(x @ part.fc1.weight.T) @ part.fc2.weight.T
    torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-6)
    part = SwiGLU(**sizes)
    expected = F.silu(x @ part.fc1_g.weight.T) * (x @ part.fc1_x.weight.T) @ part.fc2.weight.T
    torch.testing.assert_close(part(x), expected, rtol=0, atol=1e-6)
    part = PackedSwiGLU(**sizes)
    gate, value = (x @ part.fc1.weight.T).chunk(2, dim=-1)
    torch.testing.assert_close(part(x), F.silu(gate) * value @ part.fc2.weight.T, rtol=0, atol=1e-6)


@torch.inference_mode()
def test_mlp_dropout_acts_after_both_layers():
    torch.manual_seed(0)
    part = Mlp(embed_dim=64, hidden_dim=256, activation=nn.GELU(), dropout=0.5)
    assert (part(randn(1, 8, 64)) == 0).float().mean() > 0.3
    part.fc2 = nn.Identity()
    hidden = part(randn(1, 8, 64))
    assert (hidden == 0).float().mean() == pytest.approx(0.75, abs=0.05)  # dropped twice
