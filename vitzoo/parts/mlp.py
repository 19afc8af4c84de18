"""The MLP of an encoder block and its activations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitzoo.parts.init import xavier_uniform_


class QuickGELU(nn.Module):
    """GELU approximated by `x * sigmoid(1.702 x)`, as in OpenAI's CLIP.

    Source: arXiv:1606.08415, section 2.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to every element."""
        return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "quick_gelu": QuickGELU,
}


class Mlp(nn.Module):
    """Linear, activation, dropout, Linear, dropout, on every token by itself.

    Shapes: (b, n, d) to (b, n, d).

    Args:
        embed_dim: d.
        hidden_dim: width between the two layers.
        activation: module between them.
        dropout: rate after each layer.

    Source: arXiv:2010.11929, section 3.1; initialised as `vit_jax/models_vit.py`.
    """

    def __init__(
        self, *, embed_dim: int, hidden_dim: int, activation: nn.Module, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.act = activation
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden_dim, embed_dim)
        xavier_uniform_(self.fc1, bias_std=1e-6)
        xavier_uniform_(self.fc2, bias_std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token of (b, n, d)."""
        x = self.drop(self.act(self.fc1(x)))  # (b, n, hidden)
        return self.drop(self.fc2(x))  # (b, n, d)
