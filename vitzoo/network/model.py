"""The Vision Transformer, in the order data flows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitzoo.errors import InvalidInput, InvalidOption, UnknownOption, did_you_mean
from vitzoo.network.inputs import explained
from vitzoo.parts.block import Blocks, Merged, unmerged
from vitzoo.parts.heads import classes_of, described_head, linear_head
from vitzoo.parts.init import normal_
from vitzoo.parts.protocols import BIAS, GRID, MODULE, NAMES, TABLE, TENSOR, call
from vitzoo.schema.reader import pair
from vitzoo.schema.rows import Preprocessing
from vitzoo.schema.spec import PartSpec

if TYPE_CHECKING:
    from vitzoo.parts.attention import Bias, Rotate
    from vitzoo.parts.protocols import Expected, Head, PatchEmbedder, Pool, PositionEmbedding
    from vitzoo.report import LoadReport
    from vitzoo.schema.spec import Spec

P = ParamSpec("P")
R = TypeVar("R")
Size = tuple[int, int]


def for_any_size(
    method: Callable[Concatenate[VisionTransformer, Tensor, P], R],
) -> Callable[Concatenate[VisionTransformer, Tensor, P], R]:
    """Let a method of a model with `dynamic` act on the model for the size of its images."""

    @wraps(method)
    def sized(self: VisionTransformer, images: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._sized(images) if self.dynamic else self, images, *args, **kwargs)

    return sized


class VisionTransformer(nn.Module):
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
            `nn.Identity()`: `num_classes` and `spec` follow, and `labels` becomes empty.
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
            results equal those after `set_input_size`, bit for bit; learned positions are
            interpolated in every call.
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
        self.image_size = image_size
        self.grid_size = patch_embed.grid(image_size)
        self.embed_dim = embed_dim
        self.num_prefix_tokens = int(class_token) + num_registers
        self.grad_checkpointing = False
        self.spec: Spec | None = None
        self.load_report: LoadReport | None = None
        self.labels: tuple[str, ...] = ()
        self.preprocessing: Preprocessing | None = None
        self.checked_parts: dict[str, str] = {}
        self.dynamic = False
        self.loaded_positions: tuple[Tensor, Size] | None = None

        self.patch_embed = patch_embed
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim)) if class_token else None
        self.reg_token = token_vectors(num_registers, embed_dim) if num_registers else None
        table = positions.initial_table(self.grid_size)
        self.pos_embed = None if table is None else nn.Parameter(table)
        self.positions = positions
        self.pos_drop = nn.Dropout(dropout)
        self.norm_pre = pre_norm or nn.Identity()
        self.blocks: nn.Sequential = Blocks(*blocks)
        self.norm = norm if pool.norm_first else nn.Identity()
        learned = bool(list(pool.parameters()))  # type: ignore[attr-defined]  # a Pool that is a module
        self.pool = None if learned else pool
        self.attn_pool = pool if learned else None
        self.fc_norm = nn.Identity() if pool.norm_first else norm
        self.head: Any = head  # users assign any module

    def __repr__(self) -> str:
        """Return torch's tree of modules after the name of the variant, if there is one."""
        variant = getattr(getattr(self, "spec", None), "variant", None)
        return f"{variant}: {super().__repr__()}" if variant else super().__repr__()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "head" and isinstance(value, nn.Module):
            self._describe_head(value)
        super().__setattr__(name, value)

    def _describe_head(self, head: nn.Module) -> None:
        """Let spec and labels follow a new head; a wrapper of the old head changes neither."""
        old = self._modules.get("head")
        replica = "_is_replica" in vars(self)  # of DataParallel, whose head has no parameters yet
        same = old is None or replica or old in head.modules() or head in old.modules()
        if not same:
            self._note(num_classes=classes_of(head), head=described_head(head, self.embed_dim))
            self.labels = ()
        self._plain_head = not hasattr(head, "pre_logits_dim")

    def _note(self, **changes: Any) -> None:
        """Let the spec describe changes of the network."""
        if self.spec is not None:
            self.spec = replace(self.spec, **changes)
            self.checked_parts = checked_parts(self.spec)

    @for_any_size
    def forward(self, images: Tensor) -> Tensor:
        """Map (b, c, h, w) images to (b, k) logits."""
        tokens = self._tokens_read()
        if tokens is None:
            return self.forward_head(self.forward_features(images))
        x: Any = self.embed(images)
        last = len(self.blocks) - 1
        for layer in range(last):
            x = self._encode(x, layer)
        x = self._encode(x, last, tokens)  # (b, tokens, d)
        return self.forward_head(self.norm(x))

    @for_any_size
    def forward_features(self, images: Tensor) -> Tensor:
        """Map (b, c, h, w) images to (b, p + n, d) tokens after the final norm.

        Raises:
            InvalidInput: the model does not accept the shape or dtype of the images.
        """
        x: Any = self.embed(images)
        if isinstance(self.blocks, Blocks):
            x = self.blocks(x, encode=self._encode)  # a call, so that hooks of `blocks` act
        else:
            for layer in range(len(self.blocks)):
                x = self._encode(x, layer)
        return self.norm(unmerged(x))

    def forward_head(self, tokens: Tensor, pre_logits: bool = False) -> Tensor:
        """Pool p prefix and n patch tokens (b, p + n, d), and return logits (b, k)."""
        return self._logits(self._pooled(tokens), pre_logits)

    @for_any_size
    def embed(self, images: Tensor) -> Tensor:
        """Map (b, c, h, w) images to (b, p + n, d) tokens, the input of the first block."""
        self._check_images(images)
        return self._tokens(self._patches(images))

    def _tokens(self, x: Tensor) -> Tensor:
        """Map (b, n, d) patches to (b, p + n, d) tokens."""
        prefix = [token for token in (self.cls_token, self.reg_token) if token is not None]
        if prefix:
            x = torch.cat((*(t.expand(x.shape[0], -1, -1) for t in prefix), x), dim=1)
        x = self._run("pos_embed", self.positions, x.shape, x, self.pos_embed, 0)  # (b, p + n, d)
        return self.norm_pre(self.pos_drop(x))

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
        results = self._results(images)
        while not found.keys() >= set(names):
            name, result = next(results)
            if name in names:
                found[name] = result
        return {name: found[name] for name in names}

    def _results(self, images: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the intermediate results by name, each computed when it is asked for."""
        self._check_images(images)
        x = self._patches(images)
        yield "patch_embed", x
        x = self._tokens(x)
        yield "embed", x
        encoded: Any = x
        for layer in range(len(self.blocks)):
            encoded = self._encode(encoded, layer)
            yield f"blocks.{layer}", unmerged(encoded)
        x = self.norm(unmerged(encoded))
        yield "norm", x
        x = self._pooled(x)
        yield "pool", x
        yield "pre_logits", self._logits(x, pre_logits=True)
        yield "logits", self._logits(x)

    def feature_names(self) -> list[str]:
        """Return the names that `features` accepts, in the order of computation."""
        blocks = [f"blocks.{i}" for i in range(len(self.blocks))]
        return ["patch_embed", "embed", *blocks, "norm", "pool", "pre_logits", "logits"]

    @for_any_size
    def attention_maps(
        self, images: Tensor, layers: int | Sequence[int] | None = None
    ) -> dict[int, Tensor]:
        """Return the attention probabilities of blocks, each (b, heads, p + n, p + n), by index.

        Fused attention does not return them, so they are computed again from queries and keys.

        Args:
            images: (b, c, h, w).
            layers: indices of blocks, negative from the end; an int n: the last n; None: all.
        """
        wanted = self.block_indices(layers)
        maps: dict[int, Tensor] = {}
        x: Any = self.embed(images)
        encoder: list[Any] = list(self.blocks)
        for layer in range(max(wanted) + 1):
            if layer in wanted:
                entering = unmerged(self._positioned(x, layer))
                maps[layer] = encoder[layer].attention_probabilities(entering, *self._acts(layer))
            x = self._encode(x, layer)
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
        x: Any = self.embed(images)
        found = []
        last = max(wanted) + 1 if stop_early else len(self.blocks)
        for layer in range(last):
            x = self._encode(x, layer)
            if layer in wanted:
                found.append(self.norm(unmerged(x)) if norm else unmerged(x))
        results = [self._split(tokens, output_fmt, return_prefix_tokens) for tokens in found]
        return results if intermediates_only else (self.norm(unmerged(x)), results)

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

    @property
    def num_features(self) -> int:
        """Width d of tokens and pooled features."""
        return self.embed_dim

    @property
    def head_hidden_size(self) -> int:
        """Width of the pre-logits."""
        return self.embed_dim if self._plain_head else self.head.pre_logits_dim

    @property
    def num_classes(self) -> int:
        """Number k of logits, 0 without a classifier."""
        return classes_of(self.head)

    @property
    def pretrained_cfg(self) -> dict[str, Any]:
        """Preprocessing under timm's keys, for `timm.data.resolve_model_data_config`."""
        c, (h, w) = self.patch_embed.in_chans, self.image_size
        row = self.preprocessing or Preprocessing(mean=(0.5,) * c, std=(0.5,) * c)
        return {
            "input_size": (c, h, w),
            "mean": row.mean,
            "std": row.std,
            "interpolation": row.interpolation,
            "crop_pct": row.crop_pct,
            "crop_mode": row.crop_mode,
            "num_classes": self.num_classes,
        }

    def get_classifier(self) -> nn.Module:
        """Return the head."""
        return self.head

    def reset_classifier(self, num_classes: int) -> None:
        """Replace the head by a new one of the same kind, and remove the labels.

        A module that is no `vitzoo.parts.Head` is replaced by a linear head.

        Args:
            num_classes: k; with 0 the new head has no classifier.
        """
        if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 0:
            raise InvalidOption(
                f"num_classes must be a whole number of at least 0, got {num_classes!r}; "
                "0 means no classifier"
            )
        sample, plain, spec = next(self.parameters()), self._plain_head, self.spec
        if plain:
            fresh: Any = linear_head(in_dim=self.embed_dim, num_classes=num_classes)
        else:
            fresh = self._run("head", self.head.reset, MODULE, num_classes)
        self.head = fresh.to(sample.device, sample.dtype).train(self.training)
        self.labels = ()
        if spec is not None:
            linear = plain or spec.head.name == "none"
            self._note(num_classes=num_classes, head=PartSpec("linear") if linear else spec.head)

    @torch.no_grad()
    def set_input_size(self, image_size: int | tuple[int, int]) -> None:
        """Accept images of another size from now on; interpolate learned positions.

        Positions are interpolated from the table that was loaded, so that a change of the size and
        back loses nothing. Positions that were trained since are interpolated as they are.

        Args:
            image_size: (height, width) in px, or one number for both.

        Raises:
            InvalidOption: the size is not a whole number of patches.
        """
        size = pair(image_size, "image_size", InvalidOption)
        grid = self._run("patch_embed", self.patch_embed.grid, GRID, size)
        if grid != self.grid_size and self.pos_embed is not None:
            table, old = self._source()
            fresh = self._run("pos_embed", self.positions.resample, TABLE, table, old, grid)
            self.loaded_positions = table.detach().clone(), old
            if fresh is not None:
                fresh = fresh.to(self.pos_embed, copy=True)
                self.pos_embed = nn.Parameter(fresh, requires_grad=self.pos_embed.requires_grad)
        self._run("pos_embed", self.positions.to_grid, None, grid)
        self.image_size, self.grid_size = size, grid
        self._note(image_size=size)

    def _source(self) -> tuple[Tensor, Size]:
        """Return the table to interpolate, and its grid.

        This is the loaded table, as long as `pos_embed` equals its interpolation. Otherwise, and
        where gradients must reach `pos_embed`, it is `pos_embed`.
        """
        table: Tensor = self.pos_embed  # type: ignore[assignment]  # callers checked
        if self.loaded_positions is None or (table.requires_grad and torch.is_grad_enabled()):
            return table, self.grid_size
        loaded, grid = self.loaded_positions
        if loaded.is_meta or table.is_meta:
            return table, self.grid_size
        shown = self._run("pos_embed", self.positions.resample, TABLE, loaded, grid, self.grid_size)
        same = shown is not None and torch.equal(shown.to(table), table)
        return (loaded, grid) if same else (table, self.grid_size)

    def _sized(self, images: Tensor) -> VisionTransformer:
        """Return the model for the size of (b, c, h, w) images; it shares all parameters.

        Raises:
            InvalidInput: the size is not a whole number of patches.
        """
        if not isinstance(images, Tensor) or images.dim() != 4:
            return self
        if images.shape[2:] == self.image_size or images.shape[1] != self.patch_embed.in_chans:
            return self
        return self._resized((images.shape[2], images.shape[3]))

    def _resized(self, size: Size) -> VisionTransformer:
        try:
            grid = self._run("patch_embed", self.patch_embed.grid, GRID, size)
        except InvalidOption as error:
            raise InvalidInput(str(error)) from error
        table: Tensor | None = None
        if self.pos_embed is not None:
            table = self._run("pos_embed", self.positions.resample, TABLE, *self._source(), grid)
            table = None if table is None else table.to(self.pos_embed)
        part: Any = self.positions
        positions = deepcopy(part, {id(shared): shared for shared in part.parameters()})
        self._run("pos_embed", positions.to_grid, None, grid)
        model = copy(self)
        vars(model).update(
            _parameters={**self._parameters, "pos_embed": table},
            _modules={**self._modules, "positions": positions},
            image_size=size,
            grid_size=grid,
        )
        return model

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute each block in the backward pass instead of keeping its activations."""
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Return the names of parameters that optimisers should not decay.

        These are class token, registers, the table of positions, and the parameters that the
        method `no_weight_decay` of a part names. A position embedding without this method adds all
        its parameters.
        """
        tokens = ("pos_embed", "cls_token", "reg_token")
        names = {name for name in tokens if getattr(self, name) is not None}
        for field in ("patch_embed", "positions", "pool", "attn_pool", "head"):
            part: Any = getattr(self, field)
            own = getattr(part, "no_weight_decay", None)
            if own is not None:
                kind = {"positions": "pos_embed", "attn_pool": "pool"}.get(field, field)
                names |= {f"{field}.{name}" for name in self._run(kind, own, NAMES)}
            elif field == "positions":
                names |= {f"positions.{name}" for name, _ in part.named_parameters()}
        return names

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return the layer groups in timm's form, for layer-wise learning rates."""
        return {
            "stem": r"^cls_token|^reg_token|pos_embed|patch_embed|positions|^norm_pre",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm\.", (99999,))],
        }

    def _encode(self, x: Any, layer: int, tokens: int | None = None) -> Any:
        """Run block `layer`, with its positions, on (b, p + n, d) tokens, or on `Merged`.

        Given `tokens`, only the first of them are computed.
        """
        x = self._positioned(x, layer)
        block, acts = self.blocks[layer], self._acts(layer)
        given: tuple[Any, ...] = acts if tokens is None else (*acts, tokens)
        if self.grad_checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(block, x, *given, use_reentrant=False)
        return block(x, *given)

    def _tokens_read(self) -> int | None:
        """Return the number of first tokens of the last block that the pool reads, None for all.

        All tokens are computed in `torch.jit.trace`, with a hook on the blocks or the last block,
        in a subclass that replaces `forward_features`, and in training with dropout, which draws a
        number for every token.
        """
        reads: int | None = getattr(self._pool, "reads", None)
        own = "forward_features" in self.__dict__ or (
            type(self).forward_features is not VisionTransformer.forward_features
        )
        if reads is None or own or _tracing():
            return None
        last: nn.Module = self.blocks[-1]
        every = any(map(_hooked, (self.blocks, *last.modules(), self.norm)))
        return None if every or (self.training and any(map(_drops, last.modules()))) else reads

    def _positioned(self, x: Any, layer: int) -> Any:
        if not layer or isinstance(x, Merged):
            return x  # `embed` added the positions of block 0; merged tokens have none
        return self._run("pos_embed", self.positions, x.shape, x, self.pos_embed, layer)

    def _acts(self, layer: int) -> tuple[Rotate, Bias]:
        """Return the rotation and the attention bias of the positions for block `layer`."""
        rotate = getattr(self.positions, "rotate", None)
        bias = getattr(self.positions, "attention_bias", None)
        if rotate is not None:
            rotate = partial(self._rotated, layer=layer)
        if bias is not None:
            bias = self._run("pos_embed", bias, BIAS, self.pos_embed, layer)
            if not isinstance(bias, Tensor):
                bias = partial(self._run, "pos_embed", bias, TENSOR)
        return rotate, bias

    def _rotated(self, x: Tensor, layer: int) -> Tensor:
        rotate: Any = self.positions.rotate  # type: ignore[attr-defined]  # `_acts` checked
        return self._run("pos_embed", rotate, x.shape, x, layer)

    @property
    def _pool(self) -> Any:
        return self.pool if self.attn_pool is None else self.attn_pool

    def _pooled(self, tokens: Tensor) -> Tensor:
        pool = self._pool
        read = getattr(pool, "tokens", None)
        shape = (tokens.shape[0], *((read,) if read else ()), self.embed_dim)
        return self.fc_norm(
            self._run("pool", pool, shape, tokens, self.num_prefix_tokens, self.grid_size)
        )

    def _patches(self, images: Tensor) -> Tensor:
        shape = (images.shape[0], self.grid_size[0] * self.grid_size[1], self.embed_dim)
        return self._run("patch_embed", self.patch_embed, shape, images)

    def _logits(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        head = self.head
        if self._plain_head:
            return x if pre_logits else head(x)
        classes = 0 if pre_logits else head.num_classes
        features = x.dim() == 3 and not (classes or getattr(head, "tokens", None))
        shape = None if features else (x.shape[0], classes or head.pre_logits_dim)
        return self._run("head", head, shape, x, pre_logits)

    def _run(self, field: str, part: Any, expected: Expected, *inputs: Any) -> Any:
        """Call a part; check the result of parts in `checked_parts`, not in compiled code."""
        bare = torch.compiler.is_compiling() or _tracing()
        return call(None if bare else self.checked_parts.get(field), part, inputs, expected)

    def _split(self, tokens: Tensor, fmt: str, with_prefix: bool) -> Any:
        prefix, patches = tokens.tensor_split((self.num_prefix_tokens,), dim=1)
        if fmt == "NCHW":
            patches = patches.transpose(1, 2).reshape(patches.shape[0], -1, *self.grid_size)
        return (patches, prefix) if with_prefix else patches

    def _check_images(self, images: Tensor) -> None:
        expected = (self.patch_embed.in_chans, *self.image_size)
        fits = isinstance(images, Tensor) and images.dim() == 4 and images.is_floating_point()
        if not fits or (not _tracing() and images.shape[1:] != expected):
            raise InvalidInput(explained(images, self.patch_embed.in_chans, self.image_size))


def _hooked(module: nn.Module) -> bool:
    """Whether a module has hooks, for which torch has no public question."""
    hooks = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
    return any(getattr(module, name) for name in hooks)


def _drops(module: nn.Module) -> bool:
    """Whether a module has a dropout rate: `nn.Dropout`, and the attention."""
    return bool(getattr(module, "attention_dropout", 0) or getattr(module, "p", 0))


def _tracing() -> bool:
    """Whether `torch.jit.trace` runs, which warns about every branch on a shape."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def checked_parts(spec: Spec) -> dict[str, str]:
    """Return the names of the parts of a spec that are not vitzoo's own, by field."""
    return {
        field: f"{field} {chosen.name!r}"
        for field, chosen in vars(spec).items()
        if isinstance(chosen, PartSpec) and (chosen.opaque or "/" in chosen.name)
    }


def token_vectors(count: int, embed_dim: int) -> nn.Parameter:
    """Return initial learned tokens, (1, count, d), drawn from a normal of std 0.02."""
    tokens = torch.empty(1, count, embed_dim)
    normal_(tokens, std=0.02)
    return nn.Parameter(tokens)
