"""How a network calls its parts: patch embedder, positions, pool and head.

Results of parts in `checked_parts` are checked, but not while a tool records the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.fx import Proxy

from vitzoo.errors import InvalidInput
from vitzoo.network.inputs import misplaced
from vitzoo.parts.block import Merged
from vitzoo.parts.protocols import BIAS, TENSOR, call
from vitzoo.parts.windows import Windows
from vitzoo.schema.spec import PartSpec

if TYPE_CHECKING:
    from vitzoo.parts.attention import Bias, Rotate
    from vitzoo.parts.protocols import Expected, PatchEmbedder, Pool, PositionEmbedding
    from vitzoo.schema.preprocessing import StatedPreprocessing
    from vitzoo.schema.spec import Spec

Size = tuple[int, int]


class Place(NamedTuple):
    """What depends on the size of the images: a network computes with that of its thread.

    Args:
        image_size: (height, width) in px.
        grid_size: (h, w) in patches.
        table: `pos_embed` for this grid, if it is not the network's own.
        positions: the position embedding for this grid, if it is not the network's own.
    """

    image_size: Size
    grid_size: Size
    table: Tensor | None = None
    positions: Any = None


PLACES: ContextVar[Mapping[int, Place] | None] = ContextVar("places", default=None)


@contextmanager
def placed(network: Network, place: Place) -> Iterator[None]:
    """Let a network compute for images of another size, in this thread alone.

    The size is no argument of the methods: users and torch override and wrap them.
    """
    before = PLACES.set({**(PLACES.get() or {}), id(network): place})
    try:
        yield
    finally:
        PLACES.reset(before)


class Network(nn.Module):
    """The attributes that the classes beside `VisionTransformer` read, and calls of its parts."""

    embed_dim: int
    num_prefix_tokens: int
    spec: Spec | None
    labels: tuple[str, ...]
    _output_activation: str | None
    preprocessing: StatedPreprocessing | None
    checked_parts: dict[str, str]
    dynamic: bool
    loaded_positions: tuple[Tensor, Size] | None
    patch_embed: PatchEmbedder
    cls_token: nn.Parameter | None
    reg_token: nn.Parameter | None
    pos_embed: nn.Parameter | None
    positions: PositionEmbedding
    norm_pre: nn.Module
    blocks: nn.Sequential
    norm: nn.Module
    pool: Pool | None
    attn_pool: Pool | None
    fc_norm: nn.Module
    head: Any  # users assign any module
    _own: Place  # the size that it was built for, or got by `set_input_size`
    _plain_head: bool  # whether the head is a module without the attributes of `Head`

    @property
    def image_size(self) -> Size:
        """(height, width) in px of the images that the network takes."""
        return self._place.image_size

    @property
    def grid_size(self) -> Size:
        """(h, w) of the patches of these images."""
        return self._place.grid_size

    @property
    def _place(self) -> Place:
        """The place of the images that this thread computes, else the network's own."""
        places = PLACES.get()
        return self._own if places is None else places.get(id(self), self._own)

    @property
    def _table(self) -> Any:
        found = self._place.table
        return self.pos_embed if found is None else found

    @property
    def _positions(self) -> Any:
        return self._place.positions or self.positions

    def _patches(self, images: Tensor) -> Tensor:
        """Map (b, c, h, w) images to (b, n, d) patches.

        Raises:
            InvalidInput: the images have another type, or are on another device, than the model.
        """
        if recorded(images):
            return self._embedded(images)
        try:
            return self._embedded(images)
        except RuntimeError as error:  # no check before: autocast converts, and a part may
            if text := misplaced(images, self.patch_embed):
                raise InvalidInput(text) from error
            raise

    def _embedded(self, images: Tensor) -> Tensor:
        (rows, columns), d = self.grid_size, self.embed_dim
        return self._run(
            "patch_embed", self.patch_embed, lambda x: (len(x), rows * columns, d), images
        )

    def _positioned(self, x: Any, layer: int) -> Any:
        """Add the positions before block `layer` to (b, p + n, d) tokens.

        Only the first call is one of the module, with its hooks. Tools that list modules in the
        order of their calls, as torchinfo, would take a call between two blocks for a second
        network.
        """
        if isinstance(x, Merged):
            return x  # merged tokens have no position
        part: Any = self._positions
        part = part.forward if layer else part
        return self._run("pos_embed", part, Tensor.size, x, self._table, layer)

    def _acts(self, layer: int) -> tuple[Rotate, Bias]:
        """Return the rotation and the attention bias of the positions for block `layer`."""
        rotate: Any = getattr(self._positions, "rotate", None)
        name = "window_bias" if self._windows(layer) else "attention_bias"
        bias: Any = getattr(self._positions, name, None)
        if bias is not None:
            bias = self._run("pos_embed", bias, BIAS, self._table, layer)
            if not isinstance(bias, Tensor | Proxy):
                bias = partial(self._run, "pos_embed", bias, TENSOR)
        if rotate is None:
            return None, bias
        return lambda x: self._run("pos_embed", rotate, Tensor.size, x, layer), bias

    def _windows(self, layer: int) -> dict[str, Any]:
        """Return the windows of the grid as an argument of block `layer`, if it has windows."""
        size = getattr(self.blocks[layer], "window", 0)
        if not size:
            return {}
        return {"windows": Windows(size, self.grid_size, self.num_prefix_tokens)}

    def _normed(self, x: Tensor) -> Tensor:
        """Apply the final norm, and the neck of the pool if it has one, to (b, p + n, d) tokens."""
        x = self.norm(x)
        neck: Any = getattr(self._pool, "neck", None)
        if neck is None:
            return x
        inputs = x, self.num_prefix_tokens, self.grid_size
        return self._run("pool", neck, lambda x: (*x.shape[:2], self.num_features), *inputs)

    @property
    def num_features(self) -> int:
        """Width of pooled features, which is d or the width of the pool's neck."""
        return getattr(getattr(self._pool, "neck", None), "width", self.embed_dim)

    @property
    def _pool(self) -> Any:
        return self.pool if self.attn_pool is None else self.attn_pool

    def _pooled(self, tokens: Tensor) -> Tensor:
        """Map (b, p + n, d) tokens to the (b, d) or (b, t, d) that the head reads."""
        several = getattr(self._pool, "tokens", None)
        vectors = (several, self.num_features) if several else (self.num_features,)
        inputs = tokens, self.num_prefix_tokens, self.grid_size
        x = self._run("pool", self._pool, lambda x: (len(x), *vectors), *inputs)
        return self.fc_norm(x)

    def _logits(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Map (b, d) or (b, t, d) to (b, k) logits, or to pre-logits."""
        head = self.head
        if self._plain_head:
            return x if pre_logits else head(x)

        def shape(x: Tensor) -> Expected:
            classes = 0 if pre_logits else head.num_classes
            if x.dim() == 3 and not (classes or getattr(head, "tokens", None)):
                return None  # the features of each of several tokens
            return (len(x), classes or head.pre_logits_dim)

        return self._run("head", head, shape, x, pre_logits)

    def _run(
        self, field: str, part: Any, expected: Expected | Callable[[Any], Expected], *inputs: Any
    ) -> Any:
        """Call a part or one of its methods; check the result of parts in `checked_parts`.

        `expected` is as in `call`, or a function that maps the first input to it.
        """
        what = self.checked_parts.get(field)
        if what is None or recorded(*inputs):
            return part(*inputs)
        return call(what, part, inputs, expected(inputs[0]) if callable(expected) else expected)

    def _note(self, **changes: Any) -> None:
        """Let the spec describe changes of the network."""
        if self.spec is not None:
            self.spec = replace(self.spec, **changes)
            self.checked_parts = checked_parts(self.spec)


def recorded(*inputs: object) -> bool:
    """Whether torch.compile, torch.export, `torch.jit.trace` or torch.fx records operations."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        return True
    return any(isinstance(x, Proxy) for x in inputs)


def checked_parts(spec: Spec) -> dict[str, str]:
    """Return the names of the parts of a spec that are not vitzoo's own, by field."""
    return {
        field: f"{field} {chosen.name!r}"
        for field, chosen in vars(spec).items()
        if isinstance(chosen, PartSpec) and (chosen.opaque or "/" in chosen.name)
    }
