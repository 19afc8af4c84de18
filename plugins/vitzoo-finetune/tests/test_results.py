"""The figures of a run."""

from io import BytesIO
from types import SimpleNamespace

import numpy as np
from PIL import Image

from vitzoo_finetune import results
from vitzoo_finetune.targets import Classes


def stored(image, **options):
    """Return an image of a labelled data set."""
    file = BytesIO()
    image.save(file, **options)
    return SimpleNamespace(name="x", read=file.getvalue)


def test_mistakes_are_shown_upright_and_from_black_to_white(tmp_path, monkeypatch):
    exif = Image.Exif()
    exif[274] = 6  # orientation: the camera was turned
    photo = stored(Image.new("RGB", (40, 20)), format="JPEG", exif=exif)
    scan = stored(Image.fromarray(np.array([[256, 4095]], dtype=np.uint16)), format="PNG")
    figures = []
    monkeypatch.setattr(results, "_save", lambda figure, _: figures.append(figure))
    lines = np.array([[0, 2.5, 1], [1, 3.5, 1], [2, 1.5, 1]])  # index, loss, answer
    target = Classes(("a", "b"), [0, 1])
    pairs = [(photo, 0), (photo, 1), (scan, 0)]
    assert results.draw_mistakes(tmp_path / "x.png", target, pairs, lines)
    first, second = [axes for axes in figures[0].axes if axes.images]
    assert first.images[0].get_array().shape == (40, 20, 3)
    assert first.get_title() == "a\nas b, loss 2.5"
    assert second.images[0].get_clim() == (256, 4095)
    assert not results.draw_mistakes(tmp_path / "x.png", target, pairs[1:], np.array([[0, 1, 1]]))
