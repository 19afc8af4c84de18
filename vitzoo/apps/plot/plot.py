"""`plot`: figures of what a network has learned, and the arrays behind them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor, nn

from vitzoo.apps.plot import arrays as compute, figures as draw
from vitzoo.apps.plot.arrays import Arrays, Layers, Patch
from vitzoo.apps.plot.figures import Seen
from vitzoo.apps.plot.kinds import check_count, check_kind
from vitzoo.apps.plot.sheet import Title, image_bytes, own_settings
from vitzoo.apps.predict.classes import sample_of
from vitzoo.apps.predict.given import opened
from vitzoo.display import shown_as_png
from vitzoo.errors import InvalidInput, InvalidOption
from vitzoo.files.access import check_figure, writing_to
from vitzoo.images.find import find_images
from vitzoo.images.transform import default_preprocessing, statistics
from vitzoo.keywords import check_keywords, check_progress
from vitzoo.known import transform
from vitzoo.network.device import running_on
from vitzoo.network.inputs import explained
from vitzoo.network.model import VisionTransformer
from vitzoo.network.wrappers import network_of, unwrapped
from vitzoo.plugin.requirements import check_extra
from vitzoo.progress import OnProgress, reporting
from vitzoo.schema.preprocessing import UnreadPreprocessing
from vitzoo.schema.reader import describe
from vitzoo.schema.spec import Spec
from vitzoo.text import escaped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OneImage = str | os.PathLike[str] | Image.Image | Tensor
Images = OneImage | Iterable[OneImage] | None

LONG = 60  # characters of a name in a title
SHA256 = 12  # digits


@dataclass(frozen=True, eq=False)
class Plot:
    """The result of `plot`.

    Args:
        kind: as in `plot`.
        arrays: the numbers that are drawn, by name.
        draw: draws the figure.
    """

    kind: str
    arrays: Arrays
    draw: Callable[[], Figure]

    def __repr__(self) -> str:
        shapes = (f"{name} {'x'.join(map(str, a.shape)) or 1}" for name, a in self.arrays.items())
        return f"Plot({self.kind!r}, {', '.join(shapes)})"

    def _repr_png_(self) -> bytes:
        return image_bytes(self.figure, "png")

    @cached_property
    def figure(self) -> Figure:
        """The matplotlib figure, which is no figure of `pyplot`; a notebook shows it.

        Raises:
            MissingDependency: matplotlib is not installed.
        """
        check_extra("plot", "vitzoo.plot")
        with own_settings():
            figure: Figure = shown_as_png(self.draw())
        return figure

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write the figure to a .png or .svg file, whole or not at all, and return its path.

        The same figure gives the same bytes.

        Args:
            path: of the file.
            force: replace an existing file.

        Raises:
            InvalidOption: the path has another ending, or exists.
            StoreError: the file cannot be written.
        """
        target = check_figure(path, force=force)
        data = image_bytes(self.figure, target.suffix.lower().removeprefix("."))
        with writing_to(target, force=force) as file:
            file.write(data)
        return target


@dataclass(frozen=True)
class Request:
    """What a kind of plot gets.

    Args:
        model: in any mode.
        inputs: name of each image, and a function that returns its input (c, h, w).
        title: of the figure, and the network.
        layers, heads, query: as in `plot`.
    """

    model: VisionTransformer
    inputs: list[tuple[str, Callable[[], Tensor]]]
    title: Title
    layers: Layers
    heads: Sequence[int] | None
    query: Patch | None

    def tensors(self) -> list[Tensor]:
        """Return the inputs, which must have one size."""
        found = [load() for _, load in self.inputs]
        if len(sizes := {tuple(one.shape[1:]) for one in found}) > 1:
            listed = ", ".join(f"{h}x{w}" for h, w in sorted(sizes))
            raise InvalidOption(f"the images of a figure must have one size, got {listed} px")
        return found

    def seen(self, images: Sequence[Tensor]) -> list[Seen]:
        """Return the pixels of inputs."""
        names = (name for name, _ in self.inputs)
        return [Seen(name, _pixels(self.model, x)) for name, x in zip(names, images, strict=True)]

    @property
    def whose(self) -> str:
        """The token or tokens whose attention is shown."""
        if self.query is not None:
            return f"the patch in row {self.query[0]}, column {self.query[1]},"
        return "the class token" if self.model.cls_token is not None else "all patches (mean)"


Made = tuple[Arrays, Callable[[], "Figure"]]


def _filters(request: Request) -> Made:
    found = compute.patch_filters(request.model)
    return found, partial(draw.filters, request.title, found)


def _positions(request: Request) -> Made:
    indices = [0] if request.layers is None else request.model.block_indices(request.layers)
    if len(indices) > 1:
        raise InvalidOption(f"positions are drawn for one block; got layers={request.layers!r}")
    found, what = compute.position_similarity(request.model, indices[0], request.heads)
    return found, partial(draw.positions, request.title, found, what)


