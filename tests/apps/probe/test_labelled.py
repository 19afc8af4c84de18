"""Labelled data sets: folders of classes, CSV and Parquet files, and what is wrong with them."""

import json
import os
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from helpers import refuses, says
from limited import run_limited
from tables import cases
from vitzoo.apps.probe import labelled
from vitzoo.apps.probe.labelled import LabelledImage, LabelledImages, read_labelled
from vitzoo.errors import ImageError, InvalidOption


@pytest.fixture
def files(tmp_path):
    """Write empty files; no image is opened."""

    def write(*names):
        for name in names:
            path = tmp_path / "data" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
        return tmp_path / "data"

    return write


@pytest.fixture
def table(tmp_path):
    """Write a text file."""

    def write(text, name="data.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8-sig")
        return path

    return write


@pytest.fixture
def rows(tmp_path):
    """Write a Parquet file."""

    def write(columns, metadata=None):
        path = tmp_path / "data.parquet"
        parquet.write_table(pa.table(columns).replace_schema_metadata(metadata), path)
        return path

    return write


def short(found):
    return [(image.name, image.label, image.part) for image in found.images]


def test_a_folder_of_classes(files):
    data = files("b/2.png", "b/1.JPG", "a/deep/er/3.webp", "a/notes.txt", "a/.png", ".git/x.png")
    files("a/.ipynb_checkpoints/3.webp", "a/._3.webp", "@eaDir/x.png", "b/@eaDir/2.png", "a/4.HEIC")
    found = read_labelled(data)
    assert found.left_out == {".txt": 1, ".heic": 1}
    assert found.classes == ("a", "b")
    assert short(found) == [
        ("a/deep/er/3.webp", "a", ""),
        ("b/1.JPG", "b", ""),
        ("b/2.png", "b", ""),
    ]
    assert [image.image for image in found.images] == [data / image.name for image in found.images]


@pytest.mark.parametrize(
    ("folder", "part"),
    [
        ("test", "test"),
        ("val", "validation"),
        ("valid", "validation"),
        ("validation", "validation"),
    ],
)
def test_folders_of_splits(files, folder, part):
    found = read_labelled(files("train/10/1.png", "train/9/1.png", f"{folder}/9/2.png"))
    assert found.classes == ("9", "10")
    assert [(i.label, i.part) for i in found.images] == [
        ("10", "train"),
        ("9", "train"),
        ("9", part),
    ]


def test_a_folder_of_training_images_alone(files):
    found = read_labelled(files("train/a/1.png", "train/b/1.png"))
    assert short(found) == [("train/a/1.png", "a", "train"), ("train/b/1.png", "b", "train")]


def test_the_bytes_of_images(tmp_path):
    (tmp_path / "a.png").write_bytes(b"1")
    assert [LabelledImage("x", one, "a").read() for one in (tmp_path / "a.png", b"2")] == [
        b"1",
        b"2",
    ]
    assert LabelledImage("x", lambda: b"3", "a").read() == b"3"
    with refuses(ImageError, "b.png"):
        LabelledImage("x", tmp_path / "b.png", "a").read()


def test_a_class_may_be_called_train(files):
    found = read_labelled(files("train/1.png", "car/1.png"))
    assert found.classes == ("car", "train")
    assert {image.part for image in found.images} == {""}


def test_wrong_folders(files, tmp_path):
    data = files("train/a/1.png", "test/a/1.png", "test/b/x.txt")
    with refuses(InvalidOption, data / "test" / "b", "no images", ".png", "remove"):
        read_labelled(data)
    with refuses(InvalidOption, data / "test" / "a", "no folders"):
        read_labelled(data / "test" / "a")
    with refuses(InvalidOption, data, "'label'", "CSV"):
        read_labelled(data, label_column="label")
    with refuses(InvalidOption, tmp_path / "none", ".csv"):
        read_labelled(tmp_path / "none")
    with refuses(InvalidOption, "none.csv"):
        read_labelled(tmp_path / "none.csv")
    other = files("x.xlsx") / "x.xlsx"
    with refuses(InvalidOption, other, ".parquet"):
        read_labelled(other)


def test_a_csv_file(table, tmp_path):
    data = table('path,label,other\na.png,cat,1\n"b, c.png", dog ,2\n\n/abs/d.png,cat,3\n')
    assert read_labelled(data) == LabelledImages(
        [
            LabelledImage("a.png", tmp_path / "a.png", "cat"),
            LabelledImage("b, c.png", tmp_path / "b, c.png", "dog"),
            LabelledImage("/abs/d.png", Path("/abs/d.png"), "cat"),
        ],
        ("cat", "dog"),
    )


