"""One figure for each kind of plot, drawn from its arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitzoo.apps.plot.sheet import (
    BAR_LEAST,
    DPI,
    MARGIN,
    SMALL,
    Sheet,
    Title,
    colour_bar,
    new_figure,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]
HEAT, SIMILARITY = "inferno", "viridis"  # readable with colour-blindness, and in grey
SHARE = 0.65  # of the heat map in a pixel
BLUE, ORANGE = "#0072B2", "#D55E00"  # Okabe and Ito, for people with colour-blindness
LABELS = 16  # most labels of an axis
ROOM = 0.22  # inches that a label needs


@dataclass(frozen=True)
class Seen:
    """What the network saw of an image.

    Args:
        name: of the image, for labels.
        pixels: (h, w, 3) in [0, 1]; the part that the patches cover.
    """

    name: str
    pixels: Array


def filters(title: Title, arrays: dict[str, Array]) -> Figure:
    """Draw the principal components of the kernels, each between its own extremes around grey."""
    found, shares = arrays["filters"], arrays["variance"]
    count, h, w, c = found.shape
    columns = min(7, count)
    caption = (
        "Principal components of the kernels that read the pixels. Grey is 0; each component has "
        "its own scale. Below it: its number, and its share of the variance."
    )
    if c not in (1, 3):  # the channels side by side, in grey
        found = found.transpose(0, 1, 3, 2).reshape(count, h, c * w, 1)
        caption += f" The {c} channels stand side by side."
    sheet = Sheet(
        title, caption, (-(-count // columns), columns), found.shape[1] / found.shape[2], below=True
    )
    for i, component in enumerate(found):
        most = np.abs(component).max() or 1.0
        row, column = divmod(i, columns)
        sheet.image(row, column, _rgb(0.5 + component / (2 * most)))
        sheet.below(row, column, f"{i + 1}: {_percent(shares[i])}")
    return sheet.figure


def positions(title: Title, arrays: dict[str, Array], what: str) -> Figure:
    """Draw one map for each patch: its similarity with every patch."""
    from matplotlib.colors import Normalize

    ((name, values),) = arrays.items()
    h, w = values.shape[:2]
    caption = f"One map for each patch, at its place in the image: {what}."
    least = np.floor(4 * float(values.min())) / 4
    norm, label = Normalize(min(max(least, -1.0), 0.75), 1), "cosine similarity"
    if name == "bias":
        limit = float(np.abs(values).max()) or 1.0
        norm, label = Normalize(-limit, limit), "bias"
    fine = max(1, round(14 / max(h, w)))  # pixels for each value, so that gaps of one are narrow
    rows, columns = h * fine + 1, w * fine + 1
    maps = values.repeat(fine, axis=2).repeat(fine, axis=3)
    maps = np.pad(maps, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    joined = maps.swapaxes(1, 2).reshape(h * rows, w * columns)[:-1, :-1]
    # A whole number of pixels for each value, as long as the figure stays printable.
    most = max(joined.shape)
    pixels = float(max(1, min(int(8.0 * DPI / most), 12)))
    inch = min(pixels / DPI, 16.0 / most)
    smooth = "nearest" if inch == pixels / DPI else "antialiased"
    tall, wide = joined.shape[0] * inch, joined.shape[1] * inch
    sides = MARGIN + 0.45, MARGIN + 0.75, max(MARGIN + 0.35, BAR_LEAST + 0.2 - tall)
    figure, axes = new_figure(title, caption, wide, tall, sides)
    axes.imshow(joined, norm=norm, cmap=SIMILARITY, interpolation=smooth, aspect="auto")
    for axis, count, length, text in (
        (axes.xaxis, w, columns, "patch column"),
        (axes.yaxis, h, rows, "patch row"),
    ):
        step = max(-(-count // LABELS), math.ceil(ROOM / (length * inch)))
        axis.set_ticks(
            [i * length + length / 2 - 1 for i in range(0, count, step)],
            [str(i) for i in range(0, count, step)],
        )
        axis.set_tick_params(length=0, labelsize=SMALL)
        if count * length * inch > BAR_LEAST:
            axis.set_label_text(text, size=SMALL)
    axes.spines[:].set_visible(False)
    colour_bar(figure, axes, norm, SIMILARITY, label)
    return figure


def attention_distance(title: Title, arrays: dict[str, Array], images: int) -> Figure:
    """Draw one dot for each head over the index of its block."""
    distance, blocks = arrays["distance"], arrays["layers"]
    count, heads = distance.shape
    caption = (
        "Distance from a patch to the patches that it attends to, weighted by attention; mean over "
        f"patches and {images} image{'s' if images > 1 else ''}. Prefix tokens are left out."
    )
    width = min(max(4.4, 0.28 * count), 9.0)
    figure, axes = new_figure(title, caption, width, 3.0, (0.65, MARGIN, 0.75))
    x = np.arange(count)
    axes.axhline(
        float(arrays["uniform"]),
        color=ORANGE,
        linestyle="--",
        linewidth=1,
        label="equal attention to all patches",
    )
    axes.plot(
        np.repeat(x, heads), distance.ravel(), "o", markersize=4, alpha=0.6, color=BLUE,
        markeredgewidth=0, label=f"each of {heads} heads" if heads > 1 else "the head",
    )  # fmt: skip
    if heads > 1 and count > 1:
        axes.plot(x, distance.mean(axis=1), color="black", linewidth=1, label="mean over heads")
    shown = x[:: -(-count // 24)]
    axes.set_xticks(shown, [str(blocks[i]) for i in shown])
    axes.set_xlim(-0.5, count - 0.5)
    top = max(float(distance.max()), float(arrays["uniform"]))
    axes.set_ylim(0, 1.08 * top or 1.0)
    axes.set_xlabel("block", size=SMALL + 1)
    axes.set_ylabel("mean attention distance (px)", size=SMALL + 1)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(
        fontsize=SMALL, frameon=False, ncols=3, columnspacing=1.2, handlelength=1.5,
        loc="upper center", bbox_to_anchor=(0.5, -0.4 / 3.0),
    )  # fmt: skip
    return figure


def attention(title: Title, arrays: dict[str, Array], seen: Seen, query: Any, whose: str) -> Figure:
    """Draw the image, and the attention of each block and head over it."""
    maps, blocks, heads = arrays["attention"], arrays["layers"], arrays["heads"]
    rows, columns = maps.shape[:2]
    caption = (
        f"Attention of {whose} to each patch of {seen.name}. The colours of a map end at its "
        "maximum, which stands below it."
    )
    sheet = Sheet(
        title, caption, (rows, columns + 1), seen.pixels.shape[0] / seen.pixels.shape[1],
        below=True, above=True, left=0.6, right=0.85,
    )  # fmt: skip
    sheet.image(0, 0, seen.pixels, interpolation="antialiased")
    sheet.column(0, "image")
    for i, block in enumerate(blocks):
        sheet.row(i, f"block {block}")
        for j, head in enumerate(heads):
            if not i:
                sheet.column(j + 1, f"head {head}")
            most = float(maps[i, j].max())
            _heat(sheet, (i, j + 1), seen, maps[i, j], (0.0, most))
            sheet.below(i, j + 1, _percent(most))
    if query is not None:
        sheet.outline(0, 0, query, maps.shape[2:])
    sheet.bar(HEAT, ("0", "maximum"))
    return sheet.figure


def rollout(
    title: Title, maps: Iterable[Array], seen: Sequence[Seen], query: Any, whose: str
) -> Figure:
    """Draw each image, and the rollout over it."""
    caption = (
        f"Attention of all blocks, multiplied: from {whose} to each patch. The colours of a map go "
        "from its minimum to its maximum, which stand below it."
    )
    sheet, places = _pairs(title, caption, seen, right=0.85)
    for values, one, (row, column) in zip(maps, seen, places, strict=True):
        least, most = float(values.min()), float(values.max())
        _heat(sheet, (row, column + 1), one, values, (least, most))
        sheet.below(row, column + 1, f"{_percent(least)} to {_percent(most)}")
        if query is not None:
            sheet.outline(row, column, query, values.shape)
    sheet.bar(HEAT, ("minimum", "maximum"))
    return sheet.figure


def tokens(title: Title, arrays: dict[str, Array], seen: Sequence[Seen]) -> Figure:
    """Draw each image, and the colours of its patch tokens, one column for each block."""
    names = [f"block {layer}" for layer in arrays["layers"]] or ["final norm"]
    caption = (
        "First three principal components of the patch tokens as red, green and blue, each scaled "
        "over all images. In brackets: their share of the variance."
    )
    labels = [
        f"{name} ({_percent(shares.sum())})"
        for name, shares in zip(names, arrays["variance"], strict=True)
    ]
    sheet, places = _pairs(title, caption, seen, labels=labels)
    several = len({column for _, column in places}) > 1  # images side by side
    for i, (row, column) in enumerate(places):
        for j in range(len(names)):
            sheet.image(row, column + 1 + j, arrays["colours"][j, i])
            if several:
                sheet.below(row, column + 1 + j, labels[j])
    return sheet.figure


def _pairs(
    title: Title, caption: str, seen: Sequence[Seen], labels: Sequence[str] = (), right: float = 0.0
) -> tuple[Sheet, list[tuple[int, int]]]:
    """Return a sheet with the images, and the place of each; its maps follow to the right.

    The labels of maps stand above their columns, unless there are images side by side.
    """
    maps = max(1, len(labels))
    across = max(1, min(len(seen), 8 // (maps + 1), 1 if len(seen) <= 3 else 8))
    rows, above = -(-len(seen) // across), across == 1 and bool(labels)
    shape = rows, across * (maps + 1)
    aspect = seen[0].pixels.shape[0] / seen[0].pixels.shape[1]
    sheet = Sheet(title, caption, shape, aspect, below=True, above=above, right=right)
    places = [(i // across, i % across * (maps + 1)) for i in range(len(seen))]
    for one, place in zip(seen, places, strict=True):
        sheet.image(*place, one.pixels, interpolation="antialiased")
        sheet.below(*place, _short(one.name, int(sheet.tile * 72 / (0.55 * sheet.size))))
        if above and not place[0]:
            for j, label in enumerate(labels, 1):
                sheet.column(place[1] + j, label)
    return sheet, places


def _heat(
    sheet: Sheet, place: tuple[int, int], seen: Seen, values: Array, limits: tuple[float, float]
) -> None:
    """Draw a heat map over the image in grey."""
    grey = seen.pixels @ np.array([0.299, 0.587, 0.114])
    sheet.image(*place, grey, cmap="gray", vmin=0, vmax=1, interpolation="antialiased")
    least, most = limits
    scaled = (values - least) / (most - least if most > least else 1.0)
    sheet.image(*place, scaled, cmap=HEAT, vmin=0, vmax=1, alpha=SHARE)


def _rgb(values: Array) -> Array:
    """Return (h, w, 3) for (h, w, 1) or (h, w, 3)."""
    return np.repeat(values, 3, axis=2) if values.shape[2] == 1 else values


def _percent(share: float) -> str:
    value = 100 * share
    if 0 < value < 0.001:
        return "< 0.001 %"
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.2g} %"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