def _attention_distance(request: Request) -> Made:
    inputs = (load() for _, load in request.inputs)
    found = compute.attention_distance(request.model, inputs, request.layers)
    count = len(request.inputs)
    return found, partial(draw.attention_distance, request.title, found, count)


def _attention(request: Request) -> Made:
    (image,) = request.tensors()
    how = request.layers, request.heads, request.query
    found = compute.attention_of(request.model, image, *how)
    (seen,) = request.seen([image])
    return found, partial(draw.attention, request.title, found, seen, request.query, request.whose)


def _rollout(request: Request) -> Made:
    images = request.tensors()
    each = [compute.rollout_of(request.model, image, request.query) for image in images]
    found = compute.stacked(each)
    seen = request.seen(images)
    return found, partial(
        draw.rollout, request.title, found["rollout"], seen, request.query, request.whose
    )


def _tokens(request: Request) -> Made:
    images = request.tensors()
    found = compute.token_colours(request.model, images, request.layers)
    return found, partial(draw.tokens, request.title, found, request.seen(images))


MAKE: dict[str, Callable[[Request], Made]] = {
    "filters": _filters,
    "positions": _positions,
    "attention-distance": _attention_distance,
    "attention": _attention,
    "rollout": _rollout,
    "tokens": _tokens,
}


@check_keywords()
def plot(
    kind: str,
    model: str | os.PathLike[str] | Mapping[str, Any] | Spec | nn.Module,
    images: Images = None,
    *,
    layers: Layers = None,
    heads: Sequence[int] | None = None,
    query: Patch | None = None,
    device: torch.device | str | None = None,
    on_progress: OnProgress | None = None,
    progress: bool = True,
) -> Plot:
    """Compute and draw what a network has learned, or what it does with images.

    Kinds, and the names and shapes of their arrays:

    - `filters`: principal components of the kernels that read the pixels. `filters` (k, h, w, c)
      in px, `variance` (k,).
    - `positions`: similarity of the position of each patch with all others. `similarity`
      (h, w, h, w), or `bias` of this shape.
    - `attention-distance`: mean distance between a patch and those that it attends to. `distance`
      (l, heads) in px, `to_prefix` (l, heads), `uniform` (), `layers` (l,).
    - `attention`: attention of the class token to each patch of one image. `attention`
      (l, heads, h, w), `to_prefix` (l, heads, p), `layers` (l,), `heads` (heads,).
    - `rollout`: attention of all blocks, multiplied. `rollout` (b, h, w), `matrix`
      (b, p + n, p + n).
    - `tokens`: first three principal components of the patch tokens, as colours. `colours` and
      `scores` (l, b, h, w, 3), `components` (l, 3, d), `variance` (l, 3), `layers` (l,).

    l is the number of chosen blocks, h w the grid of patches, p the number of prefix tokens, n of
    patch tokens, b of images. The model computes as in evaluation, and keeps its mode.

    Args:
        kind: one of these names.
        model: the network, see docs/create.md#which-network. A variant gets its default weights.
        images: paths of images and folders, Pillow images, or inputs (c, h, w) or (b, c, h, w) of
            the model. `filters` and `positions` use none.
        layers: blocks: their indices, negative from the end; an int n: the last n; None: all
            blocks, for `positions` the first, for `tokens` the final norm.
        heads: indices of heads, for `attention` and `positions`; None: all.
        query: (row, column) of the patch whose attention is drawn, for `attention` and `rollout`.
            None: the class token, or the mean over all patches in a model without one.
        device: of the computation, as for `Predictor`; a model object is copied to another device.
        on_progress: is called with the number of images so far, of all, and the name of the next
            one. An error that it raises ends the call and is raised as it is.
        progress: whether to show a bar on a terminal or in a notebook.

    Returns:
        A plot with `arrays`, `figure` (of matplotlib) and `save(path)`.

    Raises:
        UnknownOption: an argument does not exist.
        InvalidOption: there is no such kind, the model has not what it needs, or a value is not
            possible.
        InvalidInput: the model does not accept an input.
        ImageError: a file is missing or no readable image.

    >>> plot("filters", "vit_digits").arrays["filters"].shape
    (28, 7, 7, 1)
    """
    check_progress("plot", on_progress, progress)
    options = {"layers": layers, "heads": heads, "query": query}
    chosen = check_kind(kind, {name for name, value in options.items() if value is not None})
    network = _network(model, device)
    inputs = _inputs(network, images)
    check_count(kind, len(inputs))
    title = chosen.title, _identity(network)
    with (
        reporting("plot", on_progress, progress) as report,
        running_on(next(network.parameters()).device),
    ):
        counted = _reported(inputs, report)
        arrays, figure = MAKE[kind](Request(network, counted, title, layers, heads, query))
        report(len(inputs), len(inputs), "")
    return Plot(kind, arrays, figure)


