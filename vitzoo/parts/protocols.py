"""Protocols: the attributes and methods that `VisionTransformer` needs from each kind of part.

Axis letters: `b` batch, `c` channels, `h w` pixels or patches, `p` prefix tokens (class token and
registers), `n` patch tokens, `d` width, `k` classes.

Constructors take keywords only: the numbers of the network listed in the protocol, then the options
of the part. Every option has a default. A constructor draws the initial parameters from torch's
global random generator; vitzoo never initialises them later.

Any part may have a method `no_weight_decay()`, which returns names, within the part, of parameters
that optimisers should not decay. Without this method all parameters of a position embedding are
such parameters, and no parameters of other parts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from vitzoo.errors import InvalidOption, VitzooError
from vitzoo.plugin.guard import Blaming, owner_of_part, raised_at, reason_of
from vitzoo.schema.reader import describe

Expected = tuple[int, ...] | str | None
ELSEWHERE = "elsewhere"
GRID, MODULE, NAMES = "two positive whole numbers", "a torch.nn.Module", "a collection of names"
TENSOR, TABLE, BIAS = "a tensor", "a tensor or None", "a tensor or a function of the queries"
RESULTS: dict[str, Callable[[Any], bool]] = {  # by what is expected
    GRID: lambda x: isinstance(x, tuple | list) and [*map(type, x)] == [int] * 2 and min(x) > 0,
    MODULE: lambda one: isinstance(one, nn.Module),
    NAMES: lambda one: isinstance(one, Collection) and all(isinstance(n, str) for n in one),
    TENSOR: lambda one: isinstance(one, Tensor),
    TABLE: lambda one: one is None or isinstance(one, Tensor),
    BIAS: lambda one: isinstance(one, Tensor) or callable(one),
}


@runtime_checkable
class PatchEmbedder(Protocol):
    """Maps images to patch tokens.

    Constructor: those of `patch_size` ((h, w) in px), `in_chans` and `embed_dim` that it names,
    then options.

    Attributes:
        in_chans: number of image channels.
        input_conv: optional, name of the kernel (out, in_chans, h, w) that reads the image, within
            the part; `proj.weight` if missing. Loading adapts this kernel to other `in_chans`.
        grid_multiple: optional, (rows, columns): `grid` accepts only grids whose rows and columns
            are multiples of these; (1, 1) if missing. `tiled` checks it.
    """

    in_chans: int

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the (h, w) grid of tokens for images of `image_size` (h, w) px.

        Raises:
            InvalidOption: the part cannot embed images of this size; the message has both sizes.
        """

    def __call__(self, images: Tensor, /) -> Tensor:
        """Map (b, c, h, w) images to (b, n, d) tokens, row by row of the grid."""


@runtime_checkable
class PositionEmbedding(Protocol):
    """Adds position information to tokens, before the first block, before each, or in attention.

    Constructor: those of `grid_size` (h, w), `num_prefix_tokens`, `embed_dim`, `num_heads`,
    `depth` and `windows` (patches per side of the windows of each block, 0 for none) that it names,
    then options.

    The model keeps learned positions as its parameter `pos_embed`, as published checkpoints do.
    The part creates the table, uses it, and interpolates it to another grid.

    Two optional methods act in the attention of every block. `rotate(x, layer)` maps queries or
    keys (b, heads, p + n, head_dim) to the same shape. `attention_bias(table, layer)` returns the
    bias of the scaled query-key products: a tensor (heads, p + n, p + n), or a function. The
    function maps the scaled queries (b, heads, t, head_dim) of the first t tokens, 1 <= t <= p + n,
    to (b, heads, t, p + n). Blocks with windows need `window_bias(table, layer)` in its place: that
    of the n patches of one window, as queries alone, to prefix tokens and patches of the window.
    """

    def initial_table(self, grid_size: tuple[int, int], /) -> Tensor | None:
        """Return the initial learned table, (l, rows, width), or None for no table."""

    def resample(self, table: Any, old: tuple[int, int], new: tuple[int, int], /) -> Tensor | None:
        """Return the table, None if there is none, interpolated to another (h, w) grid.

        Raises:
            InvalidOption: the part cannot do this; `create(..., dynamic=True)` then refuses it.
        """

    def to_grid(self, grid_size: tuple[int, int], /) -> None:
        """Expect tokens of another (h, w) grid from now on."""

    def __call__(self, tokens: Tensor, table: Any, layer: int = 0, /) -> Tensor:
        """Map the (b, p + n, d) tokens before block `layer` to tokens of the same shape."""


