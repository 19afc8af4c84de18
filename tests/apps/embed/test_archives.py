"""Images in tar and Parquet files: every one of them is a row, and hostile files are errors."""

from __future__ import annotations

import io
import os
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from helpers import message, refuses, says
from limited import run_limited
from vitzoo.apps.embed import items, parquet_rows, tar_members
from vitzoo.apps.embed.parquet_reader import COSTLY
from vitzoo.apps.embed.sources import find_pieces, sha256_of, slices
from vitzoo.errors import ImageError, InvalidOption
from vitzoo.images.find import LeftOut


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


def test_hidden_members_are_no_images_and_others_are_counted(tar):
    names = ["./a.png", "._a.png", "__MACOSX/._b.png", "x/.ipynb_checkpoints/c.png", "x/d.heic"]
    names += ["x/@eaDir/e.png", "x/e.png", ".DS_Store", "x/e.cls"]
    tar("s.tar", [(name, b"0") for name in names])
    left_out = LeftOut()
    found = [key for key, _ in read(find_pieces("s.tar", left_out=left_out))]
    assert found == ["s.tar/./a.png", "s.tar/x/e.png"]
    assert left_out == {".heic": 1, ".cls": 1}
    former = [key for key, _ in read(find_pieces("s.tar", hidden=True))]
    assert former == [f"s.tar/{name}" for name in names if name.endswith(".png")]


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
    monkeypatch.setattr(items, "MAX_IMAGE", 100)
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
    monkeypatch.setattr(tar_members, "MAX_HEADER", 5000)
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


def header(kind=b"0", size=b"%011o\0" % 0, name=b"a.jpg", sparse=b""):
    """Return a header of 512 bytes; `sparse` is what begins at byte 386."""
    data = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + size + b"%011o\0" % 0
    data += b" " * 8 + kind + bytes(100) + b"ustar\0" + b"00"
    data = (data.ljust(386, b"\0") + sparse).ljust(512, b"\0")
    return data[:148] + b"%06o\0 " % sum(data) + data[156:]


def padded(kind, data):
    """Return a header and its data."""
    return header(kind, b"%011o\0" % len(data)) + data + bytes(-len(data) % 512)


def record(key, value):
    """Return a record of a pax header; it begins with its own length."""
    rest = b" %s=%s\n" % (key, value)
    size = len(rest) + len(str(len(rest)))
    return b"%d" % (len(rest) + len(str(size))) + rest


def binary(number):
    """Return a number as GNU tar writes large and negative ones."""
    return (number % 2**96 | (0 if number < 0 else 2**95)).to_bytes(12, "big")


MEMBER, END, SLOW = header(), bytes(1024), b"1" * 1_000_000
EXTENDED = (b"%011o\0" % 1) * 42  # a header with places of a sparse file that has another after it


