"""Sources of `embed`: every image once, in a fixed order; unreadable sources are errors at once."""

from __future__ import annotations

import os

import pytest

from helpers import message, refuses, says
from vitzoo.errors import ImageError, InvalidOption
from vitzoo.inference.embedding import sources
from vitzoo.inference.embedding.sources import expand_braces, find_pieces, sha256_of, slice_of


def read(pieces):
    """Return the keys and the bytes, or the errors, of all inputs."""
    found = []
    for piece in pieces:
        for item in piece.items():
            try:
                found.append((item.key, item.load()))
            except ImageError as error:
                found.append((item.key, error))
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of files whose bytes are their names, as the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("b.jpg", "a.PNG", "sub/c.webp", "sub/deep/a.jpg", "note.txt", "sub/d.json"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path


def keys(pieces):
    return [key for key, _ in read(pieces)]


@pytest.mark.usefixtures("folder")
def test_a_folder_is_searched_with_its_subfolders_in_the_order_of_paths():
    expected = ["a.PNG", "b.jpg", "sub/c.webp", "sub/deep/a.jpg"]
    found = read(find_pieces("photos"))
    assert found == [(f"photos/{name}", name.encode()) for name in expected]
    assert keys(find_pieces(["photos/sub", "photos/b.jpg"])) == [
        "photos/sub/c.webp",
        "photos/sub/deep/a.jpg",
        "photos/b.jpg",
    ]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("photos/*.jpg", ["photos/b.jpg"]),
        ("photos/**/a.*", ["photos/a.PNG", "photos/sub/deep/a.jpg"]),
        ("photos/{b.jpg,a.PNG}", ["photos/b.jpg", "photos/a.PNG"]),
        ("photos/{sub,.}/[b-c].*", ["photos/sub/c.webp", "photos/./b.jpg"]),
    ],
)
def test_patterns(pattern, expected):
    assert keys(find_pieces([pattern])) == expected


def test_a_name_with_the_characters_of_a_pattern_is_itself(folder):
    for name in ("x[1].jpg", "{a,b}.jpg", "*.jpg"):
        folder.joinpath(name).write_bytes(b"!")
        assert keys(find_pieces([name])) == [name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s-{000..002}.tar", ["s-000.tar", "s-001.tar", "s-002.tar"]),
        ("{9..11}", ["9", "10", "11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}{1..2}", ["a1", "a2", "b1", "b2"]),
        ("{a,{b,c}}", ["a", "b", "a", "c"]),
        ("{one}", ["{one}"]),
        ("plain", ["plain"]),
    ],
)
def test_braces(text, expected):
    assert sorted(expand_braces(text)) == sorted(expected)
    if "{a,{" not in text:
        assert expand_braces(text) == expected


@pytest.mark.parametrize("text", ["{0..999999999}", "{0..9999}{0..9999}", "{a,b}" * 30])
def test_braces_of_endless_names_are_refused(text):
    with refuses(InvalidOption, "more than 100000 names", "name fewer files"):
        expand_braces(text)


def test_a_list_names_a_file_in_each_line_and_a_missing_one_is_an_error_of_its_row(folder):
    lines = b"photos/b.jpg\r\n\nphotos/gone.jpg\nphotos/b.jpg\nphotos/\xff.jpg\nphotos/a.PNG"
    folder.joinpath("all.txt").write_bytes(lines)
    os.chdir("/")
    found = read(find_pieces([folder / "all.txt"]))
    assert [key for key, _ in found] == [
        *("photos/b.jpg", "photos/gone.jpg", "photos/b.jpg", "photos/\udcff.jpg", "photos/a.PNG")
    ]
    assert [value for _, value in found if isinstance(value, bytes)] == [
        *(b"b.jpg", b"b.jpg", b"a.PNG")
    ]
    says(str(found[1][1]), "there is no file", "gone.jpg")


def test_files_that_cannot_be_read_are_errors_of_their_rows(folder, monkeypatch):
    odd = folder / "odd"
    odd.mkdir()
    os.mkfifo(odd / "pipe.jpg")
    odd.joinpath("empty.jpg").touch()
    odd.joinpath("broken.jpg").symlink_to("nowhere")
    odd.joinpath("large.jpg").write_bytes(b"x" * 101)
    odd.joinpath("folder.jpg").mkdir()
    monkeypatch.setattr(sources, "MAX_IMAGE", 100)
    errors = {key: str(value) for key, value in read(find_pieces(odd))}
    assert list(errors) == [f"{odd}/{n}.jpg" for n in ("broken", "empty", "large", "pipe")]
    for (_, text), expected in zip(
        errors.items(), ("no file", "empty", "more than 100 bytes", "named pipe"), strict=True
    ):
        assert expected in text


def test_a_source_that_cannot_be_read_is_an_error_before_any_work(folder):
    (folder / "void").mkdir()
    (folder / "void.txt").touch()
    (folder / "zeros.txt").write_bytes(bytes(9))
    for source, *parts in (
        ("gone", "there is no file gone"),
        ("photos/x*.jpg", "no files that match photos/x*.jpg"),
        ("s-{0..1}.jpg", "there is no file s-0.jpg"),
        ("void", "contains no images", "folder/*.tar"),
        ("void.txt", "is empty", "one path in each line"),
        ("zeros.txt", "no list of paths"),
    ):
        says(message(ImageError, find_pieces, ["photos", source]), *parts)
    for source in ("photos/sub/d.json", 7, "", b"photos"):
        with refuses(
            InvalidOption, "source", "expected" if source == "photos/sub/d.json" else "path"
        ):
            find_pieces([source])
    with refuses(InvalidOption, "no images"):
        find_pieces([])


@pytest.mark.usefixtures("folder")
def test_slices_over_pieces_give_the_same_inputs_in_every_division():
    pieces = find_pieces(["photos", "photos/sub", "photos/b.jpg"])
    every = keys(pieces)
    for step in (1, 2, 3, 10):
        parts = [slice_of(pieces, i, i + step) for i in range(0, len(every), step)]
        assert [key for part in parts for key in keys(part)] == every


@pytest.mark.usefixtures("folder")
def test_the_hash_of_the_inputs_depends_on_names_and_order():
    hashes = {
        sha256_of(find_pieces(source))
        for source in ("photos", ["photos/sub", "photos/b.jpg"], ["photos/b.jpg", "photos/sub"])
    }
    assert len(hashes) == 3
    assert sha256_of(find_pieces("photos")) in hashes
