"""Pools reduce the tokens of an image to one vector, or to several.

The first p tokens are prefix tokens (class token, then registers); n patch tokens follow.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.keywords import check_choice
from vitzoo.parts.init import normal_, xavier_uniform_
from vitzoo.parts.mlp import ACTIVATIONS, Mlp

Size = tuple[int, int]


class ClassPool(nn.Module):
    """Returns the class token.

    Shapes: (b, p + n, d) to (b, d).

    Args:
        class_token: whether the network has a class token; False raises InvalidOption.

    Source: arXiv:2010.11929, equation 4.
    """

    norm_first = True
    reads = 1

    def __init__(self, *, class_token: bool = True) -> None:
        super().__init__()
        check_class_token("class", class_token)

    def forward(self, tokens: Tensor, num_prefix_tokens: int, grid_size: Size) -> Tensor:
        return tokens[:, 0]


class ClassMeanPool(nn.Module):
    """Returns the class token and the average of the patch tokens.

    Shapes: (b, p + n, d) to (b, 2, d). Args: as in `ClassPool`.

    Source: the linear evaluation of DINOv2, arXiv:2304.07193, appendix B.3.
    """

    norm_first = True
    tokens = 2

    def __init__(self, *, class_token: bool = True) -> None:
        super().__init__()
        check_class_token("class_mean", class_token)

    def forward(self, tokens: Tensor, num_prefix_tokens: int, grid_size: Size) -> Tensor:
        mean = tokens[:, num_prefix_tokens:].mean(dim=1)
        return torch.stack((tokens[:, 0], mean), dim=1)


class MeanPool(nn.Module):
    """Returns the average of the patch tokens, without prefix tokens.

    Shapes: (b, p + n, d) to (b, d).

    Args:
        norm_first: whether the final norm acts on the tokens, as in Google's `gap` models, or on
            the average, as timm's `fc_norm`.

    Source: arXiv:2106.04560, section 3.2.
    """

    def __init__(self, *, norm_first: bool = True) -> None:
        super().__init__()
        if not isinstance(norm_first, bool):
            raise InvalidOption(f"norm_first must be true or false, got {norm_first!r}")
        self.norm_first = norm_first

    def forward(self, tokens: Tensor, num_prefix_tokens: int, grid_size: Size) -> Tensor:
        return tokens[:, num_prefix_tokens:].mean(dim=1)


class PrefixPool(nn.Module):
    """Returns the first tokens, for heads that read several tokens.

    Shapes: (b, p + n, d) to (b, t, d).

    Args:
        num_prefix_tokens: number p of prefix tokens.
        tokens: t, from 1 to p; p if None.

    Source: the class and the distillation token of DeiT, arXiv:2012.12877, section 4.
    """

    norm_first = True

    def __init__(self, *, num_prefix_tokens: int, tokens: int | None = None) -> None:
        super().__init__()
        count = num_prefix_tokens if tokens is None else tokens
        if type(count) is not int or not 1 <= count <= num_prefix_tokens:
            raise InvalidOption(
                f"pool 'prefix' takes 1 to {num_prefix_tokens} tokens, as many as there are prefix "
                f"tokens (class_token, num_registers); got tokens={count!r}"
            )
        self.tokens = self.reads = count

    def forward(self, tokens: Tensor, num_prefix_tokens: int, grid_size: Size) -> Tensor:
        return tokens[:, : self.tokens]


class AttentionPool(nn.Module):
    """Lets one learned query attend to the patch tokens, then adds an MLP of the result.

    Shapes: (b, p + n, d) to (b, d).

    Args:
        embed_dim: width d.
        num_heads: number of attention heads.
        mlp_dim: hidden width of the MLP.
        norm_eps: epsilon of the norm before the MLP.
        activation: activation of the MLP, a name of `ACTIVATIONS`.
        prefix: whether the query attends to prefix tokens, too.

    Source: the MAP head of arXiv:2106.04560, section 3.2; compared with timm's
    `AttentionPoolLatent`.
    """

    norm_first = True

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        norm_eps: float = 1e-6,
        activation: str = "gelu",
        prefix: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(prefix, bool):
            raise InvalidOption(f"prefix must be true or false, got {prefix!r}")
        if type(num_heads) is not int or num_heads < 1 or embed_dim % num_heads:
            raise InvalidOption(
                f"num_heads of the pool must divide embed_dim {embed_dim}, got {num_heads!r}"
            )
        check_choice("activation", activation, ACTIVATIONS)
        if type(norm_eps) is not float or not 0 < norm_eps < 1:
            raise InvalidOption(f"norm_eps must lie between 0 and 1, got {norm_eps!r}")
        self.prefix = prefix
        self.num_heads = num_heads
        self.latent = nn.Parameter(torch.empty(1, 1, embed_dim))
        self.q = nn.Linear(embed_dim, embed_dim)
        self.kv = nn.Linear(embed_dim, 2 * embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim)
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps)
        act = ACTIVATIONS[activation]()
        self.mlp = Mlp(embed_dim=embed_dim, hidden_dim=mlp_dim, activation=act)
        normal_(self.latent, std=embed_dim**-0.5)
        for layer, fused in ((self.q, 1), (self.kv, 2), (self.proj, 1)):
            xavier_uniform_(layer, fused=fused)

    def forward(self, tokens: Tensor, num_prefix_tokens: int, grid_size: Size) -> Tensor:
        read = tokens if self.prefix else tokens[:, num_prefix_tokens:]
        q = self._heads(self.q(self.latent.expand(tokens.shape[0], -1, -1)))
        kv = self.kv(read)  # (b, n, 2 d)
        k, v = kv.chunk(2, dim=-1)
        k, v = self._heads(k), self._heads(v)  # (b, heads, n, d / heads) each
        x = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # (b, 1, d)
        x = self.proj(x)
        return (x + self.mlp(self.norm(x)))[:, 0]

    def _heads(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        return x.reshape(b, n, self.num_heads, d // self.num_heads).transpose(1, 2)


def check_class_token(name: str, class_token: bool) -> None:
    """Raise InvalidOption, with the name of the pool, if the network has no class token."""
    if not class_token:
        raise InvalidOption(
            f"pool {name!r} needs a class token and class_token is false; use pool='mean'"
        )