def hostile():
    """Return archives by what is wrong with each, 120 MB in all."""
    ended = {
        "a negative size": MEMBER + padded(b"x", record(b"size", b"-1536")) + MEMBER * 8,
        "a negative size of a member": MEMBER + header(size=binary(-512)) + MEMBER,
        "a negative size of a pax header": header(b"x", binary(-512)) + MEMBER,
        "a negative size of a long name": header(b"L", binary(-512)) + MEMBER,
        "a size of 2^80": header(size=binary(2**80)) + MEMBER,
        "a size of 2^63": header(size=binary(2**63 - 512)) + MEMBER,
        "a size beyond the end": padded(b"x", record(b"size", b"9" * 200)) + MEMBER,
        "a megabyte of digits": padded(b"x", SLOW),
        "a megabyte of digits in a record": padded(b"x", record(b"comment", SLOW)) + MEMBER,
        "digits of a sparse file": padded(b"x", record(b"GNU.sparse.size", SLOW)) + MEMBER,
        "records that overlap": padded(b"x", b"2 " * 500_000 + b"=") + MEMBER,
        "records without a keyword": padded(b"x", b"9 1234567" * 100) + MEMBER,
        "sparse headers without an end": header(b"S", sparse=EXTENDED[:96] + b"\1")
        + (EXTENDED + b"\1").ljust(512, b"\0") * 60_000,
        "a map of a sparse file without an end": padded(
            b"x", record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.minor", b"0")
        )
        + MEMBER
        + b"99999999\n"
        + b"1\n" * 20_000_000,
        "many records for every member": padded(
            b"g", b"".join(record(b"k%d" % i, b"") for i in range(60_000))
        )
        + MEMBER * 20_000,
        "a name for every member": padded(b"g", record(b"path", b"n" * 1_000_000 + b".jpg"))
        + MEMBER * 20_000,
        "a map of a sparse file for every member": padded(
            b"g", record(b"GNU.sparse.map", b"1," * 499_999 + b"1")
        )
        + (padded(b"x", record(b"comment", b"")) + MEMBER) * 200,
        "a number for every member": padded(b"g", record(b"uid", "\u0669".encode() * 400_000))
        + MEMBER * 20_000,
        "a number with underscores for every member": padded(
            b"g", record(b"mtime", b"1_" * 500_000)
        )
        + MEMBER * 20_000,
        "a negative size for every member": padded(b"g", record(b"size", b"-1536")) + MEMBER,
        "a small negative size": padded(b"x", record(b"size", b"-100")) + MEMBER,
        "a number without digits": padded(b"x", record(b"GNU.sparse.map", b"1,2,")) + MEMBER,
    }
    return {name: data + END for name, data in ended.items()} | {
        "a sparse header without its second": header(b"S", sparse=EXTENDED[:96] + b"\1"),
        "half of a second sparse header": header(b"S", sparse=EXTENDED[:96] + b"\1")
        + EXTENDED[:90],
    }


FINDS = """
from vitzoo.apps.embed.sources import find_pieces, sha256_of
def read(path):
    return sha256_of(find_pieces(path))
"""


@pytest.mark.faults
def test_a_hostile_archive_is_refused_in_little_time_and_memory(tmp_path):
    archives = hostile()
    paths = [tmp_path / f"{name}.tar" for name in archives]
    for path, data in zip(paths, archives.values(), strict=True):
        path.write_bytes(data)
    paths.append(tmp_path / "good.tar")
    paths[-1].write_bytes(padded(b"x", record(b"path", b"9" * 255 + b".jpg")) + MEMBER + END)
    *found, good = run_limited(FINDS, [str(path) for path in paths])
    assert {path.stem: one.kind for path, one in zip(paths, found, strict=False)} == dict.fromkeys(
        archives, "ImageError"
    )
    for path, one in zip(paths, found, strict=False):
        says(one.text, "cannot read the archive", path.name, "expected an uncompressed tar")
        assert "Error" not in one.text  # of Python
    assert good.kind == "value"


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
    says(found[2], "gone.jpg")
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


def test_the_rows_that_a_parquet_file_states_have_a_limit(parquet, monkeypatch):
    parquet("p.parquet", {"image": [b"1", b"2", b"3"]})
    monkeypatch.setattr(parquet_rows, "MAX_ROWS", 2)
    with refuses(ImageError, "p.parquet has 3 rows", "the most is 2", "several files"):
        find_pieces("p.parquet")