def _network(model: Any, device: torch.device | str | None) -> VisionTransformer:
    network = unwrapped(opened(model, device=device))
    if not isinstance(network, VisionTransformer):  # which needs no spec here
        raise InvalidOption(
            f"plot takes a vitzoo.VisionTransformer, got {network_of(network).spec.variant}, a "
            f"{type(network).__name__}; choose a variant of vitzoo's parts"
        )
    sample_of(network)
    return network


def _inputs(model: VisionTransformer, images: Images) -> list[tuple[str, Callable[[], Tensor]]]:
    """Return the name of each image, and a function that returns its input (c, h, w)."""
    if images is None:
        return []
    if isinstance(images, str | os.PathLike | Image.Image | Tensor):
        images = [images]
    if not isinstance(images, Iterable):
        raise InvalidOption(f"images must be a list of images, got {describe(images)}")
    found: list[Path | Image.Image | Tensor] = list(_each(model, images))
    sample = next(model.parameters())
    ready = all(isinstance(one, Tensor) for one in found)
    prepare: Any = None if ready else transform(model)

    def load(one: Path | Image.Image | Tensor) -> Tensor:
        prepared: Tensor = one if isinstance(one, Tensor) else prepare(one)
        return prepared.to(sample.device, sample.dtype)

    names = (
        escaped(one.name) if isinstance(one, Path) else f"image {i}" for i, one in enumerate(found)
    )
    return [(name, partial(load, one)) for name, one in zip(names, found, strict=True)]


def _reported(
    inputs: list[tuple[str, Callable[[], Tensor]]], report: OnProgress
) -> list[tuple[str, Callable[[], Tensor]]]:
    """Return the same inputs; their functions report how many were called before."""

    def load(done: int) -> Tensor:
        name, original = inputs[done]
        report(done, len(inputs), name)
        return original()

    return [(name, partial(load, i)) for i, (name, _) in enumerate(inputs)]


def _each(
    model: VisionTransformer, images: Iterable[OneImage]
) -> Iterator[Path | Image.Image | Tensor]:
    """Yield the files of folders, and the images of batches, one by one."""
    for one in images:
        if isinstance(one, Tensor):
            _check_input(model, one)
            yield from one if one.dim() == 4 else [one]
        elif isinstance(one, str | os.PathLike):
            yield from find_images([Path(one)])
        elif isinstance(one, Image.Image):
            yield one
        else:
            raise InvalidOption(
                "an image must be a path, a Pillow image or an input (c, h, w), got "
                f"{describe(one)}"
            )


def _check_input(model: VisionTransformer, images: Tensor) -> None:
    batch = images[None] if images.dim() == 3 else images
    expected = (model.patch_embed.in_chans, *model.image_size)
    fits = batch.dim() == 4 and batch.is_floating_point() and batch.shape[1] == expected[0]
    if not fits or not (model.dynamic or batch.shape[1:] == expected):
        wanted = None if model.dynamic else model.image_size
        raise InvalidInput(explained(batch, expected[0], wanted))


def _pixels(model: VisionTransformer, image: Tensor) -> compute.Array:
    """Return what the patches of an input (c, h, w) cover, (h, w, 3) in [0, 1]."""
    shown = image.detach().to("cpu", torch.float32)
    stated = model.preprocessing
    row = stated.known if isinstance(stated, UnreadPreprocessing) else stated
    if stated is None and model.spec is not None:
        row = default_preprocessing(model.spec)
    known = row is not None and len(row.mean) == len(shown)
    if row is not None and known:
        mean, std = statistics(row)
        shown = (shown * std + mean) / (255 * (row.rescale_factor or 1 / 255))
        shown = (shown.flip(0) if row.channel_order == "bgr" else shown).clamp(0, 1)
    if len(shown) != 3:  # several channels in grey
        shown = shown.mean(dim=0, keepdim=True).expand(3, -1, -1)
    if not known:
        least, most = shown.min(), shown.max()
        shown = (shown - least) / (most - least).clamp_min(1e-12)
    grid, patch = compute.grid_of(model, image), compute.patch_size(model, image)
    rows, columns = (round(n * side) for n, side in zip(grid, patch, strict=True))
    pixels: compute.Array = shown[:, :rows, :columns].permute(1, 2, 0).numpy()
    return pixels


def _identity(model: VisionTransformer) -> str:
    """Return the network and its weights, for a title."""
    spec, report = model.spec, model.load_report
    name = (spec.variant if spec else None) or "a network without a name"
    merged = f", merge {spec.block.merge}" if spec and spec.block.merge else ""
    if report is None or not report.sha256:
        return f"{name}{merged}, no weights loaded"
    source = report.source
    if not source.startswith(f"{name}:"):  # a file, named without its folders
        source = f"{name}, {source.rpartition('/')[2]}"
    text = escaped(source)
    text = text if len(text) <= LONG else f"{text[: LONG - 3]}..."
    return f"{text}{merged} (sha256 {report.sha256[:SHA256]})"
