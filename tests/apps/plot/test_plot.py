"""`plot`: kinds and their arguments, pictures with legible texts, and files."""

from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import vitzoo
from helpers import SPEC, fill, randn, refuses
from tables import cases
from vitzoo.apps.plot import figures
from vitzoo.apps.plot.kinds import KINDS
from vitzoo.errors import (
    ImageError,
    InvalidInput,
    InvalidOption,
    MissingDependency,
    StoreError,
    UnknownOption,
)

DIGITS = Path(__file__).parents[3] / "docs" / "examples" / "digits"
SEVEN = DIGITS / "digit_7_scan_0081.png"
INPUT = {"attention-distance": DIGITS, "attention": SEVEN, "rollout": [SEVEN], "tokens": [SEVEN]}


@pytest.fixture(scope="module")
def model():
    """The bundled model, whose weights are real."""
    return vitzoo.create("vit_digits", pretrained=True)


def check_texts(figure):
    """Every text lies inside the figure, is at least 5 points high, and overlaps no other."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for image in figure.findobj(mpl.image.AxesImage):
        image.set_visible(False)  # images take nearly all of the time
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    width, height = figure.bbox.size
    texts = [t for t in figure.findobj(mpl.text.Text) if t.get_text().strip() and t.get_visible()]
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        least, most = sorted(axis.get_view_interval())
        beyond = {t.label1 for t in axis.get_major_ticks() if not least <= t.get_loc() <= most}
        texts = [text for text in texts if text not in beyond]  # they are not drawn
    boxes = []
    for text in texts:
        box = text.get_window_extent(renderer)
        assert text.get_size() >= 5, text
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, text  # noqa: PT018
        boxes.append((text, box.shrunk(0.98, 0.98)))
    assert len(boxes) >= 4
    for i, (text, box) in enumerate(boxes):
        over = [other for other, another in boxes[:i] if box.overlaps(another)]
        assert not over, (text, over)
    return [text.get_text() for text in texts]


@pytest.mark.workflows
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_draws_a_figure_that_names_network_and_weights(model, kind):
    plot = vitzoo.plot(kind, model, INPUT.get(kind))
    texts = check_texts(plot.figure)
    assert KINDS[kind].title in texts
    assert "vit_digits:digits_v1 (sha256 d6c41c2e934d)" in texts
    assert all(array.dtype.kind in "if" for array in plot.arrays.values())
    assert plot.figure.canvas.manager is None  # `pyplot` does not hold it


@pytest.mark.one_in(3)
@pytest.mark.workflows
@pytest.mark.parametrize(("kind", "form"), [*zip(KINDS, ["png", "svg"] * 3, strict=True)])
def test_the_same_call_gives_the_same_file(model, kind, form, tmp_path):
    import matplotlib as mpl

    files = []
    for name in ("one", "two"):
        if name == "two":
            mpl.rcParams.update({"font.size": 20, "savefig.dpi": 30, "axes.facecolor": "red"})
        try:
            plot = vitzoo.plot(kind, model, INPUT.get(kind))
            files.append(plot.save(tmp_path / f"{name}.{form}").read_bytes())
        finally:
            mpl.rcdefaults()
    assert files[0] == files[1]
    assert files[0][:5] == {"png": b"\x89PNG\r", "svg": b"<?xml"}[form]
    assert b"<dc:date>" not in files[0]


def test_the_repr_is_one_line_without_numbers_and_a_notebook_shows_the_figure(model, tmp_path):
    plot = vitzoo.plot("attention", model, SEVEN, layers=[-1])
    shapes = "layers 1, heads 4, attention 1x4x4x4, to_prefix 1x4x1"
    assert repr(plot) == f"Plot('attention', {shapes})"
    assert plot._repr_png_() == plot.save(tmp_path / "a.png").read_bytes()


@pytest.mark.parametrize(("count", "times"), [(1, 1), (3, 1), (10, 10)])
def test_each_map_of_tokens_beside_another_image_has_its_label(model, count, times):
    texts = check_texts(vitzoo.plot("tokens", model, torch.rand(count, 1, 28, 28)).figure)
    assert sum(text.startswith("final norm (") for text in texts) == times


def test_a_figure_of_a_model_without_weights_says_so():
    texts = check_texts(vitzoo.plot("filters", vitzoo.create(SPEC)).figure)
    assert "a network without a name, no weights loaded" in texts


def test_a_figure_of_a_network_with_merged_tokens_says_so():
    merged = {"block": {"merge": 3}}
    plot = vitzoo.plot("filters", vitzoo.create("vit_digits", pretrained=True, **merged))
    assert "vit_digits:digits_v1, merge 3 (sha256 d6c41c2e934d)" in check_texts(plot.figure)
    plot = vitzoo.plot("filters", vitzoo.create(SPEC, **merged))
    assert "a network without a name, merge 3, no weights loaded" in check_texts(plot.figure)


def test_names_of_files_are_shown_as_they_are_and_not_as_formulas(model, tmp_path):
    saved = vitzoo.save(model, tmp_path / "$\\frac$ ü.safetensors")
    (tmp_path / "$\\frac$ ü.png").write_bytes(SEVEN.read_bytes())
    plot = vitzoo.plot("rollout", vitzoo.create(saved), tmp_path / "$\\frac$ ü.png")
    texts = check_texts(plot.figure)
    assert "$\\\\frac$ \\xfc.png" in texts
    (title,) = (text for text in texts if "sha256" in text)
    assert title.startswith("vit_digits, $\\\\frac$ \\xfc.safetensors (sha256 ")


def seen(name, height, width):
    return figures.Seen(name, np.random.default_rng(0).random((height, width, 3)))


TITLE = ("Kind", "a network, no weights loaded")


@pytest.mark.workflows
@pytest.mark.parametrize(
    ("layers", "heads", "grid"), [(1, 1, (1, 1)), (2, 16, (3, 9)), (12, 3, (14, 5))]
)
def test_texts_of_attention_figures_of_any_size_do_not_overlap(layers, heads, grid):
    check_attention(layers, heads, grid)


@pytest.mark.one_in(3)
@pytest.mark.workflows
@pytest.mark.parametrize(("layers", "heads"), [(40, 24), (48, 1), (1, 32)])
def test_texts_of_large_attention_figures_do_not_overlap(layers, heads):
    check_attention(layers, heads, (4, 4))


def check_attention(layers, heads, grid):
    rng = np.random.default_rng(1)
    found = {
        "layers": np.arange(layers),
        "heads": np.arange(heads),
        "attention": rng.random((layers, heads, *grid)) * rng.random((layers, heads, 1, 1)) ** 9,
        "to_prefix": np.zeros((layers, heads, 1)),
    }
    one = seen("a" * 80, 8 * grid[0], 8 * grid[1])
    texts = check_texts(figures.attention(TITLE, found, one, (0, 0), "the patch"))
    assert {f"block {layers - 1}", f"head {heads - 1}", "image", "maximum"} <= set(texts)
    distance = {"layers": np.arange(layers), "distance": rng.random((layers, heads)) * 224,
                "uniform": np.array(116.0)}  # fmt: skip
    texts = check_texts(figures.attention_distance(TITLE, distance, 1))
    assert {"block", "mean attention distance (px)", "0"} <= set(texts)


@pytest.mark.parametrize(
    ("layers", "heads", "labels"),
    [
        (2, 1, ["the head"]),
        (1, 2, ["each of 2 heads"]),
        (2, 2, ["each of 2 heads", "mean over heads"]),
    ],
)
def test_dots_and_lines_of_attention_distance_are_named(layers, heads, labels):
    found = {"layers": np.arange(layers), "distance": np.ones((layers, heads)), "uniform": 2.0}
    figure = figures.attention_distance(TITLE, found, 1)
    _, named = figure.axes[0].get_legend_handles_labels()
    assert named == ["equal attention to all patches", *labels]


@pytest.mark.workflows
@pytest.mark.parametrize("grid", [(1, 2), (2, 30), (16, 16)])
def test_texts_of_positions_do_not_overlap(grid):
    values = np.random.default_rng(2).random((*grid, *grid)) * 2 - 1
    texts = check_texts(figures.positions(TITLE, {"similarity": values}, "vectors"))
    assert {"cosine similarity", "patch column"} <= set(texts)
    texts = check_texts(figures.positions(TITLE, {"bias": values * 0}, "bias"))
    assert "bias" in texts


@pytest.mark.workflows
@pytest.mark.parametrize("grid", [(2, 3), (14, 14), (24, 12), (37, 37)])
def test_every_map_of_positions_is_framed_by_white(grid):
    """A line of one pixel would be lost if a value took no whole number of pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    (height, width), values = grid, np.zeros((*grid, *grid))
    figure = figures.positions(TITLE, {"similarity": values}, "vectors")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = figure.axes[0].get_window_extent()
    pixels = np.asarray(canvas.buffer_rgba())[::-1, :, :3].min(axis=2)
    middle = pixels[round(box.y0 + box.height / height / 2), round(box.x0) + 1 : round(box.x1) - 1]
    assert (np.diff((middle == 255).astype(int)) == 1).sum() == width - 1
    middle = pixels[round(box.y0) + 1 : round(box.y1) - 1, round(box.x0 + box.width / width / 2)]
    assert (np.diff((middle == 255).astype(int)) == 1).sum() == height - 1


