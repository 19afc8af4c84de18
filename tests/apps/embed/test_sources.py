"""Sources of `embed`: every image once, in a fixed order; unreadable sources are errors at once."""

from __future__ import annotations

import codecs
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import message, refuses, says
from tables import cases
from vitzoo.apps.embed import items, sources
from vitzoo.apps.embed.sources import (
    Files,
    expand_braces,
    find_pieces,
    sha256_of,
    slices,
)
from vitzoo.errors import ImageError, InvalidOption
from vitzoo.images.find import LeftOut


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


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "pattern",
    ["photos/*", "photos/**", "photos/**/*", "photos/**/", "photos/**/**", "*/**/*.*[gGp]"],
)
def test_a_pattern_counts_each_file_once_and_no_folder_for_two_stars(folder, pattern):
    for name in ("note.txt", "sub/d.json"):
        folder.joinpath("photos", name).unlink()
    expected = ["a.PNG", "b.jpg", "sub/c.webp", "sub/deep/a.jpg"]
    assert keys(find_pieces(pattern)) == [f"photos/{name}" for name in expected]


def test_two_stars_find_no_folder_without_images_and_one_by_its_name(folder):
    for name in ("x/train/shard.tar.gz", "x/train/train/1.png", "y/train/2.png", "train.png"):
        path = folder / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"!")
    expected = ["train.png", "x/train/train/1.png", "y/train/2.png"]
    assert keys(find_pieces("tree/**/train*")) == [f"tree/{name}" for name in expected]
    assert keys(find_pieces("tree/**/*.png")) == [f"tree/{name}" for name in expected]
    assert keys(find_pieces("{photos/*.jpg,photos/b.jpg}")) == ["photos/b.jpg"]


def test_a_pattern_through_links_ends_and_counts_no_file_twice(folder):
    """In a process of its own: without an end, the test fails after the time of ten of them."""
    links = {"a": ".", "b": ".", "c": "sub", "up": "..", "out": "/gone", "self": "self", ".d": ".."}
    for name, target in links.items():
        folder.joinpath("photos", name).symlink_to(target)
    (folder / "far").mkdir()
    (folder / "far" / "z.jpg").touch()
    folder.joinpath("photos", "far").symlink_to(folder / "far")
    code = (
        "from vitzoo.apps.embed.sources import find_pieces; import sys\n"
        "print(*[key for piece in find_pieces(sys.argv[1]) for key in piece.names()])"
    )
    command = [sys.executable, "-c", code, "photos/**/*.[jw]*g"]
    found = subprocess.run(command, capture_output=True, timeout=100, text=True, check=True)
    expected = ["b.jpg", "far/z.jpg", "sub/deep/a.jpg"]
    assert found.stdout.split() == [f"photos/{name}" for name in expected]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("first", "second", "file"),
    [
        ("photos", "photos/sub", "photos/sub/c.webp"),
        ("photos", "./photos/b.jpg", "./photos/b.jpg"),
        ("photos/*.jpg", "photos/{b.jpg,a.PNG}", "photos/b.jpg"),
        ("photos/b.jpg", "photos/b.jpg", "photos/b.jpg"),
        ("photos/sub/*.webp", "link", "link/c.webp"),
        ("all.txt", "*.txt", "all.txt"),
    ],
)
def test_a_file_of_two_sources_is_an_error_and_a_list_keeps_every_line(folder, first, second, file):
    (folder / "link").symlink_to("photos/sub")
    (folder / "all.txt").write_text("photos/b.jpg\nphotos/b.jpg")
    with refuses(InvalidOption, file, first, second, "expected each file once", "remove one"):
        find_pieces([first, second])
    found = keys(find_pieces(["photos", "all.txt"]))
    assert found[1] == found[4] == found[5] == "photos/b.jpg"


@pytest.mark.needs("names")
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


@pytest.mark.slow
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
    says(str(found[1][1]), "gone.jpg")


def test_a_list_may_begin_with_the_mark_that_editors_of_windows_write(folder):
    folder.joinpath("all.txt").write_bytes(codecs.BOM_UTF8 + b"photos/b.jpg\r\n")
    assert read(find_pieces("all.txt")) == [("photos/b.jpg", b"b.jpg")]


def test_keys_and_their_order_are_the_same_on_windows(folder, monkeypatch):
    monkeypatch.setattr(sources, "with_slashes", lambda path: path.replace("\\", "/"))
    found = ["photos/sub/c.webp", "photos/sub/deep/a.jpg"]
    assert keys(find_pieces("photos\\sub")) == keys(find_pieces("photos\\s*\\**\\[!d]*.*")) == found
    matches = ["photos\\sub/d\\1.png", "photos/sub/d-/1.png"]
    monkeypatch.setattr(sources, "_matches", lambda _: matches)
    folder.joinpath("all.txt").write_bytes(b"photos\\b.jpg\r\n")
    assert keys(find_pieces("all.txt")) == ["photos/b.jpg"]
    assert keys(find_pieces("*.png")) == ["photos/sub/d-/1.png", "photos/sub/d/1.png"]