@runtime_checkable
class Head(Protocol):
    """Maps pooled, normalised features to logits.

    Constructor: `in_dim` (width d of the features) and `num_classes`, then options. With 0 classes
    there is no classifier and the head returns the pre-logits.

    Attributes:
        num_classes: number k of logits, 0 without a classifier.
        pre_logits_dim: width of the classifier's input.
        tokens: optional, number of tokens that the head reads, if it reads several.
        embedding: optional, true if the outputs are an embedding and not logits of classes, which
            `predict` then refuses.
        sigmoid: optional, true if the probability of a class is the sigmoid of its logit, not the
            softmax of all logits.
    """

    num_classes: int
    pre_logits_dim: int

    def reset(self, num_classes: int) -> Head:
        """Return a head of the same kind with a new classifier, and the same pre-logits.

        Layers before the classifier are copied, unless they are on `meta`.
        """

    def __call__(self, x: Tensor, /, pre_logits: bool = False) -> Tensor:
        """Map (b, d), or (b, tokens, d), to (b, k) logits or (b, pre_logits_dim) pre-logits."""


DropPathPolicy = Callable[..., Sequence[float]]
"""Returns a drop-path rate for each block: `policy(*, depth: int, **options) -> depth rates`."""


@runtime_checkable
class DropPath(Protocol):
    """Adds a branch to the residual and, in training, drops it for some samples.

    Constructor: `(*, rate)`, the share of samples whose branch is dropped.
    """

    def __call__(
        self, x: Tensor, branch: Callable[[Tensor], Tensor], tokens: int | None = None, /
    ) -> Tensor:
        """Return `x[:, :tokens] + branch(x)` for (b, n, d) tokens.

        In training the branch of a dropped sample is zero, and the branch of the others is divided
        by the share of kept samples. In evaluation no branch is dropped.
        """


@runtime_checkable
class Pool(Protocol):
    """Reduces the tokens of an image to one vector, or to several for a head that reads several.

    Constructor: those of `num_prefix_tokens`, `class_token` and `embed_dim` that it names, then
    options. The options `num_heads`, `mlp_dim`, `norm_eps` and `activation` default to the values
    of the network's blocks.

    Attributes:
        norm_first: whether the final norm acts on the tokens (True) or on the pooled vector.
        tokens: optional, number t of vectors, if the pool returns several. The head must have the
            same attribute.
        reads: optional, number of first tokens that the pool reads; all if missing or None. The
            last block then computes only these, and the pool gets only these.
        neck: optional, a module that follows the final norm. It maps the arguments of the pool to
            tokens (b, p + n, width), which the pool then gets, and has the attribute `width`.
    """

    norm_first: bool

    def __call__(
        self, tokens: Tensor, num_prefix_tokens: int, grid_size: tuple[int, int], /
    ) -> Tensor:
        """Map (b, p + n, d) tokens, or the first `reads` of them, to (b, d) or (b, t, d).

        Args:
            tokens: p prefix tokens, then n patch tokens, row by row.
            num_prefix_tokens: number p of prefix tokens.
            grid_size: (h, w) in patches, h * w = n; `set_input_size` changes it.
        """


class Network(Protocol):
    """A network that a builder returns: what the apps of vitzoo call.

    Called with (b, c, h, w) images, a network returns (b, k) logits. All members are optional: an
    app that needs a missing one refuses the network, and names the member. An optional method
    `no_weight_decay()` returns names of parameters, which `param_groups` then does not decay.
    `plot` and `lora` take only networks of vitzoo's blocks.

    Attributes:
        num_classes: number k of logits, 0 without a classifier. If it is missing, `create` sets
            that of the spec.
        feature_info: for `backbone`. Of each map of `forward_intermediates`, a dictionary with
            `num_chs` (channels), `reduction` (px of the image per element) and `module` (name).
    """

    num_classes: int
    feature_info: Sequence[Mapping[str, Any]]

    def forward_features(self, images: Tensor, /) -> Tensor:
        """Map (b, c, h, w) images to what `forward_head` takes.

        This and `forward_head` are for `pooled`: `embed`, `probe` and `export(output="pooled")`.
        """

    def forward_head(self, features: Tensor, /, *, pre_logits: bool = False) -> Tensor:
        """Map features to (b, k) logits, or to the (b, d) input of the classifier."""

    def forward_intermediates(
        self,
        images: Tensor,
        /,
        *,
        indices: Sequence[int],
        norm: bool,
        stop_early: bool,
        intermediates_only: bool,
    ) -> Sequence[Tensor]:
        """Map (b, c, h, w) images to the maps (b, channels, rows, columns) of these indices.

        For `backbone`, which passes `stop_early=True` and `intermediates_only=True`.
        """

    def get_classifier(self) -> nn.Module:
        """Return the classifier, which `freeze(until="head")` leaves trainable."""

    def group_matcher(self, *, coarse: bool) -> Any:
        """Return the layers in timm's form, for `layer_decay` and `freeze` with another layer."""


