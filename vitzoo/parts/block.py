"""Encoder blocks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts.attention import Attention, Bias, Rotate


class LayerScale(nn.Module):
    """Multiplies each channel by a learned factor, small at the start.

    Shapes: (b, n, d) to (b, n, d).

    Args:
        embed_dim: d.
        initial: the factors to start from.

    Source: arXiv:2103.17239, section 3.
    """

    def __init__(self, *, embed_dim: int, initial: float) -> None:
        super().__init__()
        if not 0 < initial < float("inf"):
            raise InvalidOption(f"layer_scale must be positive, got {initial!r}")
        self.gamma = nn.Parameter(torch.full((embed_dim,), float(initial)))

    def forward(self, x: Tensor) -> Tensor:
        """Scale (b, n, d)."""
        return x * self.gamma


class Block(nn.Module):
    """Encoder block: attention, then MLP, each on a residual, with a norm before it.

    Shapes: (b, n, d) to (b, n, d).

    Args:
        norm1, attn: first branch, a norm and an attention over (b, n, d).
        norm2, mlp: second branch.
        drop_path: adds a branch to the residual and may drop it in training.
        ls1, ls2: scale the branches, `LayerScale` or nothing.
        post_norm: whether the norms act after attention and MLP, on what they give.

    Source: arXiv:2010.11929, equations 2 and 3; norms after the branches as in arXiv:2111.09883,
    section 3.2, numbers checked against timm's `ResPostBlock`.
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
        self,
        x: Tensor,
        rotate: Rotate | None = None,
        bias: Bias | None = None,
        tokens: int | None = None,
    ) -> Tensor:
        """Encode (b, n, d) tokens.

        Args:
            x: tokens.
            rotate, bias: of the attention.
            tokens: in evaluation, how many of the first tokens to compute, all if None.
        """
        if tokens is not None:
            x = x[:, :tokens] + self._attend(x, rotate, bias, tokens)
            return x + self._transform(x)
        x = self.drop_path(x, partial(self._attend, rotate=rotate, bias=bias))
        x = self.drop_path(x, self._transform)
        return x

    def attention_probabilities(
        self, x: Tensor, rotate: Rotate | None = None, bias: Bias | None = None
    ) -> Tensor:
        """Return how much each token entering the block attends to each: (b, heads, n, n)."""
        return self.attn.probabilities(x if self.post_norm else self.norm1(x), rotate, bias)

    def _attend(
        self, x: Tensor, rotate: Rotate | None, bias: Bias | None, tokens: int | None = None
    ) -> Tensor:
        if self.post_norm:
            return self.ls1(self.norm1(self.attn(x, rotate, bias, tokens)))
        return self.ls1(self.attn(self.norm1(x), rotate, bias, tokens))

    def _transform(self, x: Tensor) -> Tensor:
        x = self.norm2(self.mlp(x)) if self.post_norm else self.mlp(self.norm2(x))
        return self.ls2(x)


class ParallelBlock(nn.Module):
    """Encoder block whose attention and MLP read the same normalised tokens, on one residual.

    Shapes: (b, n, d) to (b, n, d).

    Args:
        norm: before both.
        attn, mlp: over (b, n, d); their sum is the branch.
        drop_path: adds the branch to the residual and may drop it in training.
        ls: scales the branch, `LayerScale` or nothing.

    Source: arXiv:2302.05442, section 2 (ViT-22B); numbers checked against timm's
    `ParallelScalingBlock`, which fuses the first layers of both into one matrix.
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
        self,
        x: Tensor,
        rotate: Rotate | None = None,
        bias: Bias | None = None,
        tokens: int | None = None,
    ) -> Tensor:
        """Encode (b, n, d) tokens; arguments as of `Block`."""
        if tokens is not None:
            return x[:, :tokens] + self._branch(x, rotate, bias, tokens)
        return self.drop_path(x, partial(self._branch, rotate=rotate, bias=bias))

    def attention_probabilities(
        self, x: Tensor, rotate: Rotate | None = None, bias: Bias | None = None
    ) -> Tensor:
        """Return how much each token entering the block attends to each: (b, heads, n, n)."""
        return self.attn.probabilities(self.norm(x), rotate, bias)

    def _branch(
        self, x: Tensor, rotate: Rotate | None, bias: Bias | None, tokens: int | None = None
    ) -> Tensor:
        x = self.norm(x)
        return self.ls(self.attn(x, rotate, bias, tokens) + self.mlp(x[:, :tokens]))
