"""Which files of a folder are data: hidden ones never, those of other endings are counted."""

import os
from pathlib import Path

import pytest

from helpers import refuses
from vitzoo.errors import ImageError
from vitzoo.images.find import LeftOut, find_images, images_below, is_hidden, shown_left_out

HIDDEN = [".DS_Store", "._x.png", ".x.png", "__MACOSX", "@eaDir", ".ipynb_checkpoints", "#recycle"]
HIDDEN += ["$RECYCLE.BIN", "System Volume Information", "Thumbs.db", ".AppleDouble", "..png"]
DATA = ["x.png", "_x.png", "x.", "..", ".", "@x.png", "eaDir", "x.DS_Store", "MACOSX"]


def test_names():
    assert [name for name in HIDDEN if not is_hidden(name)] == []
    assert [name for name in DATA if is_hidden(name)] == []


@pytest.fixture
def folder(tmp_path):
    names = ["a.png", "b.HEIC", "c.heic", "d", "._a.png", ".ipynb_checkpoints/a.png", ".DS_Store"]
    names += ["sub/e.jpg", "sub/@eaDir/e.jpg", "sub/__MACOSX/._e.jpg", "sub/f.xyz", "@eaDir/g.heic"]
    for name in names:
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return tmp_path / "photos"


def test_a_folder(folder):
    left_out = LeftOut()
    assert [path.name for path in find_images([folder], left_out=left_out)] == ["a.png"]
    assert left_out == {".heic": 2, "no ending": 1}
    text = shown_left_out(left_out)
    assert text.startswith("3 files are left out")
    assert text.endswith(".heic (2), no ending (1)")
    assert shown_left_out(LeftOut()) == ""


def test_a_folder_with_its_subfolders(folder):
    left_out = LeftOut()
    found = [os.path.relpath(path, folder) for path in images_below(folder, left_out=left_out)]
    assert sorted(found) == ["a.png", str(Path("sub", "e.jpg"))]
    assert left_out == {".heic": 2, "no ending": 1, ".xyz": 1}
    assert len(list(images_below(folder, hidden=True))) == 6


def test_a_hidden_file_or_folder_that_is_named_is_data(folder):
    named = [folder / "._a.png", folder / ".ipynb_checkpoints"]
    inside = folder / ".ipynb_checkpoints" / "a.png"
    assert find_images(named) == [folder / "._a.png", inside]
    assert list(images_below(folder / ".ipynb_checkpoints")) == [str(inside)]


def test_a_folder_without_images_names_the_other_files(folder):
    (folder / "a.png").unlink()
    with refuses(ImageError, ".heic (2)"):
        find_images([folder])
