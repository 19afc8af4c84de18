"""Which files of a folder are data: hidden ones never, those of other endings are counted."""

import errno
import ntpath
import os

import pytest

from helpers import refuses
from vitzoo.errors import ImageError
from vitzoo.images import find
from vitzoo.images.find import (
    LeftOut,
    find_images,
    images_below,
    images_in,
    is_hidden,
    shown_left_out,
)

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
    found = find_images([folder], left_out=left_out)
    assert found == [folder / "a.png", folder / "sub" / "e.jpg"]
    assert left_out == {".heic": 2, "no ending": 1, ".xyz": 1}
    text = shown_left_out(left_out)
    assert text.startswith("4 files are left out")
    assert text.endswith(".heic (2), no ending (1), .xyz (1)")
    assert shown_left_out(LeftOut()) == ""
    assert len(images_in(folder, hidden=True)) == 6


def test_keys_and_their_order_are_the_same_on_windows(monkeypatch):
    walked = [("x\\a", "2.png"), ("x\\a-b", "1.png"), ("x", "a.png"), ("x", "B.png")]
    monkeypatch.setattr(find, "with_slashes", lambda path: path.replace("\\", "/"))
    monkeypatch.setattr(os.path, "join", ntpath.join)
    monkeypatch.setattr(os, "walk", lambda *_, **__: [(place, [], [f]) for place, f in walked])
    assert images_in("x") == ["x/B.png", "x/a-b/1.png", "x/a.png", "x/a/2.png"]


def test_a_subfolder_that_cannot_be_read_is_an_error(folder, monkeypatch):
    scan = os.scandir

    def refuse(path):
        if str(path).endswith("sub"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with refuses(ImageError, "cannot read the folder", "sub: Permission denied"):
        find_images([folder])


def test_a_hidden_file_or_folder_that_is_named_is_data(folder):
    named = [folder / "._a.png", folder / ".ipynb_checkpoints"]
    inside = folder / ".ipynb_checkpoints" / "a.png"
    assert find_images(named) == [folder / "._a.png", inside]
    assert list(images_below(folder / ".ipynb_checkpoints")) == [str(inside)]


def test_a_folder_without_images_names_the_other_files(folder):
    (folder / "a.png").unlink()
    (folder / "sub" / "e.jpg").unlink()
    with refuses(ImageError, ".heic (2)"):
        find_images([folder])
