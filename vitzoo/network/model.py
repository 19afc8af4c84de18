"""The Vision Transformer, in the order of the equations of arXiv:2010.11929."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitzoo.network.classifier import Classifier
from vitzoo.network.inputs import check_images
from vitzoo.network.introspection import Introspection
from vitzoo.network.mixed import MixedSizes
from vitzoo.network.shortcut import short_cut
from vitzoo.network.sizes import for_any_size
from vitzoo.network.timm_names import TimmNames
from vitzoo.parts.block import Blocks
from vitzoo.parts.init import normal_

if TYPE_CHECKING:
    from vitzoo.parts.protocols import Head, PatchEmbedder, Pool, PositionEmbedding
    from vitzoo.report import LoadReport


class VisionTransformer(Introspection, MixedSizes, Classifier, TimmNames):
    """A Vision Transformer made of parts. Method names and state-dict keys are those of timm.

    Axis letters: `b` batch, `c` channels, `h w` pixels or patches, `p` prefix tokens (class token
    and registers), `n` patch tokens, `d` width, `k` classes.

    Shapes: (b, c, h, w) images to (b, k) logits.

    Args:
        patch_embed: maps images to (b, n, d) tokens.
        positions: adds position information before the first block, before each, or in attention.
        blocks: encoder blocks; each maps (b, p + n, d) to the same shape.
        norm: the final norm, or `nn.Identity()`.
        pool: reduces the tokens to one vector. `norm` acts before the pool if `pool.norm_first`,
            else after it.
        head: maps (b, d) to (b, k). Any module can replace it later, such as `nn.Linear(d, k)` or
            `nn.Identity()`: `num_classes` and `spec` follow, `labels` becomes empty, and
            `output_activation` that of the new head.
        image_size: (height, width) in px.
        embed_dim: width d.
        class_token: whether the first token is a learned class token.
        num_registers: number of learned tokens after the class token.
        pre_norm: norm before the first block.
        dropout: dropout rate after positions.

    Attributes:
        spec: the description that the model was built from, None if it was built by hand.
        load_report: for each tensor, whether it was loaded, changed, newly initialised or ignored.
        labels: class names in the order of the logits.
        preprocessing: how `vitzoo.transform` prepares images, None if unknown.
        dynamic: whether each batch may have any image size that is a whole number of patches. The
            results equal those after `set_input_size`, bit for bit. Interpolated positions of the
            last 16 sizes are kept until the positions change, `train` or `eval` is called, or the
            network moves. They are not kept where gradients reach the positions. On a GPU, a write
            to `pos_embed.data` is no change: write to `pos_embed` in `torch.no_grad()`.
        loaded_positions: the position table that was loaded, and its grid, if `pos_embed` was
            interpolated from it.
        checked_parts: names of parts whose output shapes every forward checks, by field of the
            spec: parts of plugins and parts given as objects.

    Source: arXiv:2010.11929; every element of the output is compared with timm's.
    """

    def __init__(
        self,
        *,
        patch_embed: PatchEmbedder,
        positions: PositionEmbedding,
        blocks: Iterable[nn.Module],
        norm: nn.Module,
        pool: Pool,
        head: Head,
        image_size: tuple[int, int],
        embed_dim: int,
        class_token: bool = True,
        num_registers: int = 0,
        pre_norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed_dim = embed_dim
        self.num_prefix_tokens = int(class_token) + num_registers
        self.grad_checkpointing = False
        self.spec = None
        self.load_report: LoadReport | None = None
        self.labels = ()
        self._output_activation = None
        self.preprocessing = None
        self.checked_parts = {}
        self.dynamic = False
        self.loaded_positions = None

        self.patch_embed = patch_embed
        self._take(image_size, patch_embed.grid(image_size))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim)) if class_token else None
        self.reg_token = token_vectors(num_registers, embed_dim) if num_registers else None
        table = positions.initial_table(self.grid_size)
        self.pos_embed = None if table is None else nn.Parameter(table)
        self.positions = positions
        self.pos_drop = nn.Dropout(dropout)
        self.norm_pre = pre_norm or nn.Identity()
        self.blocks = Blocks(*blocks)
        self.norm = norm if pool.norm_first else nn.Identity()
        learned = bool(list(pool.parameters()))  # type: ignore[attr-defined]  # a Pool that is a module
        self.pool = None if learned else pool
        self.attn_pool = pool if learned else None
        self.fc_norm = nn.Identity() if pool.norm_first else norm
        self.head = head

    def __repr__(self) -> str:
        """Return torch's tree of modules after the name of the variant, if there is one."""
        variant = getattr(getattr(self, "spec", None), "variant", None)
        return f"{variant}: {super().__repr__()}" if variant else super().__repr__()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "blocks" and type(value) in (nn.Sequential, nn.ModuleList):
            value = Blocks(*value)  # which passes positions to each block
        super().__setattr__(name, value)

    @for_any_size
    @short_cut
    def forward(self, images: Tensor) -> Tensor:
        """Map (b, c, h, w) images to (b, k) logits."""
        return self.forward_head(self.forward_features(images))

    @for_any_size
    def forward_features(self, images: Tensor) -> Tensor:
        """Map (b, c, h, w) images to (b, p + n, d) tokens after the final norm.

        Raises:
            InvalidInput: the model does not accept the shape or dtype of the images.
        """
        x = self.embed(images)  # equation 1
        x = self.blocks(x, run=self._encode)  # equations 2 and 3
        return self._normed(x)  # equation 4

    @for_any_size
    def embed(self, images: Tensor) -> Tensor:
        """Map (b, c, h, w) images to (b, p + n, d) tokens, the input of the first block."""
        check_images(images, self.patch_embed.in_chans, self.image_size, dynamic=self.dynamic)
        x = self._patches(images)  # (b, n, d)
        return self.norm_pre(self._pos_embed(x))

    def _pos_embed(self, x: Tensor) -> Tensor:
        """Map (b, n, d) patches to (b, p + n, d) tokens: prefix tokens first, then positions."""
        prefix = [token for token in (self.cls_token, self.reg_token) if token is not None]
        if prefix:
            x = torch.cat((*(t.expand(x.shape[0], -1, -1) for t in prefix), x), dim=1)
        return self.pos_drop(self._positioned(x, 0))

    def _encode(self, x: Any, layer: int, tokens: int | None = None) -> Any:
        """Run block `layer`, with its positions, on (b, p + n, d) tokens, or on `Merged`.

        Given `tokens`, only the first of them are computed.
        """
        if layer:  # `embed` added the positions of block 0
            x = self._positioned(x, layer)
        given: tuple[Any, ...] = self._acts(layer)
        if tokens is not None:
            given = (*given, tokens)
        return self._called(layer, x, *given, **self._windows(layer))

    def _called(self, layer: int, x: Any, *given: Any, **windows: Any) -> Any:
        """Call block `layer`, and compute it again in the backward pass if this is set."""
        if self.grad_checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(self.blocks[layer], x, *given, use_reentrant=False, **windows)
        return self.blocks[layer](x, *given, **windows)

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool p prefix and n patch tokens (b, p + n, d), and return logits (b, k)."""
        return self._logits(self._pooled(tokens), pre_logits)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass instead of keeping its activations."""
        self.grad_checkpointing = enable


def token_vectors(count: int, embed_dim: int) -> nn.Parameter:
    """Return initial learned tokens, (1, count, d), drawn from a normal of std 0.02."""
    tokens = torch.empty(1, count, embed_dim)
    normal_(tokens, std=0.02)
    return nn.Parameter(tokens)