def test_columns_by_name_and_tabs(table):
    data = table("split\tfile_name\tkind\tset\nx\ta.png\t10\tVal\ny\tb.png\t9\t train \n", "d.tsv")
    found = read_labelled(data, label_column="kind", split_column="set")
    assert short(found) == [("a.png", "10", "validation"), ("b.png", "9", "train")]
    assert found.classes == ("9", "10")  # by number
    with refuses(InvalidOption, data, "2 of 2 rows", "split", "train", "row 1"):
        read_labelled(data, label_column="kind")
    with refuses(InvalidOption, data, "'label' or 'class'", "kind", "--label-column"):
        read_labelled(data)
    with refuses(InvalidOption, data, "'kinds'", "did you mean 'kind'"):
        read_labelled(data, label_column="kinds")
    with refuses(InvalidOption, "'path'", "image_column="):
        read_labelled(table("label\n1\n"))
    with refuses(InvalidOption, "2 columns 'label'"):
        read_labelled(table("path,label,label\n"))


def test_missing_labels_are_counted(table, rows):
    data = table("path,label\na.png,cat\nb.png,\nc.png\n")
    with refuses(InvalidOption, data, "2 of 3 rows", "row 2", "remove"):
        read_labelled(data)
    data = rows({"path": ["a", "b", "c"], "label": [1, None, 2]})
    with refuses(InvalidOption, data, "1 of 3 rows", "row 2"):
        read_labelled(data)
    with refuses(InvalidOption, data, "0.5", "text or a whole number", "label_column="):
        read_labelled(rows({"path": ["a"], "label": [0.5]}))


@pytest.mark.parametrize(
    ("column", "names", "images"),
    [
        (["a.png", "b/c.png"], ["a.png", "b/c.png"], [Path("a.png"), Path("b/c.png")]),
        ([b"1", b"22"], ["row 1", "row 2"], [b"1", b"22"]),
        (
            [{"bytes": b"1", "path": "a.png"}, {"bytes": None, "path": "b.png"}],
            ["a.png", "b.png"],
            [b"1", "there is no file /b.png"],
        ),
        ([None, b"22"], ["row 1", "row 2"], ["row 1 of /data.parquet has no image", b"22"]),
        (
            [None, {"bytes": None, "path": None}],
            ["row 1", "row 2"],
            [f"row {i} of /data.parquet has no image: the cell is null" for i in (1, 2)],
        ),
    ],
    ids=["paths", "bytes", "structs", "null", "nothing"],
)
def test_images_in_a_parquet_file(rows, tmp_path, column, names, images):
    found = read_labelled(rows({"image": column, "label": [3, 20], "split": ["train", "test"]}))
    assert [image.name for image in found.images] == names
    for image, expected in zip(found.images, images, strict=True):
        if isinstance(expected, Path):
            assert image.image == tmp_path / expected
        elif isinstance(expected, bytes):
            assert image.image() == expected
        else:
            with refuses(ImageError, expected.replace("/", f"{tmp_path}/", 1)):
                image.image()
    assert [(image.label, image.part) for image in found.images] == [("3", "train"), ("20", "test")]
    assert found.classes == ("3", "20")


@pytest.mark.parametrize(
    ("given", "kind", "classes"),
    [
        ([3, -1, 0, -20], "int64", ("-20", "-1", "0", "3")),
        ([2**64 - 1, 5, 10**18, 10**19], "uint64", None),
        ([-128, 127, 3, 20], "int8", None),
        ([True, False, True, True], "bool", ("False", "True")),
    ],
    ids=["signs", "large", "small", "bool"],
)
def test_whole_numbers_of_any_size_and_sign_are_labels_in_their_order(
    rows, table, given, kind, classes
):
    labels = pa.array(given, kind)
    expected = classes or tuple(map(str, sorted(given)))
    found = read_labelled(rows({"image": [b"1"] * 4, "label": labels}))
    assert [image.label for image in found.images] == [*map(str, given)]
    assert found.classes == expected
    text = "".join(f"{i}.png,{label}\n" for i, label in enumerate(given))
    assert read_labelled(table(f"path,label\n{text}")).classes == expected


