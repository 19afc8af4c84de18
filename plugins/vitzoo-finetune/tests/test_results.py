"""The figures of a run."""

from io import BytesIO
from types import SimpleNamespace

import numpy as np
from PIL import Image

from vitzoo_finetune import results
from vitzoo_finetune.targets import Classes


def test_mistakes_are_shown_as_the_network_sees_them(tmp_path, monkeypatch):
    exif = Image.Exif()
    exif[274] = 6  # orientation: the camera was turned
    file = BytesIO()
    Image.new("RGB", (40, 20)).save(file, "JPEG", exif=exif)
    image, figures = SimpleNamespace(name="x.jpg", read=file.getvalue), []
    monkeypatch.setattr(results, "_save", lambda figure, _: figures.append(figure))
    lines = np.array([[0, 2.5, 1], [1, 3.5, 1]])  # index, loss, answer
    target = Classes(("a", "b"), [0, 1])
    assert results.draw_mistakes(tmp_path / "x.png", target, [(image, 0), (image, 1)], lines)
    (shown,) = [axes for axes in figures[0].axes if axes.images]
    assert shown.images[0].get_array().shape == (40, 20, 3)
    assert shown.get_title() == "a\nas b, loss 2.5"
    assert not results.draw_mistakes(
        tmp_path / "x.png", target, [(image, 1)], np.array([[0, 1, 1]])
    )
