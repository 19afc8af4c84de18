"""Labelled images: a folder with a folder for each class, or a CSV or Parquet file."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitzoo.errors import InvalidOption, did_you_mean, printable
from vitzoo.images.decode import SUFFIXES
from vitzoo.inference.embedding.archives import kind_of, read_cell
from vitzoo.plugin.requirements import check_extra
from vitzoo.schema.reader import describe

CSV, TSV, PARQUET = ".csv", ".tsv", ".parquet"
IMAGE, LABEL, SPLIT = ("path", "image", "file_name", "file"), ("label", "class"), ("split",)
TRAIN, TEST, VALIDATION = ("train", "training"), ("test",), ("val", "valid", "validation")
Image = Path | bytes | Callable[[], bytes]
ROWS = 1024  # of a Parquet file that are in memory at once
INTEGER = re.compile(r"-?\d{1,99}")


@dataclass(frozen=True)
class LabelledImage:
    """One image of a labelled data set.

    Args:
        name: for messages and results: the path as it is written, or the number of the row.
        image: path, bytes, or a function that reads the bytes or raises ImageError.
        label: its class.
        part: `train`, `test` or `validation`; empty if the data does not say.
    """

    name: str
    image: Image
    label: str
    part: str = ""


@dataclass(frozen=True)
class LabelledImages:
    """The images of a data set, and all class names in their order."""

    images: Sequence[LabelledImage]
    classes: tuple[str, ...]


def read_labelled(
    data: Path, *, image: str | None = None, label: str | None = None, split: str | None = None
) -> LabelledImages:
    """Find the images of a data set and their classes; no image is opened.

    A folder has one folder for each class, or `train` and `test` (or `val`) with these. A CSV file
    (a TSV file with tabs) has a line of column names; a path is relative to the file's folder. The
    column of images in a Parquet file has paths, bytes, or structs with `bytes` and `path`.

    Args:
        data: the folder, or a `.csv`, `.tsv` or `.parquet` file.
        image, label, split: names of the columns. None: the first of `path`, `image`, `file_name`
            and `file`; of `label` and `class`; and `split`, if there is one.

    Raises:
        InvalidOption: there is no such data or column, or an image has no class.
        MissingDependency: pyarrow is needed.
    """
    if data.is_dir():
        named = [name for name in (image, label, split) if name is not None]
        if named:
            raise InvalidOption(
                f"{data} is a folder, which has no column {named[0]!r}; leave the names of columns "
                "out, or name a CSV or Parquet file"
            )
        return _folder(data)
    read = {CSV: _csv, TSV: _csv, PARQUET: _parquet}.get(data.suffix.lower())
    if read is None or not data.is_file():
        there = data.exists()
        what = "this file lists no labelled images" if there else "there is no such folder or file"
        raise InvalidOption(
            f"{data}: {what}; expected a folder with a folder for each class, or a {CSV}, {TSV} or "
            f"{PARQUET} file"
        )
    return read(data, (image, label, split))


def _folder(data: Path) -> LabelledImages:
    parts = _parts(data)
    images: list[LabelledImage] = []
    names: list[str] = []
    for part, folder in (parts or {"": data}).items():
        found, classes = _classes(data, folder, part)
        images += found
        names += classes
    return LabelledImages(images, _sorted(names))


def _parts(data: Path) -> dict[str, Path] | None:
    """Return the folders of training, validation and test images; None for folders of classes."""
    found = {}
    for part, names in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST)):
        folder = next((data / name for name in names if (data / name).is_dir()), None)
        if folder is not None:
            found[part] = folder
    if "train" in found and len(found) == 1 and len(_folders(data)) == 1:
        raise InvalidOption(
            f"{data} has {found['train'].name}/ but no folder test or val; add one, or pass "
            f"{found['train']}, which is then split"
        )
    return found if "train" in found and len(found) > 1 else None


def _folders(path: Path) -> list[Path]:
    try:
        found = [inner for inner in path.iterdir() if inner.is_dir() and inner.name[0] != "."]
    except OSError as error:
        raise InvalidOption(f"cannot read {path}: {error.strerror}") from error
    return sorted(found, key=lambda inner: inner.name)


def _classes(data: Path, folder: Path, part: str) -> tuple[list[LabelledImage], tuple[str, ...]]:
    """Return the images of a folder with one folder for each class, and the classes."""
    folders = _folders(folder)
    if not folders:
        raise InvalidOption(
            f"{folder} has no folders; expected one folder of images for each class, named as the "
            "class"
        )
    images, classes = [], []
    for one in folders:
        paths = sorted(_images_below(one))
        if not paths:
            raise InvalidOption(
                f"{one} contains no images ({', '.join(SUFFIXES)}); every folder in {folder} is a "
                "class: remove it, or add its images"
            )
        classes.append(printable(one.name))
        images += [
            LabelledImage(printable(path.relative_to(data)), path, classes[-1], part)
            for path in paths
        ]
    return images, tuple(classes)


def _images_below(folder: Path) -> Iterable[Path]:
    """Yield the image files in a folder and its folders; links to folders are not followed."""
    for place, _, files in os.walk(folder):
        for name in files:
            if name[0] != "." and name.lower().endswith(SUFFIXES):
                yield Path(place, name)


def _csv(data: Path, columns: Sequence[str | None]) -> LabelledImages:
    try:
        with data.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file, delimiter="\t" if data.suffix.lower() == TSV else ",")
            header = next(rows, [])
            table = [row for row in rows if row]
    except OSError as error:
        raise InvalidOption(f"cannot read {data}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidOption(f"{data} is no table in UTF-8: {error}") from error
    names = _columns(data, header, columns)
    places = [header.index(name) if name else None for name in names]
    cells = [[row[i] if i is not None and i < len(row) else None for row in table] for i in places]
    return _table(data, *cells, names=names)


def _parquet(data: Path, columns: Sequence[str | None]) -> LabelledImages:
    check_extra("parquet", "vitzoo.probe")
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(data) as file:
            schema, count = file.schema_arrow, file.metadata.num_rows
            names = _columns(data, schema.names, columns)
            stored = kind_of(schema.field(names[0]).type) == "bytes"
            wanted = [f"{names[0]}.path" if stored else names[0], *names[1:]]
            cells: dict[str | None, list[Any]] = {}
            for batch in file.iter_batches(ROWS, columns=[name for name in wanted if name]):
                for name, values in batch.to_pydict().items():
                    cells.setdefault(name, []).extend(values)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidOption(f"{data} is no Parquet file that can be read: {reason}") from error
    images, labels, parts = (cells.get(name, [None] * count) for name in names)
    known = _class_names(schema.metadata or {}, names[1])
    if known:
        labels = [known[i] if type(i) is int and 0 <= i < len(known) else i for i in labels]
    found = _table(data, images, labels, parts, names=names, order=known)
    if not stored:
        return found
    read = partial(read_cell, str(data), str(names[0]))
    rows = [replace(one, image=partial(read, row)) for row, one in enumerate(found.images)]
    return LabelledImages(rows, found.classes)


def _class_names(metadata: dict[bytes, bytes], column: str | None) -> list[str]:
    """Return the names of a `ClassLabel` in the metadata of the library datasets; usually none."""
    try:
        info = json.loads(metadata[b"huggingface"])["info"]
        names = info["features"][column]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return names if isinstance(names, list) and all(isinstance(n, str) for n in names) else []


def _columns(data: Path, header: Sequence[str], wanted: Sequence[str | None]) -> list[str | None]:
    """Return the names of the columns of images, labels and parts; the last may be missing."""
    found: list[str | None] = []
    kinds = (("image", IMAGE), ("label", LABEL), ("split", SPLIT))
    for (kind, usual), name in zip(kinds, wanted, strict=True):
        names = usual if name is None else (name,)
        column = next((one for one in names if one in header), None)
        if column is None and (name is not None or kind != "split"):
            shown = ", ".join(map(printable, header)) or "none"
            hint = did_you_mean(names[0], header)
            raise InvalidOption(
                f"{data} has no column {' or '.join(map(repr, names))}{hint}; it has: {shown}; "
                f"name the column: {kind}_column=, in the shell --{kind}-column"
            )
        if column is not None and header.count(column) > 1:
            raise InvalidOption(f"{data} has {header.count(column)} columns {column!r}; keep one")
        found.append(column)
    return found


def _table(
    data: Path,
    images: Sequence[Any],
    labels: Sequence[Any],
    parts: Sequence[Any],
    *,
    names: Sequence[str | None],
    order: Sequence[str] = (),
) -> LabelledImages:
    texts = [_label(data, value) for value in labels]
    _refuse(data, f"no {names[1]}", [text == "" for text in texts])
    places = [_part(value) if names[2] else "" for value in parts]
    known = f"a {names[2]} that is none of {', '.join(TRAIN + TEST + VALIDATION)}"
    _refuse(data, known, [part is None for part in places])
    found = [
        LabelledImage(*_image(data, number, value), text, part or "")
        for number, (value, text, part) in enumerate(zip(images, texts, places, strict=True), 1)
    ]
    classes = set(texts)
    named = [name for name in order if name in classes]
    others = _sorted(classes.difference(named))  # numbers that have no name
    below = [text for text in others if text.startswith("-")]
    return LabelledImages(found, tuple(dict.fromkeys((*below, *named, *others))))


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    """Return class names in their order: by number if all are whole numbers, else by letters."""
    unique = sorted(set(names))
    return tuple(sorted(unique, key=int) if all(map(INTEGER.fullmatch, unique)) else unique)


def _refuse(data: Path, what: str, bad: Sequence[bool]) -> None:
    """Raise an error that counts bad rows and names the first."""
    count = sum(bad)
    if count:
        raise InvalidOption(
            f"{data}: {count} of {len(bad)} rows have {what}, the first is row "
            f"{bad.index(True) + 1}; correct these rows, or remove them"
        )


def _label(data: Path, value: Any) -> str:
    if value is None or isinstance(value, str):
        return printable((value or "").strip())
    if isinstance(value, int):
        return str(value)
    raise InvalidOption(
        f"{data}: a label is {describe(value)}, expected a text or a whole number; name another "
        "column with label_column=, in the shell --label-column"
    )


def _part(value: Any) -> str | None:
    text = value.strip().lower() if isinstance(value, str) else ""
    parts = {"train": TRAIN, "test": TEST, "validation": VALIDATION}
    return next((part for part, names in parts.items() if text in names), None)


def _image(data: Path, number: int, value: Any) -> tuple[str, Path | bytes]:
    """Return name and place of an image; a missing one has no bytes, and so cannot be read."""
    stated = value.get("path") if isinstance(value, dict) else value
    inside = value.get("bytes") if isinstance(value, dict) else value
    name = printable(stated) if isinstance(stated, str) and stated else f"row {number}"
    if isinstance(inside, bytes):
        return name, inside
    if isinstance(stated, str) and stated:
        return name, data.parent / stated
    return name, b""