def test_more_rows_than_can_be_held_are_refused_before_they_are_read(rows, monkeypatch):
    monkeypatch.setattr(labelled, "MAX_ROWS", 3)
    path = rows({"image": [b"1"] * 4, "label": [1] * 4})
    monkeypatch.setattr(labelled, "read_batches", None)  # a call raises
    with refuses(InvalidOption, "4 rows", "the most is 3", "fewer rows"):
        read_labelled(path)


@pytest.mark.parametrize("struct", [False, True])
def test_the_images_of_a_parquet_file_are_read_one_by_one(rows, struct):
    """100 images of 256 KiB: neither the listing nor reading them has more than some in memory."""
    image = bytes(2**18)
    column = [{"bytes": image, "path": f"{i}.png"} if struct else image for i in range(100)]
    data = rows({"image": column, "label": ["a", "b"] * 50})
    del column
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        found = read_labelled(data)
        assert pa.default_memory_pool().bytes_allocated() - before < 2**20
        assert tracemalloc.get_traced_memory()[1] < 2**21
        for one in found.images:
            assert one.image() == image
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()
    data.unlink()
    with refuses(ImageError, data):
        found.images[0].image()


@pytest.mark.parametrize("kind", ["numbers", "structs"])
def test_columns_that_have_no_images_or_more_than_one_batch(rows, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(labelled, "ROWS", 3)
    cells = (
        list(range(8)) if kind == "numbers" else [{"path": f"{i}.png", "n": i} for i in range(8)]
    )
    found = read_labelled(rows({"image": cells, "label": list(range(8))}))
    images = [b""] * 8 if kind == "numbers" else [tmp_path / f"{i}.png" for i in range(8)]
    assert [one.image for one in found.images] == images
    assert [one.label for one in found.images] == [str(i) for i in range(8)]


def test_class_names_of_the_library_datasets(rows):
    names = ["zebra", "yak", "ant", "bee"]
    info = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    columns = {"image": [b"1", b"2", b"3"], "label": [3, 0, 0]}
    found = read_labelled(rows(columns, {"huggingface": json.dumps(info)}))
    assert [image.label for image in found.images] == ["bee", "zebra", "zebra"]
    assert found.classes == ("zebra", "bee")
    for labels, classes in (
        ([-1, 3, 0], ("-1", "zebra", "bee")),
        ([7, -1, 1], ("-1", "yak", "7")),
        ([-10, -9, 12], ("-10", "-9", "12")),
    ):
        data = rows(columns | {"label": labels}, {"huggingface": json.dumps(info)})
        assert read_labelled(data).classes == classes
    for damaged in ("{", "[]", '{"info": {"features": {"label": {"names": [1]}}}}'):
        found = read_labelled(rows(columns, {"huggingface": damaged}))
        assert found.classes == ("0", "3")


def test_files_that_are_no_tables(tmp_path):
    for name, data in {
        "a.parquet": b"no Parquet",
        "b.parquet": b"",
        "c.csv": b"path,label\n\xff\xfe,1\n",
        "d.csv": b"",
        "e.csv": b'path,label\n"' + b"x" * 200_000,
    }.items():
        path = tmp_path / name
        path.write_bytes(data)
        with refuses(InvalidOption, path):
            read_labelled(path)


def test_texts_of_files_cannot_control_a_terminal(table):
    found = read_labelled(table("path,label\na\x1b[2J.png,c\x07at\n"))
    assert found.classes == (r"c\x07at",)
    assert found.images[0].name == r"a\x1b[2J.png"


# Cells, names and types that are not what a table states


def not_utf8(values, of=None):
    """Return a column of text with bytes that are no UTF-8."""
    of = of or pa.string()
    binary = pa.array(values, pa.large_binary() if of == pa.large_string() else pa.binary())
    return pa.Array.from_buffers(of, len(binary), binary.buffers())


BYTES = [b"a", b"\xff", b"train"]


@pytest.mark.parametrize(
    "columns",
    [
        lambda: {"image": BYTES, "label": not_utf8(BYTES)},
        lambda: {"image": BYTES, "label": not_utf8(BYTES, pa.large_string())},
        lambda: {"path": not_utf8(BYTES), "label": [1, 2, 3]},
        lambda: {"path": ["a", "b", "c"], "label": [1, 2, 3], "split": not_utf8(BYTES)},
        lambda: {
            "image": pa.StructArray.from_arrays([BYTES, not_utf8(BYTES)], ["bytes", "path"]),
            "label": [1, 2, 3],
        },
    ],
    ids=["labels", "large text", "paths", "split", "structs"],
)
def test_text_that_is_no_utf8_is_an_error_of_the_file(rows, columns):
    data = rows(columns())
    with refuses(InvalidOption, data, "0xff", "UTF-8"):
        read_labelled(data)


DATES = {
    "date32[day]": ([2**30, 1], pa.date32()),
    "timestamp[us]": ([2**62, 1], pa.timestamp("us")),
    "timestamp[ns]": ([1, 2], pa.timestamp("ns")),
    "timestamp[us, tz=Nowhere/Land]": ([1, 2], pa.timestamp("us", "Nowhere/Land")),
    "time64[ns]": ([1, 2], pa.time64("ns")),
    "duration[ns]": ([1, 2], pa.duration("ns")),
}


@cases("kind", DATES)
@cases("column", ["image", "label", "split"])
def test_dates_and_times_are_no_labels_paths_or_splits(rows, column, kind):
    columns = {"image": [b"1", b"2"], "label": [1, 2], "split": ["train", "test"]}
    data = rows(columns | {column: pa.array(*DATES[kind])})
    with refuses(InvalidOption, data, repr(column), kind, "text", f"--{column}-column"):
        read_labelled(data)


@cases("kind", DATES)
@cases("column", ["image", "label", "split"])
def test_dates_inside_other_types_are_refused_with_the_column_as_the_cause(rows, column, kind):
    dates = pa.array(*DATES[kind])
    columns = {"image": [b"1", b"2"], "label": [1, 2], "split": ["train", "test"]}
    for cells in (
        pa.StructArray.from_arrays([pa.array([b"1", b"2"]), dates], ["bytes", "path"]),
        pa.ListArray.from_arrays([0, 1, 2], dates),
    ):
        data = rows(columns | {column: cells})
        with pytest.raises(InvalidOption) as caught:
            read_labelled(data)
        says(str(caught.value), data, repr(column), kind, "expected text", f"--{column}-column")
        assert "UTF-8" not in str(caught.value)


def test_the_advice_for_a_damaged_file_is_not_about_its_text(rows):
    data = rows({"label": ["x" * 999, "y" * 999], "path": ["a", "b"]})
    whole = data.read_bytes()
    data.write_bytes(whole[:4] + b"\xff" * 20 + whole[24:])
    with pytest.raises(InvalidOption) as caught:
        read_labelled(data)
    says(str(caught.value), data)
    assert "UTF-8" not in str(caught.value)


def test_class_names_with_spaces_keep_their_order_and_equal_ones_are_told_apart(rows):
    def with_names(names):
        info = {"info": {"features": {"label": {"names": names}}}}
        columns = {"image": [b"1", b"2", b"3"], "label": [0, 2, 1]}
        return rows(columns, {"huggingface": json.dumps(info)})

    found = read_labelled(with_names(["zebra ", " yak", "ant\n"]))
    assert [one.label for one in found.images] == ["zebra", "ant", "yak"]
    assert found.classes == ("zebra", "yak", "ant")
    found = read_labelled(with_names(["a", "b", "a"]))
    assert [one.label for one in found.images] == ["a (0)", "a (2)", "b"]
    assert found.classes == ("a (0)", "b", "a (2)")
    assert read_labelled(with_names(["a", "a ", "b"])).classes == ("a (0)", "a (1)", "b")
    with refuses(InvalidOption, "2", "3"):
        read_labelled(with_names(["", "a", " "]))


@pytest.mark.parametrize("ending", [".parquet", ".csv", ""])
def test_names_of_data_that_are_impossible_or_no_utf8(rows, tmp_path, ending):
    for name in ("a\0b", "a\ud800", "a" * 300):
        with refuses(InvalidOption, tmp_path):
            read_labelled(tmp_path / f"{name}{ending}")
    if ending:
        odd = tmp_path / f"{os.fsdecode(bytes([255]))}{ending}"
        text = b"image,label\na.png,1\nb.png,2\n"
        whole = rows({"image": [b"1", b"22"], "label": [1, 2]}).read_bytes()
        odd.write_bytes(whole if ending == ".parquet" else text)
        found = read_labelled(odd)
        assert found.classes == ("1", "2")
        assert ending == ".csv" or [one.image() for one in found.images] == [b"1", b"22"]


def test_empty_row_groups_of_a_parquet_file(tmp_path):
    table = pa.table({"path": ["a.png", "b.png"], "label": ["x", "y"]})
    data = tmp_path / "data.parquet"
    with parquet.ParquetWriter(data, table.schema) as writer:
        for one in (table.schema.empty_table(), table, table.schema.empty_table(), table):
            writer.write_table(one)
    assert [one.label for one in read_labelled(data).images] == ["x", "y"] * 2


@pytest.mark.slow
def test_cells_that_unpack_to_gigabytes_are_refused(tmp_path):
    one = pa.array(["x" * 10**6])
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 5000), one)
    labels = {
        "page": (one.take(pa.array([0] * 400)), "'label' has 1000000"),
        "repeated": (repeated, "'label' has 1000000"),
        "lists": (pa.ListArray.from_arrays([0, 5000], repeated), "values of type list<"),
        "structs": (pa.StructArray.from_arrays([repeated], ["a"]), "'label' has 1000000"),
        "paths": (pa.StructArray.from_arrays([repeated], ["path"]), "'image' has 1000000"),
        "long": (pa.array(["x" * 4097, "y"]), "4097 characters, the most is 4096"),
        "longest": (pa.array(["x" * 4096, "y"]), ""),
    }
    for name, (column, _) in labels.items():
        other = {"image": [b"1"] * len(column), "label": [1] * len(column)}
        table = pa.table(other | {"image" if name == "paths" else "label": column})
        parquet.write_table(
            table,
            tmp_path / f"{name}.parquet",
            compression="zstd",
            use_dictionary=name not in ("page", "long", "longest"),
        )
    code = """
from pathlib import Path
from vitzoo.apps.probe.labelled import read_labelled

def read(path):
    return len(read_labelled(Path(path)).classes)
"""
    found = run_limited(code, [str(tmp_path / f"{name}.parquet") for name in labels])
    for (name, (_, part)), outcome in zip(labels.items(), found, strict=True):
        if part:
            assert outcome.kind == "InvalidOption", (name, outcome)
            says(outcome.text, tmp_path / f"{name}.parquet", part)
        else:
            assert outcome == ("value", "2", outcome.memory)


