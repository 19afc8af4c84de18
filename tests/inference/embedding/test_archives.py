"""Images in tar and Parquet files: every one of them is a row, and hostile files are errors."""

from __future__ import annotations

import io
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import message, refuses, says
from vitzoo.errors import ImageError, InvalidOption
from vitzoo.inference.embedding import archives, sources
from vitzoo.inference.embedding.sources import find_pieces, sha256_of, slices


def read(pieces):
    """Return the keys and the bytes, or the texts of the errors, of all inputs."""
    found = []
    for piece in pieces:
        for item in piece.items():
            try:
                found.append((item.key, item.load()))
            except ImageError as error:
                found.append((item.key, str(error)))
    return found


@pytest.fixture
def tar(tmp_path, monkeypatch):
    """Write an archive of (name, bytes) or of ready members, in the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(name, members, kind=tarfile.GNU_FORMAT):
        with tarfile.open(name, "w", format=kind) as archive:
            for member, data in members:
                info = tarfile.TarInfo(member) if isinstance(member, str) else member
                if isinstance(data, bytes):
                    info.size = len(data)
                archive.addfile(info, io.BytesIO(data or b""))
        return tmp_path / name

    return write


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_the_images_of_an_archive_in_its_order(tar, kind):
    long = "/".join(["d" * 60] * 2) + "/" + "n" * 80 + ".jpg"
    names = ["b.jpg", "b.cls", "b.json", "a.PNG", long, "b.jpg", "é.webp"]
    tar("s.tar", [(name, f"{i}".encode()) for i, name in enumerate(names)], kind)
    expected = [(f"s.tar/{names[i]}", f"{i}".encode()) for i in (0, 3, 4, 5, 6)]
    pieces = find_pieces("s.tar")
    assert read(pieces) == expected
    assert [row for i in range(5) for row in read(next(slices(pieces, [(i, i + 1)])))] == expected


def test_names_in_an_archive_touch_no_file(tar, tmp_path):
    outside = tmp_path / "outside.jpg"
    outside.write_bytes(b"secret")
    names = ["../outside.jpg", str(outside), "x/../../outside.jpg"]
    tar("s.tar", [(name, b"inside") for name in names])
    assert read(find_pieces("s.tar")) == [(f"s.tar/{name}", b"inside") for name in names]


def test_members_that_are_no_files_are_errors_of_their_rows(tar):
    members = []
    for kind in (b"2", b"1", b"3", b"6", b"S"):  # links, a device, a pipe, a sparse file
        info = tarfile.TarInfo(f"{kind.decode()}.jpg")
        info.type, info.linkname = kind, "/etc/passwd"
        members.append((info, None))
    folder = tarfile.TarInfo("folder.jpg")
    folder.type = tarfile.DIRTYPE
    tar("s.tar", [*members, (folder, None), ("good.jpg", b"good")])
    *wrong, last = read(find_pieces("s.tar"))
    assert [key for key, _ in wrong] == [f"s.tar/{n}.jpg" for n in "2136S"]
    assert all("is a link, a device or sparse" in text for _, text in wrong)
    assert last == ("s.tar/good.jpg", b"good")


def test_names_that_are_no_utf8_and_a_huge_member(tar, monkeypatch):
    path = tar("s.tar", [("xx.jpg", b"1"), ("huge.jpg", b"2" * 101), ("last.jpg", b"3")])
    data = path.read_bytes().replace(b"xx.jpg", b"\xff\xfe.jpg")
    header = data[:512]
    spaces = header[:148] + b" " * 8 + header[156:]
    path.write_bytes(spaces[:148] + b"%06o\0 " % sum(spaces) + spaces[156:] + data[512:])
    monkeypatch.setattr(sources, "MAX_IMAGE", 100)
    first, huge, last = read(find_pieces("s.tar"))
    assert first == ("s.tar/\udcff\udcfe.jpg", b"1")
    says(huge[1], "huge.jpg has 101 bytes", "100")
    assert last == ("s.tar/last.jpg", b"3")


def test_a_damaged_archive_is_an_error_before_any_work(tar, tmp_path):
    whole = tar("s.tar", [(f"{i}.jpg", b"x" * 700) for i in range(3)]).read_bytes()
    member = 512 + 1024
    cases = {
        "empty": b"",
        "text": b"no archive" * 100,
        "inside a member": whole[: member + 600],
        "inside a header": whole[: member + 100],
        "between members": whole[: 2 * member],
        "damaged header": whole[:member] + b"x" * 512 + whole[member + 512 :],
        "no images": tar("t.tar", [("a.txt", b"1")]).read_bytes(),
    }
    for name, data in cases.items():
        tmp_path.joinpath("s.tar").write_bytes(data)
        with refuses(ImageError, "s.tar"):
            find_pieces("s.tar")
            pytest.fail(name)
    with refuses(ImageError, "there is no file gone.tar"):
        find_pieces("gone.tar")


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_header_of_megabytes_is_refused(tar, monkeypatch, kind):
    tar("s.tar", [("n" * 5000 + ".jpg", b"1")], kind)
    assert len(read(find_pieces("s.tar"))) == 1
    monkeypatch.setattr(archives, "MAX_HEADER", 5000)
    with refuses(ImageError, "s.tar", "the most is 5000"):
        find_pieces("s.tar")


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g"])
def test_headers_without_an_end_are_refused(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    info = tarfile.TarInfo("long.jpg")
    info.type = kind
    tmp_path.joinpath("s.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) * 3000 + bytes(1024))
    with refuses(ImageError, "s.tar"):
        find_pieces("s.tar")


def test_an_archive_that_shrank_gives_errors_of_its_rows(tar):
    path = tar("s.tar", [("a.jpg", b"1"), ("b.jpg", b"2" * 100)])
    pieces = find_pieces("s.tar")
    path.write_bytes(path.read_bytes()[:1100])
    first, second = read(pieces)
    assert first[1] == "s.tar/a.jpg ends after 0 of 1 bytes" or first[1] == b"1"
    says(second[1], "s.tar/b.jpg ends after", "100 bytes")
    path.unlink()
    assert all("no file s.tar" in text for _, text in read(pieces))


@pytest.fixture
def parquet(tmp_path, monkeypatch):
    """Write a Parquet file of columns, in the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(name, columns, rows=3):
        pq.write_table(pa.table(columns), tmp_path / name, row_group_size=rows)
        return tmp_path / name

    return write


