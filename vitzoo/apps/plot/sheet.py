"""A figure with a title and a grid of labelled tiles, drawn by matplotlib without `pyplot`.

Figures do not depend on the user's settings of matplotlib, and the same figure gives the same
bytes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

DPI = 150
MARGIN = 0.15  # inches, as are all lengths here
LINE, LARGE_LINE = 0.16, 0.22
SMALL = 7.5  # points
LARGEST, SMALLEST, WIDEST, TALLEST = 1.9, 0.4, 11.0, 14.0
GAP = 0.06
LEAST_WIDTH = 5.2  # of a figure, so that its title has room
BAR, BAR_LEAST, BAR_MOST = 0.13, 0.8, 2.4  # width, least and largest height of a colour bar
GREY = "0.35"
Title = tuple[str, str]


@contextmanager
def own_settings() -> Iterator[None]:
    """Use matplotlib's default settings, whatever the user's are."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams["svg.hashsalt"] = "vitzoo"  # otherwise the ids in the file are random
        yield


def new_figure(
    title: Title, caption: str, width: float, height: float, sides: tuple[float, float, float]
) -> tuple[Figure, Axes]:
    """Return a figure with a title, and axes of `width` x `height` inches.

    Args:
        title: what is drawn, and the network.
        caption: a text below the title; it is broken into lines.
        width, height: of the axes.
        sides: left, right and lower margin of the axes.
    """
    from matplotlib.figure import Figure

    left, right, below = sides
    total = max(left + width + right, LEAST_WIDTH)
    notes = [*textwrap.wrap(title[1], int(total * 15)), *textwrap.wrap(caption, int(total * 15))]
    above = MARGIN + LARGE_LINE + LINE * len(notes) + 0.6 * LINE
    tall = above + height + below
    figure = Figure(figsize=(total, tall), dpi=DPI)
    top = (tall - MARGIN) / tall
    figure.text(MARGIN / total, top, title[0], size=10, weight="bold", va="top")
    for i, line in enumerate(notes):
        y = tall - MARGIN - LARGE_LINE - i * LINE
        figure.text(MARGIN / total, y / tall, line, size=8, color=GREY, va="top", parse_math=False)
    axes = figure.add_axes((left / total, below / tall, width / total, height / tall))
    return figure, axes


class Sheet:
    """A figure whose axes contain a grid of tiles, each one unit wide.

    Args:
        title, caption: as in `new_figure`.
        shape: numbers of rows and columns.
        aspect: height of a tile over its width.
        below: whether a line of text stands below each tile.
        left: inches for the labels of the rows.
        above: whether columns have labels.
        right: inches for a colour bar.
    """

    def __init__(
        self,
        title: Title,
        caption: str,
        shape: tuple[int, int],
        aspect: float,
        *,
        below: bool = False,
        left: float = 0.0,
        above: bool = False,
        right: float = 0.0,
    ) -> None:
        rows, columns = shape
        tile = min(LARGEST, WIDEST / columns, TALLEST / (rows * aspect))
        self.tile = max(tile, SMALLEST)
        self.size = min(SMALL, 13 * self.tile)  # points
        line = 1.6 * self.size / 72 / self.tile
        gap = GAP / self.tile
        self.step = 1 + gap, aspect + (line if below else 0) + gap
        self.aspect = aspect
        head = line if above else 0.0
        self.head = head * self.tile
        width = columns * self.step[0] - gap
        height = rows * self.step[1] - gap + head
        short = BAR_LEAST + 0.1 - height * self.tile + head * self.tile if right else 0.0
        sides = MARGIN + left, MARGIN + right, max(MARGIN, short)
        self.figure, self.axes = new_figure(
            title, caption, width * self.tile, height * self.tile, sides
        )
        self.axes.set_xlim(0, width)
        self.axes.set_ylim(height - head, -head)
        self.axes.set_axis_off()

    def image(self, row: int, column: int, pixels: Any, **options: Any) -> None:
        """Draw an image (h, w) or (h, w, 3) as a tile; `options` are those of `imshow`."""
        x, y = self._corner(row, column)
        options = {"interpolation": "nearest", "aspect": "auto"} | options
        self.axes.imshow(pixels, extent=(x, x + 1, y + self.aspect, y), **options)

    def below(self, row: int, column: int, text: str) -> None:
        """Write a line below a tile."""
        x, y = self._corner(row, column)
        self._text(x + 0.5, y + self.aspect + 0.2 * self.size / 72 / self.tile, text, "top")

    def column(self, column: int, text: str) -> None:
        """Write a label above a column."""
        self._text(
            self._corner(0, column)[0] + 0.5, -0.3 * self.size / 72 / self.tile, text, "bottom"
        )

    def row(self, row: int, text: str) -> None:
        """Write a label to the left of a row."""
        y = self._corner(row, 0)[1] + self.aspect / 2
        self._text(-0.06 / self.tile, y, text, "center", ha="right")

    def outline(self, row: int, column: int, patch: Sequence[int], grid: Sequence[int]) -> None:
        """Draw a frame around a patch (row, column) of a tile with a grid (h, w)."""
        from matplotlib.patches import Rectangle

        x, y = self._corner(row, column)
        width, height = 1 / grid[1], self.aspect / grid[0]
        place = x + patch[1] * width, y + patch[0] * height
        for color, wide in (("black", 2.4), ("white", 1.0)):
            frame = Rectangle(place, width, height, fill=False, edgecolor=color, linewidth=wide)
            self.axes.add_patch(frame)

    def bar(self, cmap: str, ends: tuple[str, str]) -> None:
        """Draw a colour bar to the right of the tiles, with texts for 0 and 1."""
        from matplotlib.colors import Normalize

        bar = colour_bar(self.figure, self.axes, Normalize(0, 1), cmap, down=self.head)
        bar.set_ticks([0, 1], labels=list(ends))

    def _corner(self, row: int, column: int) -> tuple[float, float]:
        return column * self.step[0], row * self.step[1]

    def _text(self, x: float, y: float, text: str, va: Any, ha: Any = "center") -> None:
        self.axes.text(x, y, text, size=self.size, va=va, ha=ha, parse_math=False, clip_on=False)


def colour_bar(
    figure: Figure, axes: Axes, norm: Normalize, cmap: str, label: str = "", down: float = 0.0
) -> Colorbar:
    """Draw a colour bar to the right of the axes, `down` inches below their upper end."""
    from matplotlib.cm import ScalarMappable

    box = axes.get_position()
    wide, tall = figure.get_size_inches()
    height = min(max(box.height * tall - down, BAR_LEAST), BAR_MOST) / tall
    place = (box.x1 + 0.12 / wide, box.y1 - down / tall - height, BAR / wide, height)
    bar = figure.colorbar(ScalarMappable(norm, cmap), cax=figure.add_axes(place))
    bar.set_label(label, size=SMALL)
    bar.ax.tick_params(labelsize=SMALL)
    return bar


def image_bytes(figure: Figure, form: str) -> bytes:
    """Return the bytes of a figure as `png` or `svg`, without a date."""
    buffer = BytesIO()
    metadata: dict[str, Any] = {"png": {"Software": None}, "svg": {"Date": None}}[form]
    with own_settings():
        figure.savefig(buffer, format=form, dpi=DPI, metadata=metadata)
    return buffer.getvalue()