def test_an_empty_row_group_has_no_pages(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = pa.table({"image": [b"1", b"2"]})
    with pq.ParquetWriter("p.parquet", table.schema) as writer:
        for one in (table.schema.empty_table(), table, table.schema.empty_table(), table):
            writer.write_table(one)
    assert pq.read_metadata("p.parquet").num_row_groups == 4
    assert [data for _, data in read(find_pieces("p.parquet"))] == [b"1", b"2"] * 2


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
    monkeypatch.setattr(items, "MAX_IMAGE", 100)
    (_, huge), (_, good) = read(find_pieces("p.parquet"))
    says(huge, "row 0 of p.parquet has 101 bytes", "100")
    assert good == b"x" * 100


def test_cells_that_are_no_images_are_errors_of_their_rows(parquet):
    struct = pa.struct({"bytes": pa.binary(), "path": pa.int64()})
    cells = [{"bytes": b"1", "path": 1}, {"bytes": None, "path": 7}, {"bytes": b"3", "path": None}]
    parquet("p.parquet", {"image": pa.array(cells, struct)})
    (_, first), (_, second), (_, third) = read(find_pieces("p.parquet"))
    says(second, "row 1 of p.parquet", "7", "expected the bytes")
    assert (first, third) == (b"1", b"3")
    for kind, value in ((pa.float64(), 0.5), (pa.bool_(), True)):
        struct = pa.struct({"bytes": kind, "path": pa.string()})
        cells = [{"bytes": None, "path": None}, {"bytes": value, "path": "a.jpg"}]
        parquet("p.parquet", {"image": pa.array(cells, struct)})
        (_, null), (_, wrong) = read(find_pieces("p.parquet"))
        says(null, "row 0 of p.parquet", "null")
        says(wrong, "row 1 of p.parquet", str(value), "expected the bytes of an image")


def test_a_path_that_is_no_utf8_is_an_error_of_its_row(parquet, tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"1")
    paths = pa.array([b"a.jpg", b"\xff.jpg", b"a.jpg"]).view(pa.string())
    parquet("p.parquet", {"path": paths})
    (_, first), (_, wrong), (_, last) = read(find_pieces("p.parquet"))
    assert first == last == b"1"
    says(wrong, "row group 0 of p.parquet", "utf-8")


@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("bytes", pa.list_(pa.int8())),
        ("bytes", pa.list_(pa.binary())),
        ("path", pa.struct({"a": pa.binary(), "b": pa.binary()})),
    ],
    ids=["numbers", "a list", "a struct"],
)
def test_a_struct_of_lists_or_structs_has_no_images(parquet, field, kind):
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()} | {field: kind})
    parquet("p.parquet", {"image": pa.array([{field: None}], struct), "other": [b"1"]})
    assert read(find_pieces("p.parquet")) == [("p.parquet/0", b"1")]
    with refuses(InvalidOption, "'image' has no images", "--column", "other"):
        find_pieces("p.parquet", "image")


@pytest.mark.parametrize("column", [None, "image"])
def test_two_columns_of_one_name_are_refused(tmp_path, monkeypatch, column):
    monkeypatch.chdir(tmp_path)
    table = pa.Table.from_arrays([pa.array([b"1"]), pa.array([b"2"])], ["image", "image"])
    pq.write_table(table, "p.parquet")
    with refuses(InvalidOption, "p.parquet has 2 columns 'image'", "keep one"):
        find_pieces("p.parquet", column)


def test_a_column_with_a_name_that_looks_like_a_field_is_not_taken_for_it(parquet):
    struct = pa.array([{"bytes": b"inner"}], pa.struct({"bytes": pa.binary()}))
    parquet("p.parquet", {"image.x": [b"outer"], "image": struct})
    assert read(find_pieces("p.parquet", "image")) == [("p.parquet/0", b"inner")]
    assert read(find_pieces("p.parquet", "image.x")) == [("p.parquet/0", b"outer")]


EMBEDS = """
import vitzoo
model = vitzoo.create("vit_digits", pretrained=True)
def read(path):
    done = vitzoo.embed(model, path, path + ".out", workers=1)
    return done
"""


@pytest.mark.faults
@pytest.mark.long
def test_cells_that_expand_cost_little_memory(tmp_path):
    """Each file has less than 100 KB; the network adds less than 100 MiB."""

    def write(name, image, rows, **options):
        path = tmp_path / f"{name}.parquet"
        column = pa.array([image] * rows, pa.binary())
        pq.write_table(pa.table({"image": column}), path, compression="zstd", **options)
        assert path.stat().st_size < 100_000
        return str(path)

    photo = io.BytesIO()
    Image.new("RGB", (5000, 2000)).save(photo, "BMP")
    one = {"dictionary_pagesize_limit": 2**30, "use_dictionary": True}
    many = {"use_dictionary": False}
    paths = [
        write("page", bytes(2**28), 3, **many),
        write("pages", bytes(100 * 2**20), 6, row_group_size=1, **many),
        write("cells", bytes(25 * 2**20), 40, row_group_size=4, **many),
        write("dictionary", bytes(100 * 2**20), 10, **one),
        write("small dictionary", bytes(10 * 2**20), 100, **one),
        write("images", photo.getvalue(), 60, **one),  # they wait for a thread
    ]
    for path, outcome in zip(paths, run_limited(EMBEDS, paths, seconds=60), strict=True):
        assert outcome.kind == "value", (path, outcome)
    texts = read(find_pieces(paths[0]))
    assert len(texts) == 3
    for _, text in texts:
        says(text, "row group 0 of", "more than 1 GiB of memory", "write smaller row groups, pages")


