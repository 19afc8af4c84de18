"""What a part must offer to be used by `VisionTransformer`, and calls that hold parts to it.

Axis letters: `b` batch, `c` channels, `h w` pixels or patches, `p` prefix tokens, `n` patch
tokens, `d` width, `k` classes. Constructors take keywords only: those listed here, then the
part's own options, each with a default. They draw the parameters from torch's global random
generator; no call initialises them later.

Any part may have a method `no_weight_decay()`, which returns the names, within the part, of the
parameters that optimisers should not decay. Of a position embedding without it, that is all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from vitzoo.errors import InvalidOption, PluginError, VitzooError


@runtime_checkable
class PatchEmbedder(Protocol):
    """Turns images into patch tokens.

    Constructor: `(*, patch_size: (h, w) px, in_chans: int, embed_dim: int, **options)`.

    Attributes:
        in_chans: channels of the images it takes.
        input_conv: optional: name of the kernel (out, in_chans, h, w) that reads the image, which
            is brought to other `in_chans` when weights are loaded; `proj.weight` if it is not said.
        grid_multiple: optional: (rows, columns), whole numbers that rows and columns of the grid
            of patches must be multiples of, (1, 1) if it is not said. `grid` refuses the others.
    """

    in_chans: int

    def grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Return the (h, w) grid of tokens for images of `image_size` px.

        Raises:
            InvalidOption: the size does not fit.
        """
        ...

    def __call__(self, images: Tensor, /) -> Tensor:
        """Map (b, c, h, w) images to (b, n, d) tokens, row by row of the grid."""
        ...


@runtime_checkable
class PositionEmbedding(Protocol):
    """Tells tokens where they stand, before the first block or before each.

    Constructor: any of `grid_size: (h, w)`, `num_prefix_tokens`, `embed_dim`, `num_heads` and
    `depth`, as it needs them, then options.

    A learned table is kept by the model as its own parameter `pos_embed`, where every published
    checkpoint has it; the part says how it starts, how it acts and how it follows a new grid.

    Two methods are optional and act in the attention of every block: `rotate(x, layer)`, from
    queries or keys (b, heads, p + n, head_dim) to the same shape, and `attention_bias(table,
    layer)`, which returns what is added to the scaled query-key products: (heads, p + n, p + n), or
    a function from the scaled queries (b, heads, t, head_dim) of the first t tokens, t being 1 to
    p + n, to (b, heads, t, p + n).
    """

    def initial_table(self, grid_size: tuple[int, int], /) -> Tensor | None:
        """Return the learned table to start from, (l, rows, width), or None for no table."""
        ...

    def resample(self, table: Any, old: tuple[int, int], new: tuple[int, int], /) -> Tensor | None:
        """Return the table, `initial_table`'s kind, for another (h, w) grid."""
        ...

    def to_grid(self, grid_size: tuple[int, int], /) -> None:
        """Act on tokens of another (h, w) grid from now on."""
        ...

    def __call__(self, tokens: Tensor, table: Any, layer: int = 0, /) -> Tensor:
        """Map the (b, p + n, d) tokens before block `layer` to tokens of the same shape."""
        ...


@runtime_checkable
class Head(Protocol):
    """Turns pooled, normalised features into logits.

    Constructor: `(*, in_dim: int, num_classes: int, **options)`; with 0 classes there is no
    classifier and the pre-logits come out.

    Attributes:
        num_classes: width of the logits, 0 for none.
        pre_logits_dim: width of what enters the classifier.
        tokens: optional: how many tokens it reads where it is not one vector, as pool `prefix`
            gives them.
        embedding: optional: true where the outputs are an embedding, which no class names.
    """

    num_classes: int
    pre_logits_dim: int

    def reset(self, num_classes: int) -> Head:
        """Return a fresh head of the same kind for other classes."""
        ...

    def __call__(self, x: Tensor, /, pre_logits: bool = False) -> Tensor:
        """Map (b, d) to (b, k) logits, or to (b, pre_logits_dim)."""
        ...


