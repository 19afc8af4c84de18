"""Encoder blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitzoo.errors import InvalidOption
from vitzoo.parts.attention import Attention, Bias, Rotate
from vitzoo.parts.packed import Packed
from vitzoo.parts.windows import Windows

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
        window: patches per side of the windows of the attention; 0: all tokens attend to all. The
            network passes the `windows` of its grid to a block with windows.

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
        window: int = 0,
    ) -> None:
        super().__init__()
        self.post_norm = post_norm
        self.window = window
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
        rotate: Rotate = None,
        bias: Bias = None,
        tokens: int | None = None,
        windows: Windows | Packed | None = None,
    ) -> Tensor:
        """Encode (b, n, d) tokens, or only the first `tokens` of them.

        `rotate` and `bias` are the positions for the attention, which is limited to `windows`.
        """
        attend = partial(self._attend, given=_given(rotate, bias, tokens, windows))
        if isinstance(windows, Packed):
            x = windows.add(self.drop_path, x, attend)
            return windows.add(self.drop_path, x, self._transform)
        x = self.drop_path(x, attend, tokens)
        x = self.drop_path(x, self._transform)
        return x

    def attention_probabilities(
        self,
        x: Tensor,
        rotate: Rotate = None,
        bias: Bias = None,
        windows: Windows | None = None,
    ) -> Tensor:
        """Return the attention probabilities, (b, heads, n, n), for (b, n, d) tokens."""
        x = x if self.post_norm else self.norm1(x)
        return self.attn.probabilities(x, rotate, bias, windows)

    def _attend(self, x: Tensor, given: tuple[Any, ...]) -> Tensor:
        if self.post_norm:
            return self.ls1(self.norm1(self.attn(x, *given)))
        return self.ls1(self.attn(self.norm1(x), *given))

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
        window: as in `Block`.

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
        window: int = 0,
    ) -> None:
        super().__init__()
        self.window = window
        self.norm = norm
        self.attn = attn
        self.mlp = mlp
        self.ls = ls or nn.Identity()
        self.drop_path = drop_path

    def forward(
        self,
        x: Tensor,
        rotate: Rotate = None,
        bias: Bias = None,
        tokens: int | None = None,
        windows: Windows | Packed | None = None,
    ) -> Tensor:
        branch = partial(self._branch, tokens, _given(rotate, bias, tokens, windows))
        if isinstance(windows, Packed):
            return windows.add(self.drop_path, x, branch)
        return self.drop_path(x, branch, tokens)

    def attention_probabilities(
        self,
        x: Tensor,
        rotate: Rotate = None,
        bias: Bias = None,
        windows: Windows | None = None,
    ) -> Tensor:
        """Return the attention probabilities, (b, heads, n, n), for (b, n, d) tokens."""
        return self.attn.probabilities(self.norm(x), rotate, bias, windows)

    def _branch(self, tokens: int | None, given: tuple[Any, ...], x: Tensor) -> Tensor:
        x = self.norm(x)
        return self.ls(self.attn(x, *given) + self.mlp(x[:, :tokens]))


def _given(
    rotate: Rotate, bias: Bias, tokens: int | None, windows: Windows | Packed | None
) -> tuple[Any, ...]:
    """Return the arguments of the attention after its tokens; a user's may know no windows."""
    return (rotate, bias, tokens, *(() if windows is None else (windows,)))


class Merged(NamedTuple):
    """Tokens of which some were merged: p prefix tokens, then m of the n patch tokens.

    Args:
        tokens: (b, p + m, d).
        sizes: (b, p + m), how many of the original tokens each token is the mean of.
        source: (b, p + n), for each original token the index of the token that it is part of.
    """

    tokens: Tensor
    sizes: Tensor
    source: Tensor


def unmerged(x: Tensor | Merged) -> Tensor:
    """Return (b, p + n, d) tokens: each original token gets the token that it is part of."""
    return _rows(x.tokens, x.source) if isinstance(x, Merged) else x