@pytest.mark.workflows
@pytest.mark.parametrize(("count", "shape"), [(1, (7, 7, 1)), (28, (16, 8, 3)), (9, (2, 2, 5))])
def test_texts_of_filters_do_not_overlap(count, shape):
    found = {"filters": np.zeros((count, *shape)), "variance": np.full(count, 1 / count)}
    check_texts(figures.filters(TITLE, found))


@pytest.mark.workflows
@pytest.mark.parametrize("count", [1, 2, 5, 32])
def test_texts_of_figures_of_several_images_do_not_overlap(count):
    several = [seen("a name that is longer than its tile.png", 32, 96) for _ in range(count)]
    maps = [np.random.default_rng(3).random((2, 6)) for _ in several]
    texts = check_texts(figures.rollout(TITLE, maps, several, (1, 5), "the patch"))
    assert {"minimum", "maximum"} <= set(texts)
    found = {"layers": np.arange(12), "variance": np.ones((12, 3)) / 4,
             "colours": np.zeros((12, count, 2, 6, 3))}  # fmt: skip
    texts = check_texts(figures.tokens(TITLE, found, several))
    assert "block 11 (75 %)" in texts


@pytest.mark.slow
@pytest.mark.parametrize("in_chans", [1, 2, 3])
def test_images_are_tensors_paths_or_pillow_images(in_chans, tmp_path):
    model = fill(vitzoo.create(SPEC, in_chans=in_chans))
    model.preprocessing = vitzoo.Preprocessing(mean=(0.5,) * in_chans, std=(0.5,) * in_chans)
    batch = randn(2, in_chans, 32, 32).clamp(-1, 1)
    plot = vitzoo.plot("tokens", model, batch)
    assert plot.arrays["colours"].shape == (1, 2, 4, 4, 3)
    check_texts(plot.figure)
    single = vitzoo.plot("attention", model, batch[0])
    assert single.arrays["attention"].shape == (2, 2, 4, 4)
    if in_chans == 2:
        with refuses(InvalidOption, "1 or 3 channels", 2):
            vitzoo.plot("attention", model, SEVEN)
        return
    image = Image.open(SEVEN).resize((32, 32))
    image.save(tmp_path / "x.png")
    for given in (image, tmp_path / "x.png", [str(tmp_path / "x.png")], tmp_path):
        found = vitzoo.plot("attention", model, given).arrays["attention"]
        expected = vitzoo.plot("attention", model, vitzoo.transform(model)(image)).arrays
        assert (found == expected["attention"]).all()