READS = """
from vitzoo.apps.embed.sources import find_pieces

def load(item):
    try:
        return len(item.load())
    except ImageError as error:
        return str(error)

from vitzoo.errors import ImageError
def read(path):
    return [load(item) for piece in find_pieces(path) for item in piece.items()]
"""
MIB = 2**20


@pytest.mark.faults
@pytest.mark.long
def test_no_column_costs_more_than_1_gib(tmp_path):
    """What fits in the helper process is read; all fields of a struct count together."""

    def half(size):  # of the bytes are stored
        return os.urandom(size // 2) + bytes(size // 2)

    def structs(*sizes):
        fields = [pa.array([bytes(size)] * 3, pa.binary()) for size in sizes]
        return pa.StructArray.from_arrays(fields, ["bytes", "path"])

    pages = {"use_dictionary": False, "data_page_size": 2**30}
    one = {"dictionary_pagesize_limit": 2**30}
    deltas = pages | {"column_encoding": "DELTA_BYTE_ARRAY"}
    repeated = {mib: pa.array([bytes(mib * MIB)] * 8) for mib in (16, 63, 70)}
    cases = {
        "fields": (structs(130 * MIB, 130 * MIB), one, COSTLY),
        "smaller fields": (structs(30 * MIB, 30 * MIB), one, 30 * MIB),
        "stored": (pa.array([half(249 * MIB)] * 2, pa.binary()), one, COSTLY),
        "stored page": (pa.array([half(249 * MIB)], pa.binary()), pages, COSTLY),
        "largest page": (pa.array([half(127 * MIB)], pa.binary()), pages, 127 * MIB),
        "large dictionary": (pa.array([half(100 * MIB)] * 3, pa.binary()), one, 100 * MIB),
        "largest dictionary": (pa.array([half(63 * MIB)] * 3, pa.binary()), one, 63 * MIB),
        "repeated": (repeated[16], deltas, 16 * MIB),
        "repeated in version 2": (repeated[63], deltas | {"data_page_version": "2.0"}, 63 * MIB),
        "repeated and large": (repeated[70], deltas, 70 * MIB),
        # pyarrow looks at the size of a page after 1,024 values: usual images fill large ones.
        "images": (pa.array([os.urandom(150_000) for _ in range(1000)]), {}, 150_000),
    }
    for name, (column, options, _) in cases.items():
        table = pa.table({"image": column})
        pq.write_table(table, tmp_path / f"{name}.parquet", compression="zstd", **options)
    paths = [str(tmp_path / f"{name}.parquet") for name in cases]
    for path, (*_, expected), found in zip(
        paths, cases.values(), run_limited(READS, paths, seconds=60), strict=True
    ):
        says(found.text, expected)
        assert isinstance(expected, int) or "write smaller" in found.text, path
        assert found.memory < 2**28, path  # at most two cells


@pytest.mark.slow
def test_wrong_size_statistics_do_not_end_the_process(tmp_path):
    """pyarrow ends the process if it is asked for such a column chunk, and reads its pages."""
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"image": [b"1", None, b"22"]}), path, use_dictionary=False)
    data = path.read_bytes()
    right, wrong = b"\x26\x02\x04", b"\x36\x02\x02\x02"  # 1 and 2 cells by level, or 1, 1 and 1
    assert data.count(right) == 1
    length = int.from_bytes(data[-8:-4], "little") + 1
    path.write_bytes(data[:-8].replace(right, wrong) + length.to_bytes(4, "little") + b"PAR1")
    (found,) = run_limited(READS, [str(path)], seconds=60)
    assert found.kind == "value", found
    says(found.text, "histogram size mismatch")


@pytest.mark.needs("descriptors")
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