class WeightsAdapter(Protocol):
    """Adapts weights to a network that is not made of vitzoo's parts.

    The attribute `foreign` of the network is an object of any class with these members. Without
    it, weights are loaded unchanged or not at all. An optional method `make_dynamic(network)` lets
    the network take images of any size, or raises InvalidOption; without it,
    `create(..., dynamic=True)` refuses the network.

    Attributes:
        classifiers: prefixes of the names of classifier tensors, such as `head.`. Tensors with
            such a name become zero if they do not fit another number of classes.
        input_convs: names of the kernels that read the channels of the image.
    """

    classifiers: tuple[str, ...]
    input_convs: tuple[str, ...]

    def resample(
        self, tensors: Mapping[str, Tensor], native_size: tuple[int, int]
    ) -> dict[str, Tensor]:
        """Return the tensors of a file, interpolated to the image size of this network.

        Args:
            tensors: with data or on `meta`.
            native_size: (h, w) px of the images that the weights were trained on.
        """


def call(what: str | None, part: Any, inputs: tuple[Any, ...], expected: Expected) -> Any:
    """Call a part that is not vitzoo's own; name the part if it fails or returns another result.

    `what` is field and registered name, such as `head 'acme/cosine'`, None for a part of vitzoo.
    A result has the `expected` shape, or is one of `RESULTS`; with None it is not checked. Raises
    PluginError for a part of a plugin, InvalidOption for a part given as an object.
    """
    if what is None:
        return part(*inputs)

    def refusal(problem: str, error: BaseException | None = None) -> VitzooError:
        shape = getattr(inputs[0], "shape", None) if inputs else None
        problem += "" if shape is None else f" for an input of shape {tuple(shape)}"
        if expected is not None:
            problem += ", expected " + "a result of shape " * isinstance(expected, tuple)
            problem += str(expected)
        return blame(what, problem, error, getattr(part, "forward", part))

    with Blaming(lambda error: refusal("failed", error)):
        result: Any = part(*inputs)
        # A head may return several results, for training by distillation.
        for one in result if isinstance(result, tuple) and what.startswith("head") else (result,):
            shape = getattr(one, "shape", None)
            fit = RESULTS[expected](one) if isinstance(expected, str) else shape == expected
            if expected is not None and not fit:
                raise refusal(f"gave {describe(one) if shape is None else f'shape {tuple(shape)}'}")
    return result


def blame(
    what: str, problem: str, error: BaseException | None = None, code: object = None
) -> VitzooError:
    """Return the error about a part, which for a part of a plugin names the plugin and its line.

    Args:
        what: as in `call`.
        problem: what the part did.
        error: that the code of the part raised.
        code: of the part, to name its line if no `error` does.
    """
    owner = owner_of_part(what)
    if owner is None:
        reason = f": {reason_of(error, raised_at(error))}" if error else ""
        return InvalidOption(f"{what} {problem}{reason}; correct its options, or the ready object")
    check = f"`vitzoo plugins check {owner.info.namespace}` checks it"
    fix = f"choose another part, or correct this one: {check}"
    return owner.error(problem, code, error, fix)


def blaming(parts: Mapping[str, str]) -> Blaming:
    """Name the plugin of a part if code of the plugin raises in a `with` block.

    This is for methods of `nn.Module` that a part replaces, such as `state_dict`.

    Args:
        parts: field and registered name, such as `head 'acme/cosine'`, by field.
    """

    def blamed(error: BaseException) -> VitzooError | None:
        for what in parts.values():
            owner = owner_of_part(what)
            if owner and raised_at(error, owner.info.package, ELSEWHERE) != ELSEWHERE:
                return blame(what, "failed", error)
        return None

    return Blaming(blamed)