DropPathPolicy = Callable[..., Sequence[float]]
"""Gives each block its drop-path rate: `policy(*, depth: int, **options) -> depth rates`."""


@runtime_checkable
class DropPath(Protocol):
    """Adds a residual branch and, in training, drops it for some samples (a drop-path mode).

    Constructor: `(*, rate: float)`.
    """

    def __call__(self, x: Tensor, branch: Callable[[Tensor], Tensor], /) -> Tensor:
        """Return `x + branch(x)`, (b, n, d), the branch of a dropped sample being zero."""
        ...


@runtime_checkable
class Pool(Protocol):
    """Reduces tokens to one vector per image, or to several for a head that takes them.

    Constructor: any of `num_prefix_tokens`, `class_token` and `embed_dim`, as it needs them, then
    options. The options `num_heads`, `mlp_dim`, `norm_eps` and `activation` are those of the
    network's blocks unless they are given.

    Attributes:
        norm_first: whether the final norm acts on the tokens (True) or on the pooled vector.
        tokens: optional: number t of vectors that it gives, where it gives several.
        reads: optional: number of tokens, from the first, that it reads; all if missing or None.
            Without gradients the last block computes only those, and only those come in.
    """

    norm_first: bool

    def __call__(
        self, tokens: Tensor, num_prefix_tokens: int, grid_size: tuple[int, int], /
    ) -> Tensor:
        """Map (b, p + n, d) tokens, or the first `reads` of them, to (b, d) or (b, t, d).

        Args:
            tokens: p prefix tokens, then n patch tokens, row by row.
            num_prefix_tokens: p.
            grid_size: (h, w) patches, h * w being n; another one after `set_input_size`.
        """
        ...


class WeightsAdapter(Protocol):
    """How weights fit a network that is not made of vitzoo's parts; its attribute `foreign`.

    Without one, weights are loaded unchanged or not at all.

    Attributes:
        classifiers: prefixes of the names of classifier tensors, such as `head.`; those that do not
            fit another number of classes become zero.
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
        ...


def call(what: str, part: Any, inputs: tuple[Any, ...], shape: tuple[int, ...] | None) -> Tensor:
    """Call a part that is not vitzoo's; an error, or a result of another shape, names the part.

    Args:
        what: field and registered name of the part, such as `head 'acme/cosine'`.
        part: what is called.
        inputs: its arguments, the first of them a tensor.
        shape: of the result, None where it is not checked.

    Raises:
        PluginError: the part belongs to a plugin, and fails or gives another shape.
        InvalidOption: so does a part that was given as an object.
    """
    try:
        result: Any = part(*inputs)
    except (VitzooError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        problem = f"failed ({type(error).__name__}: {error})"
        raise _blame(what, problem, inputs[0], shape) from error
    several = isinstance(result, tuple) and what.startswith("head")  # as distillation trains them
    wrong = [r for r in (result if several else (result,)) if getattr(r, "shape", None) != shape]
    if shape is not None and wrong:
        got = getattr(wrong[0], "shape", None)
        problem = f"gave {type(wrong[0]).__name__ if got is None else f'shape {tuple(got)}'}"
        raise _blame(what, problem, inputs[0], shape)
    return result


def _blame(what: str, problem: str, given: Tensor, shape: tuple[int, ...] | None) -> VitzooError:
    expected = "" if shape is None else f", expected a result of shape {shape}"
    problem += f" for an input of shape {tuple(getattr(given, 'shape', ()))}{expected}"
    namespace, slash, _ = what.partition("'")[2].partition("/")
    if not slash:
        return InvalidOption(f"{what}, a ready object, {problem}; correct it")
    found = next(iter(entry_points(group="vitzoo", name=namespace)), None)
    owner = f" ({found.dist.name} {found.dist.version})" if found and found.dist else ""
    return PluginError(
        f"{what} of plugin {namespace!r}{owner} {problem}; choose another part, or correct this "
        f"one: `vitzoo plugins check {namespace}` checks it"
    )
