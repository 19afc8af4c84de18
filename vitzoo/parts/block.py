"""Encoder blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts.attention import Attention, Bias, Rotate

NORMS: dict[str, type[nn.Module]] = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}


class LayerScale(nn.Module):
    """Multiplies each channel of (b, n, d) tokens by a learned factor.

    Args:
        embed_dim: width d.
        initial: initial value of all factors, usually small.

    Source: arXiv:2103.17239, section 3.
    """

    def __init__(self, *, embed_dim: int, initial: float) -> None:
        super().__init__()
        if not 0 < initial < float("inf"):
            raise InvalidOption(f"layer_scale must be positive, got {initial!r}")
        self.gamma = nn.Parameter(torch.full((embed_dim,), float(initial)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """Encoder block: `x + attn(norm1(x))`, then `x + mlp(norm2(x))`.

    Shapes: (b, n, d) to (b, n, d).

    Args:
        norm1, attn: the first branch.
        norm2, mlp: the second branch.
        drop_path: adds a branch to the residual and may drop it in training.
        ls1, ls2: scale the two branches, such as `LayerScale`.
        post_norm: whether the norms act on the outputs of attention and MLP, not on their inputs.

    Source: arXiv:2010.11929, equations 2 and 3; `post_norm`: arXiv:2111.09883, section 3.2,
    compared with timm's `ResPostBlock`.
    """

    def __init__(
        self,
        *,
        norm1: nn.Module,
        attn: Attention,
        norm2: nn.Module,
        mlp: nn.Module,
        drop_path: nn.Module,
        ls1: nn.Module | None = None,
        ls2: nn.Module | None = None,
        post_norm: bool = False,
    ) -> None:
        super().__init__()
        self.post_norm = post_norm
        self.norm1 = norm1
        self.attn = attn
        self.ls1 = ls1 or nn.Identity()
        self.norm2 = norm2
        self.mlp = mlp
        self.ls2 = ls2 or nn.Identity()
        self.drop_path = drop_path

    def forward(
        self, x: Tensor, rotate: Rotate = None, bias: Bias = None, tokens: int | None = None
    ) -> Tensor:
        """Encode (b, n, d) tokens; in evaluation, only the first `tokens` of them, all if None.

        `rotate` and `bias` are the positions for the attention.
        """
        if tokens is not None:
            x = x[:, :tokens] + self._attend(x, rotate, bias, tokens)
            return x + self._transform(x)
        x = self.drop_path(x, partial(self._attend, rotate=rotate, bias=bias))
        x = self.drop_path(x, self._transform)
        return x

    def attention_probabilities(
        self, x: Tensor, rotate: Rotate = None, bias: Bias = None
    ) -> Tensor:
        """Return the attention probabilities, (b, heads, n, n), for (b, n, d) tokens."""
        return self.attn.probabilities(x if self.post_norm else self.norm1(x), rotate, bias)

    def _attend(self, x: Tensor, rotate: Rotate, bias: Bias, tokens: int | None = None) -> Tensor:
        if self.post_norm:
            return self.ls1(self.norm1(self.attn(x, rotate, bias, tokens)))
        return self.ls1(self.attn(self.norm1(x), rotate, bias, tokens))

    def _transform(self, x: Tensor) -> Tensor:
        return self.ls2(self.norm2(self.mlp(x)) if self.post_norm else self.mlp(self.norm2(x)))


class ParallelBlock(nn.Module):
    """Encoder block that adds attention and MLP of the same normalised tokens to one residual.

    Shapes: (b, n, d) to (b, n, d).

    Args:
        norm: acts before attention and MLP.
        attn, mlp: their sum is the branch.
        drop_path: adds the branch to the residual and may drop it in training.
        ls: scales the branch, such as `LayerScale`.

    Source: arXiv:2302.05442, section 2 (ViT-22B); compared with timm's `ParallelScalingBlock`,
    which fuses the first layers of attention and MLP into one matrix.
    """

    def __init__(
        self,
        *,
        norm: nn.Module,
        attn: Attention,
        mlp: nn.Module,
        drop_path: nn.Module,
        ls: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.norm = norm
        self.attn = attn
        self.mlp = mlp
        self.ls = ls or nn.Identity()
        self.drop_path = drop_path

    def forward(
        self, x: Tensor, rotate: Rotate = None, bias: Bias = None, tokens: int | None = None
    ) -> Tensor:
        if tokens is not None:
            return x[:, :tokens] + self._branch(x, rotate, bias, tokens)
        return self.drop_path(x, partial(self._branch, rotate=rotate, bias=bias))

    def attention_probabilities(
        self, x: Tensor, rotate: Rotate = None, bias: Bias = None
    ) -> Tensor:
        """Return the attention probabilities, (b, heads, n, n), for (b, n, d) tokens."""
        return self.attn.probabilities(self.norm(x), rotate, bias)

    def _branch(self, x: Tensor, rotate: Rotate, bias: Bias, tokens: int | None = None) -> Tensor:
        x = self.norm(x)
        return self.ls(self.attn(x, rotate, bias, tokens) + self.mlp(x[:, :tokens]))


class Blocks(nn.Sequential):
    """The encoder blocks, one after the other.

    Shapes: (b, n, d) to (b, n, d).
    """

    def forward(self, x: Tensor, encode: Callable[[Tensor, int], Tensor] | None = None) -> Tensor:
        """Encode (b, n, d) tokens; `encode(x, layer)` calls a block with its positions."""
        for layer, block in enumerate(self):
            x = block(x) if encode is None else encode(x, layer)
        return x
