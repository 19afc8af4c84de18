"""The MLPs of an encoder block and their activations."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.parts.init import layer, xavier_uniform_


class QuickGELU(nn.Module):
    """Approximates GELU by `x * sigmoid(1.702 x)`, as OpenAI's CLIP does.

    Source: arXiv:1606.08415, section 2.
    """

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "quick_gelu": QuickGELU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "mish": nn.Mish,
    "hardswish": nn.Hardswish,
    "leaky_relu": nn.LeakyReLU,
    "tanh": nn.Tanh,
}


class Mlp(nn.Module):
    """Linear, activation, dropout, Linear, dropout, for each token alone.

    Shapes: (b, n, d) to (b, n, d).

    Args:
        embed_dim: width d.
        hidden_dim: width between the two layers.
        activation: module between the two layers.
        dropout: dropout rate after each layer.
        norm: norm over the hidden width, before the last layer.
        bias: whether the layers have biases.

    Source: arXiv:2010.11929, section 3.1; initialised as `vit_jax/models_vit.py`.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        hidden_dim: int,
        activation: nn.Module,
        dropout: float = 0.0,
        norm: nn.Module | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.fc1 = layer(nn.Linear, embed_dim, hidden_dim, bias=bias)
        self.act = activation
        self.drop = nn.Dropout(dropout)
        self.norm = norm or nn.Identity()
        self.fc2 = layer(nn.Linear, hidden_dim, embed_dim, bias=bias)
        xavier_uniform_(self.fc1, bias_std=1e-6)
        xavier_uniform_(self.fc2, bias_std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.act(self.fc1(x)))  # (b, n, hidden)
        return self.drop(self.fc2(self.norm(x)))  # (b, n, d)


class SwiGLU(nn.Module):
    """MLP with a gate: `silu(fc1_g(x)) * fc1_x(x)`, dropout, Linear, dropout.

    Shapes: (b, n, d) to (b, n, d).

    Args:
        embed_dim: width d.
        hidden_dim: width of the gate, and of the values that it multiplies.
        dropout: dropout rate after the gate and after the last layer.
        norm: norm over the hidden width, before the last layer.
        bias: whether the layers have biases.

    Source: arXiv:2002.05202, equation 6; layers named as in EVA-02 and `timm.layers.SwiGLU`.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        hidden_dim: int,
        dropout: float = 0.0,
        norm: nn.Module | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.fc1_g = layer(nn.Linear, embed_dim, hidden_dim, bias=bias)
        self.fc1_x = layer(nn.Linear, embed_dim, hidden_dim, bias=bias)
        self.drop = nn.Dropout(dropout)
        self.norm = norm or nn.Identity()
        self.fc2 = layer(nn.Linear, hidden_dim, embed_dim, bias=bias)
        for linear in (self.fc1_g, self.fc1_x, self.fc2):
            xavier_uniform_(linear, bias_std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(F.silu(self.fc1_g(x)) * self.fc1_x(x))  # (b, n, hidden)
        return self.drop(self.fc2(self.norm(x)))  # (b, n, d)


class PackedSwiGLU(nn.Module):
    """`SwiGLU` whose gate and values come from one matrix, the rows of the gate first.

    Shapes, Args: as `SwiGLU`.

    Source: arXiv:2002.05202, equation 6; the `w12` layer of DINOv2, timm's `SwiGLUPacked`.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        hidden_dim: int,
        dropout: float = 0.0,
        norm: nn.Module | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.fc1 = layer(nn.Linear, embed_dim, 2 * hidden_dim, bias=bias)
        self.drop = nn.Dropout(dropout)
        self.norm = norm or nn.Identity()
        self.fc2 = layer(nn.Linear, hidden_dim, embed_dim, bias=bias)
        xavier_uniform_(self.fc1, bias_std=1e-6, fused=2)
        xavier_uniform_(self.fc2, bias_std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)  # (b, n, hidden) each
        return self.drop(self.fc2(self.norm(self.drop(F.silu(gate) * value))))  # (b, n, d)