@cases(
    ("cells", "names"),
    [
        (["sun;sea", " sea ; ", "", "sun;sun"], ("sea", "sun")),
        (["10;9", "9", "", "10"], ("9", "10")),
    ],
)
def test_a_text_has_several_classes(table, cells, names):
    data = table("path,label\n" + "".join(f"{i}.png,{cell}\n" for i, cell in enumerate(cells)))
    found = read_labelled(data, target="labels")
    first, second = (tuple(x.strip() for x in cell.split(";") if x.strip()) for cell in cells[:2])
    assert [one.labels for one in found.images] == [first, second, (), first[:1]]
    assert found.classes == names


@pytest.mark.slow
def test_a_list_has_several_classes(rows):
    data = rows({"path": ["a", "b", "c"], "label": [["x", "y"], [], ["y"]]})
    found = read_labelled(data, target="labels")
    assert [one.labels for one in found.images] == [("x", "y"), (), ("y",)]
    with refuses(InvalidOption, data, "list<", "text or whole numbers", "--label-column"):
        read_labelled(data)
    data = rows({"path": ["a", "b"], "label": [["x"], None]})
    with refuses(InvalidOption, data, "1 of 2 rows", "row 2"):
        read_labelled(data, target="labels")
    names = {"info": {"features": {"label": {"feature": {"names": ["cat", "ant"]}}}}}
    columns = {"path": ["a", "b"], "label": [[1], [0, 1]]}
    found = read_labelled(rows(columns, {"huggingface": json.dumps(names)}), target="labels")
    assert [one.labels for one in found.images] == [("ant",), ("cat", "ant")]
    assert found.classes == ("cat", "ant")


def test_a_column_of_numbers(table, rows, files):
    data = table("path,age\na.png,2.5\nb.png,-1e3\n")
    found = read_labelled(data, target="number", label_column="age")
    assert [one.number for one in found.images] == [2.5, -1000.0]
    assert found.classes == ("age",)
    assert read_labelled(rows({"path": ["a"], "label": [0.5]}), target="number").images[0].number
    data = table("path,label\na.png,nan\nb.png,1\nc.png,\n")
    with refuses(InvalidOption, data, "2 of 3 rows", "no number in label", "row 1"):
        read_labelled(data, target="number")
    with refuses(InvalidOption, "folder", "target='number'", ".parquet"):
        read_labelled(files("a/1.png"), target="number")
    with refuses(InvalidOption, "target", "'labels'"):
        read_labelled(data, target="label")
