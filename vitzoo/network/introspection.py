"""Results inside a network: `features`, attention maps, and the intermediate results of timm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from vitzoo.errors import InvalidOption, UnknownOption, did_you_mean
from vitzoo.network.inputs import check_images
from vitzoo.network.sizes import Sizes, for_any_size
from vitzoo.parts.block import unmerged


class Introspection(Sizes):
    """Results of single layers. All methods run the loop of `vitzoo.parts.block.Blocks`."""

    embed: Callable[[Tensor], Tensor]
    _pos_embed: Callable[[Tensor], Tensor]
    _encode: Callable[[Any, int], Any]

    @for_any_size
    def features(self, images: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
        """Return intermediate results by name; nothing is computed after the last of them.

        Args:
            images: (b, c, h, w).
            names: some of `patch_embed` (b, n, d); `embed`, `blocks.0`, `blocks.1`, ... and `norm`
                (b, p + n, d); `pool` (b, d), or the shape that the head reads; `pre_logits` (b, d);
                `logits` (b, k).

        Raises:
            UnknownOption: there is no result of this name.
        """
        names = (names,) if isinstance(names, str) else names
        known = self.feature_names()
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
                raise UnknownOption(f"unknown feature {name!r}{hint}")
        found: dict[str, Tensor] = {}
        results = self._results(images, names)
        while not found.keys() >= set(names):
            name, result = next(results)
            if name in names:
                found[name] = result
        return {name: found[name] for name in names}

    def _results(self, images: Tensor, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield results by name, those of blocks only if they are among the `names`."""
        check_images(images, self.patch_embed.in_chans, self.image_size, dynamic=self.dynamic)
        x = self._patches(images)
        yield "patch_embed", x
        x = self.norm_pre(self._pos_embed(x))
        yield "embed", x
        wanted = [i for i in range(len(self.blocks)) if f"blocks.{i}" in names]
        early = {"patch_embed", "embed", *(f"blocks.{i}" for i in wanted)}.issuperset(names)
        x, found = self._through_blocks(x, wanted, stop_early=early)
        for layer, tokens in found.items():
            yield f"blocks.{layer}", tokens
        x = self._normed(x)
        yield "norm", x
        x = self._pooled(x)
        yield "pool", x
        yield "pre_logits", self._logits(x, pre_logits=True)
        yield "logits", self._logits(x)

    def _through_blocks(
        self, x: Tensor, wanted: Sequence[int], stop_early: bool
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the tokens after the blocks, or the last `wanted` one, and after `wanted` ones."""
        found: dict[int, Tensor] = {}

        def run(x: Any, layer: int) -> Any:
            x = self._encode(x, layer)
            if layer in wanted:
                found[layer] = unmerged(x)
            return x

        return self.blocks(x, run=run, count=max(wanted) + 1 if stop_early else None), found

    def feature_names(self) -> list[str]:
        """Return the names that `features` accepts, in the order of computation."""
        blocks = [f"blocks.{i}" for i in range(len(self.blocks))]
        return ["patch_embed", "embed", *blocks, "norm", "pool", "pre_logits", "logits"]

    @for_any_size
    def attention_maps(
        self, images: Tensor, layers: int | Sequence[int] | None = None
    ) -> dict[int, Tensor]:
        """Return the attention probabilities of blocks, each (b, heads, p + n, p + n), by index.

        Fused attention does not return them, so they are computed again from queries and keys. In
        windows, they are zero outside the window, and what falls on its filling is left out.

        Args:
            images: (b, c, h, w).
            layers: indices of blocks, negative from the end; an int n: the last n; None: all.
        """
        wanted = self.block_indices(layers)
        maps: dict[int, Tensor] = {}
        blocks: list[Any] = list(self.blocks)

        def run(x: Any, layer: int) -> Any:
            if layer in wanted:
                entering = unmerged(self._positioned(x, layer) if layer else x)
                given = (entering, *self._acts(layer))
                maps[layer] = blocks[layer].attention_probabilities(*given, **self._windows(layer))
            return self._encode(x, layer)

        self.blocks(self.embed(images), run=run, count=max(wanted) + 1)
        return maps

    def block_indices(self, which: int | Sequence[int] | None) -> list[int]:
        """Return indices of blocks, each at least 0.

        Args:
            which: indices of blocks, negative from the end; an int n: the last n; None: all.

        Raises:
            InvalidOption: there is no such block.
        """
        depth = len(self.blocks)
        if which is None:
            return list(range(depth))
        if isinstance(which, int):
            wanted = list(range(depth - which, depth))
        else:
            whole = all(isinstance(i, int) for i in which)
            wanted = [i + depth if i < 0 else i for i in which] if whole else []
        if not wanted or min(wanted) < 0 or max(wanted) >= depth:
            raise InvalidOption(
                f"the model has blocks 0 to {depth - 1}: pass a list of their indices, or a number "
                f"of last blocks from 1 to {depth}; got {which!r}"
            )
        return wanted

    @for_any_size
    def forward_intermediates(
        self,
        images: Tensor,
        indices: int | Sequence[int] | None = None,
        *,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Return the final tokens and the results of some blocks, as timm does.

        Args:
            images: (b, c, h, w).
            indices: indices of blocks, negative from the end; an int n: the last n; None: all.
            return_prefix_tokens: return each result as a pair (patch tokens, prefix tokens).
            norm: apply the final norm to each result.
            stop_early: skip the blocks after the last index.
            output_fmt: `NCHW` for (b, d, h, w) maps of the grid, `NLC` for (b, n, d) tokens.
            intermediates_only: return only the list of results.

        Returns:
            `(tokens, results)`; the tokens are (b, p + n, d) after the final norm.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise InvalidOption(f"output_fmt must be NCHW or NLC, got {output_fmt!r}")
        wanted = self.block_indices(indices)
        x, found = self._through_blocks(self.embed(images), wanted, stop_early)
        results = [
            self._split(self._normed(tokens) if norm else tokens, output_fmt, return_prefix_tokens)
            for tokens in found.values()
        ]
        return results if intermediates_only else (self._normed(x), results)

    def _split(self, tokens: Tensor, fmt: str, with_prefix: bool) -> Any:
        prefix, patches = tokens.tensor_split((self.num_prefix_tokens,), dim=1)
        if fmt == "NCHW":
            patches = patches.transpose(1, 2).reshape(patches.shape[0], -1, *self.grid_size)
        return (patches, prefix) if with_prefix else patches

    def get_intermediate_layers(
        self,
        images: Tensor,
        n: int | Sequence[int] = 1,
        reshape: bool = False,
        return_prefix_tokens: bool = False,
        norm: bool = False,
    ) -> list[Any]:
        """Return the results of blocks, as DINO's code does; see `forward_intermediates`.

        Args:
            images: (b, c, h, w).
            n: number of last blocks, or indices of blocks.
            reshape: return (b, d, h, w) maps instead of (b, n, d) tokens.
            return_prefix_tokens, norm: as in `forward_intermediates`.
        """
        return self.forward_intermediates(
            images,
            n,
            return_prefix_tokens=return_prefix_tokens,
            norm=norm,
            output_fmt="NCHW" if reshape else "NLC",
            intermediates_only=True,
        )
