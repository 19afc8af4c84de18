"""The encoder block."""

from __future__ import annotations

from torch import Tensor, nn

from vitzoo.parts.attention import Attention


class Block(nn.Module):
    """Pre-norm encoder block: attention, then MLP, each on a residual.

    Shapes: (b, n, d) to (b, n, d).

    Args:
        norm1, attn: first branch, a norm and an attention over (b, n, d).
        norm2, mlp: second branch.
        drop_path: adds a branch to the residual and may drop it in training.

    Source: arXiv:2010.11929, equations 2 and 3.
    """

    def __init__(
        self,
        *,
        norm1: nn.Module,
        attn: Attention,
        norm2: nn.Module,
        mlp: nn.Module,
        drop_path: nn.Module,
    ) -> None:
        super().__init__()
        self.norm1 = norm1
        self.attn = attn
        self.norm2 = norm2
        self.mlp = mlp
        self.drop_path = drop_path

    def forward(self, x: Tensor) -> Tensor:
        """Encode (b, n, d) tokens."""
        x = self.drop_path(x, self._attend)
        x = self.drop_path(x, self._transform)
        return x

    def attention_probabilities(self, x: Tensor) -> Tensor:
        """Return how much each token entering the block attends to each: (b, heads, n, n)."""
        return self.attn.probabilities(self.norm1(x))

    def _attend(self, x: Tensor) -> Tensor:
        return self.attn(self.norm1(x))

    def _transform(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm2(x))