def test_the_pixels_are_those_that_the_network_saw(model, other_defaults):
    with other_defaults:
        plot = vitzoo.plot("rollout", model, [SEVEN])
    (shown,) = (args[1] for args in [plot.draw.args[1:3]])
    pixels = shown[0].pixels
    assert pixels.dtype == np.float32
    expected = vitzoo.transform(model)(SEVEN)[0] * 0.35 + 0.3
    np.testing.assert_allclose(pixels, expected[..., None].expand(28, 28, 3), atol=1e-6)


@pytest.mark.parametrize("stated", [True, False])
def test_pixels_whose_preprocessing_does_not_fit_span_black_to_white(stated):
    model = fill(vitzoo.create(SPEC, in_chans=2))
    model.preprocessing = vitzoo.Preprocessing() if stated else None  # of three channels
    if not stated:
        model.spec = None
    plot = vitzoo.plot("rollout", model, randn(2, 32, 32) * 9)
    ((shown,),) = (args[1] for args in [plot.draw.args[1:3]])
    assert (shown.pixels.min(), shown.pixels.max()) == (0, 1)


def test_arrays_need_no_matplotlib_and_figures_name_it(model, monkeypatch, tmp_path):
    def version(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    plot = vitzoo.plot("rollout", model, SEVEN)
    assert plot.arrays["rollout"].shape == (1, 4, 4)
    for call in (lambda: plot.figure, lambda: plot.save(tmp_path / "x.png")):
        with refuses(MissingDependency, "vitzoo.plot needs matplotlib"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_files_are_written_whole_and_replaced_only_by_force(model, tmp_path, monkeypatch):
    plot = vitzoo.plot("tokens", model, SEVEN)
    target = plot.save(str(tmp_path / "x.PNG"))
    with Image.open(target) as image:
        assert image.format == "PNG"
    with refuses(InvalidOption, "x.PNG", "force=True"):
        plot.save(target)
    before = target.read_bytes()
    target.write_bytes(b"old")
    plot.save(target, force=True)
    assert target.read_bytes() == before
    for name, parts in {
        "x.pdf": [".png or .svg", "'x.pdf'"], "x": [".png or .svg", "'x'"],
        "none/x.png": ["no folder", "none"],
    }.items():  # fmt: skip
        with refuses(InvalidOption, *parts):
            plot.save(tmp_path / name)

    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vitzoo.files.platform.files.sync", full)
    with refuses(StoreError, "No space left on device", "make room"):
        plot.save(target, force=True)
    assert target.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x.PNG"]


@cases(
    ("kind", "images", "options", "error", "parts"),
    [
        ("filter", None, {}, InvalidOption, ["'filter'", "did you mean 'filters'"]),
        (3, None, {}, InvalidOption, ["3", "filters, positions"]),
        ("filters", SEVEN, {}, InvalidOption, ["no images", "got 1", "images="]),
        ("filters", None, {"layers": 1}, InvalidOption, ["layers", "no options"]),
        ("tokens", SEVEN, {"query": (0, 0)}, InvalidOption, ["query", "uses layers"]),
        ("positions", None, {"layers": [0, 1]}, InvalidOption, ["one block", "layers=[0, 1]"]),
        ("attention", None, {}, InvalidOption, ["one image", "got 0", "images="]),
        ("attention", DIGITS, {}, InvalidOption, ["one image", "got 10"]),
        ("rollout", [SEVEN] * 33, {}, InvalidOption, ["1 to 32 images", "got 33"]),
        ("attention", SEVEN, {"layers": [4]}, InvalidOption, ["blocks 0 to 3", "[4]"]),
        ("attention", SEVEN, {"layers": "0"}, InvalidOption, ["blocks 0 to 3", "'0'"]),
        ("attention", SEVEN, {"heads": [4]}, InvalidOption, ["from 0 to 3", "[4]"]),
        ("attention", SEVEN, {"head": 1}, UnknownOption, ["'head'", "did you mean 'heads'"]),
        ("attention", 5, {}, InvalidOption, ["list of images", "5"]),
        ("attention", [5], {}, InvalidOption, ["a path, a Pillow image or an input", "5"]),
        ("attention", "none.png", {}, ImageError, ["no file none.png"]),
        ("attention", torch.zeros(1, 14, 14), {}, InvalidInput, ["(b, 1, 28, 28)", "14"]),
        ("attention", torch.zeros(28, 28), {}, InvalidInput, ["(b, 1, 28, 28)", "(28, 28)"]),
        ("attention", torch.zeros(1, 28, 28).int(), {}, InvalidInput, ["torch.int32"]),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_refused(model, kind, images, options, error, parts):
    with refuses(error, *parts):
        vitzoo.plot(kind, model, images, **options)


def test_images_of_one_figure_have_one_size():
    model = vitzoo.create(SPEC, dynamic=True)
    with refuses(InvalidOption, "32x32, 40x32 px"):
        vitzoo.plot("tokens", model, [randn(3, 40, 32), randn(3, 32, 32)])


def test_a_model_without_attention_maps_is_refused():
    other = nn.Linear(1, 1)
    other.spec = vitzoo.Spec(variant="timm/acme")
    with refuses(InvalidOption, "vitzoo.VisionTransformer", "timm/acme, a Linear", "parts"):
        vitzoo.plot("tokens", other, SEVEN)
    with refuses(InvalidOption, "'meta'", "another device"):
        vitzoo.plot("filters", vitzoo.create(SPEC, device="meta"))