def test_files_that_cannot_be_read_are_errors_of_their_rows(folder, monkeypatch):
    odd = folder / "odd"
    odd.mkdir()
    os.mkfifo(odd / "pipe.jpg")
    odd.joinpath("empty.jpg").touch()
    odd.joinpath("broken.jpg").symlink_to("nowhere")
    odd.joinpath("large.jpg").write_bytes(b"x" * 101)
    odd.joinpath("folder.jpg").mkdir()
    monkeypatch.setattr(items, "MAX_IMAGE", 100)
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
    Path("all.txt").write_text("photos/sub/c.webp\nphotos/b.jpg", encoding="utf-8")
    pieces = find_pieces(["photos/sub", "photos/b.jpg", "all.txt", "photos/a.PNG"])
    every = keys(pieces)
    for step in (1, 2, 3, 10):
        parts = [next(slices(pieces, [(i, i + step)])) for i in range(0, len(every), step)]
        assert [key for part in parts for key in keys(part)] == every


def test_work_on_the_pieces_of_many_files_is_linear(folder, monkeypatch):
    """Neighbouring files are one piece, and each piece is cut once for each part."""
    (folder / "many").mkdir()
    for i in range(300):
        (folder / "many" / f"{i:03}.jpg").touch()
    (folder / "all.txt").write_text("many/000.jpg\n" * 10)
    names = [f"many/{i:03}.jpg" for i in range(300)]
    calls = []
    part, length = Files.part, Files.__len__
    monkeypatch.setattr(Files, "part", lambda *args: calls.append(1) or part(*args))
    monkeypatch.setattr(Files, "__len__", lambda *args: calls.append(1) or length(*args))
    for found, count in (("many/*", 1), (names, 1), (["all.txt", *names], 2)):
        pieces = find_pieces(found)
        assert len(pieces) == count
        total = sum(map(len, pieces))
        assert keys(pieces)[-300:] == names
        calls.clear()
        bounds = [(i, i + 1) for i in range(total)]
        assert [key for own in slices(pieces, bounds) for key in keys(own)] == keys(pieces)
        assert len(calls) <= 2 * total + count
    pieces = [Files("", [name]) for name in names]
    calls.clear()
    assert [keys(own) for own in slices(pieces, bounds[:300])] == [[name] for name in names]
    assert len(calls) <= 4 * 300


@pytest.mark.usefixtures("folder")
def test_the_hash_of_the_inputs_depends_on_names_and_order():
    hashes = {
        sha256_of(find_pieces(source))
        for source in ("photos", ["photos/sub", "photos/b.jpg"], ["photos/b.jpg", "photos/sub"])
    }
    assert len(hashes) == 3
    assert sha256_of(find_pieces("photos")) in hashes


# Hidden files


@pytest.fixture
def with_hidden(folder):
    """The folder of photos, with what notebooks, macOS and disk stations add, and a HEIC."""
    for name in (
        "._b.jpg", ".ipynb_checkpoints/b-checkpoint.jpg", "@eaDir/b.jpg", "sub/__MACOSX/._c.webp",
        "sub/.DS_Store", "e.heic",
    ):  # fmt: skip
        path = folder / "photos" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode())
    return folder


SEEN = ["photos/a.PNG", "photos/b.jpg", "photos/sub/c.webp", "photos/sub/deep/a.jpg"]


@pytest.mark.usefixtures("with_hidden")
@cases(
    ("source", "expected"),
    [
        ("photos", SEEN),
        ("photos/**/*.[jpPw][pNe]*", SEEN),
        ("photos/*/*.jpg", []),
        ("photos/*/**/*.jpg", SEEN[3:]),
        ("phot*", SEEN),
        ("photos/@eaDir", ["photos/@eaDir/b.jpg"]),
        ("photos/@eaDir/*", ["photos/@eaDir/b.jpg"]),
        ("photos/._b.jpg", ["photos/._b.jpg"]),
        ("photos/.[_]*.jpg", ["photos/._b.jpg"]),
        ("photos/.ipynb*", ["photos/.ipynb_checkpoints/b-checkpoint.jpg"]),
    ],
)
def test_hidden_files_are_data_only_where_they_are_named(source, expected):
    if expected:
        sources.check_sources([source])
        assert keys(find_pieces(source)) == expected
    else:
        with refuses(ImageError, "no files that match", source):
            sources.check_sources([source])
        with refuses(ImageError, "no files that match", source):
            find_pieces(source)


def test_a_hidden_file_in_a_list_is_data(with_hidden):
    (with_hidden / "list.txt").write_text("photos/._b.jpg\n")
    assert keys(find_pieces("list.txt")) == ["photos/._b.jpg"]


@pytest.mark.usefixtures("with_hidden")
def test_files_that_are_left_out_are_counted_once():
    for source in ("photos", "photos/**/"):
        left_out = LeftOut()
        find_pieces(source, left_out=left_out)
        assert left_out == {".heic": 1, ".txt": 1, ".json": 1}


def test_a_name_costs_few_calls(tmp_path, monkeypatch):
    """Of a million names, each call takes a tenth of a second or more."""
    monkeypatch.chdir(tmp_path)
    calls = 0

    def count(_frame, event, _value):
        nonlocal calls
        calls += event == "call"

    counts = []
    for files in (100, 300):
        for i in range(files):
            path = tmp_path / f"{files}/{i % 10}/{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        calls, before = 0, sys.getprofile()
        sys.setprofile(count)
        try:
            found = find_pieces(f"{files}/*/*.png", left_out=LeftOut())
        finally:
            sys.setprofile(before)
        counts.append(calls)
        assert len(keys(found)) == files
    assert (counts[1] - counts[0]) / 200 < 40, counts