class TokenMerging(nn.Module):
    """Merges the most similar pairs of patch tokens. Prefix tokens are never merged.

    The patch tokens are divided into two sets in turns. Each token of the first set has an edge to
    the most similar token of the second set: the largest cosine between their attention keys, which
    are averaged over the heads. The `count` tokens with the most similar partners are merged into
    them. A merged token is the mean of its original tokens. Of equal edges, the first ones count.

    Shapes: (b, p + n, d) tokens to (b, p + n - r, d), r = min(count, n // 2).

    Args:
        count: number of tokens that are merged into others.
        num_prefix_tokens: number p of prefix tokens.

    Raises:
        InvalidOption: `count` is no whole number of at least 1.

    Source: "Token Merging: Your ViT But Faster", arXiv:2210.09461, section 3.
    """

    def __init__(self, *, count: int, num_prefix_tokens: int) -> None:
        super().__init__()
        if type(count) is not int or count < 1:
            raise InvalidOption(
                f"merge must be a whole number of tokens, at least 1, got {count!r}"
            )
        self.count = count
        self.num_prefix_tokens = num_prefix_tokens

    def forward(self, x: Tensor | Merged, keys: Tensor) -> Tensor | Merged:
        """Merge tokens by their keys (b, heads, p + n, head_dim); return x if n is below 2."""
        tokens = x.tokens if isinstance(x, Merged) else x
        b, length, _ = tokens.shape
        p = self.num_prefix_tokens
        second = (length - p) // 2  # size of the second set
        r = min(self.count, second)
        if r <= 0:
            return x
        stay, moved, into = self._matched(keys[:, :, p:].detach(), r)  # indices within their sets
        every = torch.arange(length, device=tokens.device).expand(b, -1)
        moved, target = p + 2 * moved, p + 2 * into + 1  # (b, r) indices of tokens
        kept = torch.cat((every[:, :p], p + 2 * stay, every[:, p + 1 :: 2]), dim=1)

        sizes = x.sizes if isinstance(x, Merged) else torch.ones_like(every)
        weights = sizes.gather(1, moved)
        sizes = sizes.scatter_add(1, target, weights)
        shares = (weights / sizes.gather(1, target)).to(tokens.dtype)  # (b, r): of moved in merged
        edges = shares.new_zeros(b, second, r).scatter(1, into[:, None], shares[:, None])
        change = _rows(tokens, moved) - _rows(tokens, target)  # (b, r, d)
        merged = _rows(tokens, kept)  # (b, p + n - r, d)
        merged[:, -second:] += edges @ change

        place = every.scatter(1, kept, every[:, : length - r])
        place = place.scatter(1, moved, length - r - second + into)
        source = place.gather(1, x.source) if isinstance(x, Merged) else place
        return Merged(merged, sizes.gather(1, kept), source)

    @staticmethod
    def _matched(keys: Tensor, r: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return which tokens of the first set stay, which r are moved, and into which others."""
        keys = F.normalize(keys.mean(dim=1, dtype=torch.float32), dim=-1)  # (b, n, head_dim)
        similarity, partner = (keys[:, ::2] @ keys[:, 1::2].transpose(1, 2)).max(dim=-1)
        one, other = similarity[:, :, None], similarity[:, None]
        first = torch.ones_like(one == other).tril(-1)  # of two tokens, the other is the first
        rank = ((other > one) | ((other == one) & first)).sum(dim=-1)  # ONNX has no stable sort
        order = rank.argsort(dim=-1)
        moved = order[:, :r]
        return order[:, r:].sort(dim=-1).values, moved, partner.gather(1, moved)

    def extra_repr(self) -> str:
        return f"count={self.count}"


class MergingBlock(Block):
    """Encoder block that merges similar tokens between attention and MLP.

    In the attention, the logits of a token of s original tokens are increased by log(s).

    Shapes: (b, p + n, d) tokens to `Merged`, which the next block reads.

    Args:
        merge: merges the tokens by the keys of the attention.
        options: arguments of `Block`. `drop_path` computes the branches of all samples.

    Source: arXiv:2210.09461, section 3.
    """

    def __init__(self, *, merge: TokenMerging, **options: Any) -> None:
        super().__init__(**options)
        self.merge = merge

    def forward(  # type: ignore[override]  # tokens that were merged have sizes, too
        self,
        x: Tensor | Merged,
        rotate: Rotate = None,
        bias: Bias = None,
        tokens: int | None = None,
        windows: None = None,
    ) -> Tensor | Merged:
        """Encode and merge tokens; given `tokens`, the first of them are only encoded.

        Raises:
            InvalidOption: positions act in the attention, and a merged token has no position.
        """
        if rotate is not None or bias is not None:
            raise InvalidOption(
                "merged tokens have no position, and the positions rotate queries and keys or give "
                "an attention bias; use positions that are added before the first block, or merge=0"
            )
        before, sizes = (x.tokens, x.sizes) if isinstance(x, Merged) else (x, None)
        log_sizes = None if sizes is None else sizes.log()[:, None, None]  # (b, 1, 1, p + n)
        added: Bias = None if log_sizes is None else lambda _: log_sizes
        if tokens is not None:
            return super().forward(before, None, added, tokens)
        merged = self._attend_and_merge(x, before, added)
        if not isinstance(merged, Merged):
            return self.drop_path(merged, self._transform)
        return merged._replace(tokens=self.drop_path(merged.tokens, self._transform))

    def _attend_and_merge(self, x: Tensor | Merged, before: Tensor, bias: Bias) -> Tensor | Merged:
        """Return the tokens that the MLP reads; no other result keeps its memory during the MLP."""
        normed = before if self.post_norm else self.norm1(before)
        added, keys = self.attn(normed, None, bias, with_keys=True)
        branch = self.ls1(self.norm1(added) if self.post_norm else added)
        after = self.drop_path(before, lambda _: branch)
        return self.merge(x._replace(tokens=after) if isinstance(x, Merged) else after, keys)


class Blocks(nn.Sequential):
    """The encoder blocks, one after the other.

    Shapes: (b, n, d) to (b, n, d).
    """

    def forward(
        self, x: Any, run: Callable[[Any, int], Any] | None = None, count: int | None = None
    ) -> Tensor:
        """Encode (b, n, d) tokens.

        Args:
            x: the tokens.
            run: calls a block, given by its index, with its positions.
            count: number of first blocks that are run; all if None.
        """
        for layer, block in enumerate(islice(self, count)):
            x = block(x) if run is None else run(x, layer)  # no name keeps the first tokens
        return unmerged(x)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Return the tokens (b, m, d) of x (b, n, d) at the indices (b, m)."""
    first = x.shape[1] * torch.arange(x.shape[0], device=x.device)[:, None]
    found = x.flatten(0, 1).index_select(0, (first + index).flatten())
    return found.reshape(*index.shape, x.shape[2])