IMAGES = [b"one", b"", None, b"four", b"five", b"six", b"seven"]


def check_images(found, path="p.parquet"):
    """Compare what was read with IMAGES."""
    assert [key for key, _ in found] == [f"{path}/{i}" for i in range(7)]
    for (_, value), image in zip(found, IMAGES, strict=True):
        assert value == image if image else "has no image: the cell is" in value


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), "struct", "dictionary"])
def test_bytes_in_a_column_and_in_the_struct_of_hugging_face(parquet, kind):
    if kind == "struct":
        cells = [{"bytes": image, "path": None} for image in IMAGES]
        column = pa.array(cells, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    elif kind == "dictionary":
        column = pa.array(IMAGES, pa.binary()).dictionary_encode()
    else:
        column = pa.array(IMAGES, kind)
    parquet("p.parquet", {"label": list(range(7)), "image": column})
    pieces = find_pieces("p.parquet")
    check_images(read(pieces))
    for step in (1, 2, 4):
        parts = [next(slices(pieces, [(i, i + step)])) for i in range(0, 7, step)]
        check_images([row for part in parts for row in read(part)])
    check_images(read(find_pieces("p.parquet")), "p.parquet")
    backwards = [read(next(slices(pieces, [(i, i + 1)])))[0] for i in reversed(range(7))]
    check_images(backwards[::-1])


@pytest.mark.parametrize("struct", [False, True])
def test_paths_are_relative_to_the_folder_of_the_file(parquet, tmp_path, struct):
    folder = tmp_path / "set"
    folder.mkdir()
    folder.joinpath("a.jpg").write_bytes(b"a")
    paths = ["a.jpg", str(folder / "a.jpg"), "gone.jpg", None, "a\0.jpg"]
    column = [{"bytes": None, "path": path} for path in paths] if struct else paths
    parquet("set/p.parquet", {"image": column, "text": paths})
    found = [value for _, value in read(find_pieces(tmp_path / "set" / "p.parquet"))]
    assert found[:2] == [b"a", b"a"]
    says(found[2], "there is no file", "gone.jpg")
    says(found[3], "row 3 of", "the cell is null")
    assert "null byte" in found[4]


def test_a_column_is_chosen_or_asked_for(parquet):
    columns = {"x": [b"1"], "y": [b"2"], "path": ["p"], "n": [3]}
    parquet("p.parquet", columns)
    assert read(find_pieces("p.parquet", "y")) == [("p.parquet/0", b"2")]
    for column, *parts in (
        (None, "several columns with images", "--column", "x, y, path"),
        ("z", "'z' does not exist", "x, y, path"),
        ("pth", "did you mean 'path'"),
        ("n", "'n' has no images", "x, y, path"),
    ):
        says(message(InvalidOption, find_pieces, "p.parquet", column), *parts)
    parquet("n.parquet", {"n": [3], "m": [1.5]})
    says(message(InvalidOption, find_pieces, "n.parquet"), "no column with images", "expected")


def test_a_damaged_parquet_file(parquet, tmp_path):
    whole = parquet("p.parquet", {"image": [b"%03d" % i * 50 for i in range(9)]}).read_bytes()
    for data in (b"", b"PAR1", b"no", whole[:-9], whole[-60:], whole[:-8] + b"\xff" * 4 + b"PAR1"):
        tmp_path.joinpath("p.parquet").write_bytes(data)
        with refuses(ImageError, "cannot read the Parquet file p.parquet"):
            find_pieces("p.parquet")
    parquet("p.parquet", {"image": pa.array([], pa.binary())})
    with refuses(ImageError, "p.parquet has no rows"):
        find_pieces("p.parquet")


def test_a_damaged_row_group_gives_errors_of_its_rows_and_of_no_others(parquet):
    images = [b"%03d" % i * 50 for i in range(9)]
    path = parquet("p.parquet", {"image": images})
    second = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = second.dictionary_page_offset or second.data_page_offset
    data[start : start + second.total_compressed_size] = b"\xff" * second.total_compressed_size
    path.write_bytes(data)
    found = [value for _, value in read(find_pieces("p.parquet"))]
    assert [found[i] for i in (0, 1, 2, 6, 7, 8)] == [images[i] for i in (0, 1, 2, 6, 7, 8)]
    assert all("cannot read row group 1 of p.parquet" in text for text in found[3:6])


def test_a_huge_cell_is_an_error_of_its_row(parquet, monkeypatch):
    parquet("p.parquet", {"image": [b"x" * 101, b"x" * 100]})
    monkeypatch.setattr(sources, "MAX_IMAGE", 100)
    (_, huge), (_, good) = read(find_pieces("p.parquet"))
    says(huge, "row 0 of p.parquet has 101 bytes", "100")
    assert good == b"x" * 100


def test_a_parquet_file_that_changes_or_vanishes_gives_errors_of_its_rows(parquet):
    path = parquet("p.parquet", {"image": [b"1", b"2"]})
    pieces = find_pieces("p.parquet")
    parquet("p.parquet", {"image": [b"1"]})
    assert [text for _, text in read(pieces)] == [
        "p.parquet has changed since its rows were counted"
    ] * 2
    path.unlink()
    assert [text for _, text in read(pieces)] == ["there is no file p.parquet"] * 2


def test_the_hash_of_the_inputs_sees_a_changed_archive(parquet, tar):
    def hashes():
        return sha256_of(find_pieces("p.parquet")), sha256_of(find_pieces("s.tar"))

    seen = set()
    for size in (1, 2000):
        parquet("p.parquet", {"image": [b"x" * size]})
        tar("s.tar", [("a.jpg", b"x" * size)])
        seen |= set(hashes())
    assert len(seen) == 4
