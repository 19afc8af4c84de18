"""Labelled images: a folder with a folder for each class, or a CSV or Parquet file."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vitzoo.apps.embed.parquet_helper import Column
from vitzoo.apps.embed.parquet_reader import parquet_file
from vitzoo.apps.embed.parquet_rows import read_batches, read_cell
from vitzoo.apps.probe.division import Division, divide
from vitzoo.display import brief
from vitzoo.errors import ImageError, InvalidOption, did_you_mean, printable
from vitzoo.images.file_bytes import read_bytes
from vitzoo.images.find import LeftOut, images_in, is_hidden
from vitzoo.keywords import check_choice, check_keywords, check_types
from vitzoo.plugin.requirements import check_extra
from vitzoo.registry.label_sets import distinct
from vitzoo.schema.reader import describe
from vitzoo.text import listed

CSV, TSV, PARQUET = ".csv", ".tsv", ".parquet"
IMAGE, LABEL, SPLIT = ("path", "image", "file_name", "file"), ("label", "class"), ("split",)
PARTS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test",),
}
CLASS, LABELS, NUMBER = TARGETS = "class", "labels", "number"  # what an image is labelled with
SEPARATOR = ";"  # of the classes in a text
Image = Path | bytes | Callable[[], bytes]
Answer = tuple[str, tuple[str, ...], float | None]  # the last fields of a LabelledImage
MAX_ROWS = 2**24  # of a Parquet file; each takes memory and time
ROWS = 1024  # of a Parquet file that are in memory at once
MAX_TEXT = 4096  # characters of a label or a path in a Parquet file, as Linux allows for a path
MAX_NAMES = 2**24  # bytes of the metadata with class names
INTEGER = re.compile(r"-?\d{1,99}")


@dataclass(frozen=True)
class LabelledImage:
    """One image of a labelled data set.

    Args:
        name: for messages and results: the path as it is written, or the number of the row.
        image: path, bytes, or a function that reads the bytes or raises ImageError.
        label: its class; its classes or its number as text.
        part: `train`, `test` or `validation`; empty if the data does not say.
        labels: all its classes, if an image may have several.
        number: what a regression learns.
    """

    name: str
    image: Image
    label: str
    part: str = ""
    labels: tuple[str, ...] = ()
    number: float | None = None

    def read(self) -> bytes:
        """Return the bytes of the image file; raise ImageError if it cannot be read."""
        if isinstance(self.image, Path):
            return read_bytes(self.image)
        return self.image() if callable(self.image) else self.image


@dataclass(frozen=True)
class LabelledImages:
    """The images of a data set, all class names in their order, and the files left out.

    `left_out` is the number of the other files in folders by ending, without hidden files.
    `target` is `class`, `labels` or `number`; numbers have the name of their column as `classes`.
    """

    images: Sequence[LabelledImage]
    classes: tuple[str, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    target: str = CLASS

    __repr__ = brief

    def divide(self, sha256: Sequence[str], *, share: float = 0.2, seed: int = 0) -> Division:
        """Return which images train, which choose, and which test.

        The parts of the data stay. If it has no validation images, a share of the training images
        of each class becomes these, chosen by their hashes and the seed. Equal bytes are on one
        side. A class with one image trains.

        Args:
            sha256: of the bytes of each image; empty for images that cannot be read.
            share: of the training images.
            seed: of the choice.
        """
        labels, parts = [one.label for one in self.images], [one.part for one in self.images]
        classes = None if self.target == CLASS else [one.labels for one in self.images]
        return divide(labels, parts, sha256, share, seed, classes)


@check_keywords()
def read_labelled(
    data: str | os.PathLike[str],
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    target: str = CLASS,
) -> LabelledImages:
    """Find the images of a data set and their classes; no image is opened.

    A folder has one folder for each class, or `train`, `val` and `test` with these. A CSV file
    (a TSV file with tabs) has a line of column names; a path is relative to the file's folder. The
    column of images in a Parquet file has paths, bytes, or structs with `bytes` and `path`.

    Args:
        data: the folder, or a `.csv`, `.tsv` or `.parquet` file.
        image_column, label_column, split_column: names of the columns of a file. None: the first of
            `path`, `image`, `file_name` and `file`; of `label` and `class`; and `split`, if there
            is one.
        target: `class`: each image has one class. `labels`: each has any number of classes, in a
            text with `;` between them, or in a list of Parquet; an empty text is no class.
            `number`: each has a number. The last two need a file.

    Raises:
        InvalidOption: there is no such data or column, or an image has no class or number.
        MissingDependency: pyarrow is needed.
    """
    check_types("read_labelled", data=(data, "text or a path"))
    path, columns = Path(data), (image_column, label_column, split_column)
    check_choice("target", target, TARGETS)
    check_data(path)
    if not os.path.isdir(path):  # noqa: PTH112  # never raises
        return (_parquet if path.suffix.lower() == PARQUET else _csv)(path, columns, target)
    if target != CLASS:
        raise InvalidOption(
            f"{path} is a folder, whose images have one class each; for target={target!r} name a "
            f"{CSV}, {TSV} or {PARQUET} file"
        )
    if named := [name for name in columns if name is not None]:
        raise InvalidOption(
            f"{path} is a folder, which has no column {named[0]!r}; leave the names of columns "
            "out, or name a CSV or Parquet file"
        )
    return _folder(path)


def check_data(data: Path) -> None:
    """Raise InvalidOption unless there is such a folder, or a file with a known ending."""
    is_table = data.suffix.lower() in (CSV, TSV, PARQUET) and os.path.isfile(data)  # noqa: PTH113
    if not is_table and not os.path.isdir(data):  # noqa: PTH112
        there = os.path.exists(data)  # noqa: PTH110
        what = "this file lists no labelled images" if there else "there is no such folder or file"
        raise InvalidOption(
            f"{data}: {what}; expected a folder with a folder for each class, or a {CSV}, {TSV} or "
            f"{PARQUET} file"
        )


def _folder(data: Path) -> LabelledImages:
    parts = _parts(data).items()
    left_out = LeftOut()
    images = [one for part, folder in parts for one in _images(data, folder, part, left_out)]
    return LabelledImages(images, _sorted(image.label for image in images), dict(left_out))


def _parts(data: Path) -> dict[str, Path]:
    """Return the folders of training, validation and test images; or of all, by no name."""
    found: dict[str, Path] = {}
    for part, names in PARTS.items():
        folders = [data / name for name in names if (data / name).is_dir()]
        found |= {part: folders[0]} if folders else {}
    alone = "train" in found and len(_folders(data)) == 1 and bool(_folders(found["train"]))
    return found if "train" in found and (len(found) > 1 or alone) else {"": data}


def _folders(path: Path) -> list[Path]:
    try:
        found = [inner for inner in path.iterdir() if inner.is_dir() and not is_hidden(inner.name)]
    except OSError as error:
        raise InvalidOption(f"cannot read {path}: {error.strerror}") from error
    return sorted(found, key=lambda inner: inner.name)


def _images(data: Path, folder: Path, part: str, left_out: LeftOut) -> Iterator[LabelledImage]:
    """Yield the images of a folder with one folder for each class."""
    folders = _folders(folder)
    if not folders:
        raise InvalidOption(
            f"{folder} has no folders; expected one folder of images for each class, named as the "
            "class"
        )
    for one in folders:
        fix = f"every folder in {folder} is a class: remove it, or add its images"
        try:
            paths = [*map(Path, images_in(one, left_out, fix=fix))]
        except ImageError as error:
            raise InvalidOption(str(error)) from error
        for path in paths:
            name = printable(path.relative_to(data).as_posix())
            yield LabelledImage(name, path, printable(one.name), part)


def _csv(data: Path, columns: Sequence[str | None], target: str) -> LabelledImages:
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
    return _table(data, *cells, names=names, target=target)


def _parquet(data: Path, columns: Sequence[str | None], target: str) -> LabelledImages:
    check_extra("parquet", "vitzoo.probe")
    try:
        file = parquet_file(str(data))
        count = file.outline.rows
        if count > MAX_ROWS:
            raise InvalidOption(
                f"{data} has {count} rows, the most is {MAX_ROWS}; write fewer rows to the file"
            )
        names = _columns(data, [one.name for one in file.columns], columns)
        found = {one.name: one for one in file.columns}
        _check_types(data, found, names, target)
        stored = found[str(names[0])].kind == "bytes"
        wanted = [f"{names[0]}{'.path' * stored}", *filter(None, names[1:])]
        cells: dict[str | None, list[Any]] = {}
        for batch in read_batches(str(data), wanted, count, ROWS, MAX_TEXT):
            for name, values in batch.items():
                cells.setdefault(name, []).extend(values)
    except ImageError as error:
        where = "" if printable(data) in str(error) else f"{data}: "
        text = ", with text in UTF-8" if "codec can't decode" in str(error) else ""
        raise InvalidOption(f"{where}{error}; write the file again{text}") from error
    images, labels, parts = (cells.get(name, [None] * count) for name in names)
    stated = [_label(data, name) for name in _class_names(file.outline.metadata, names[1])]
    known = [own and name for own, name in zip(stated, distinct(stated), strict=True)]
    if known:
        labels = [_named(cell, known) for cell in labels]
    table = _table(data, images, labels, parts, names=names, order=known, target=target)
    if not stored:
        return table
    read = partial(read_cell, str(data), str(names[0]))
    rows = [replace(one, image=partial(read, row)) for row, one in enumerate(table.images)]
    return replace(table, images=rows)


def _named(cell: Any, names: Sequence[str]) -> Any:
    """Return the names of a number, or of the numbers in a list; what has no name is unchanged."""
    if isinstance(cell, list):
        return [_named(one, names) for one in cell]
    return names[cell] if type(cell) is int and 0 <= cell < len(names) else cell


def _check_types(
    data: Path, columns: dict[str, Column], names: Sequence[str | None], target: str
) -> None:
    """Refuse dates and times, which have values that Python cannot represent, and other lists."""
    for kind, name in zip(("image", "label", "split"), names, strict=True):
        if name is None or columns[name].plain:
            continue
        if columns[name].listed and kind == "label" and target == LABELS:
            continue
        what = {LABELS: "text or lists of text", NUMBER: "numbers"} if kind == "label" else {}
        raise InvalidOption(
            f"{data}: the column {name!r} has values of type {columns[name].type}, expected "
            f"{what.get(target, 'text or whole numbers')}; name another column: "
            f"{kind}_column=, in the shell --{kind}-column"
        )


def _class_names(metadata: dict[bytes, bytes], column: str | None) -> list[str]:
    """Return the names of a `ClassLabel` in the metadata of the library datasets; usually none."""
    try:
        info = json.loads(metadata[b"huggingface"][:MAX_NAMES])["info"]
        feature = info["features"][column]
        names = feature.get("feature", feature)["names"]  # the first is that of a list
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
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
            shown = listed(list(header)) or "none"
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
    target: str,
) -> LabelledImages:
    read = {CLASS: _class, LABELS: _labels, NUMBER: _number}[target]
    answers = [read(data, value) for value in labels]
    what = f"no number in {names[1]}" if target == NUMBER else f"no {names[1]}"
    _refuse(data, what, [one is None for one in answers])
    places = [_part(value) if names[2] else "" for value in parts]
    known = f"a {names[2]} that is none of {', '.join(itertools.chain(*PARTS.values()))}"
    _refuse(data, known, [part is None for part in places])
    found = [
        LabelledImage(*_image(data, i, value), answer[0], part or "", *answer[1:])
        for i, (value, answer, part) in enumerate(zip(images, answers, places, strict=True), 1)
        if answer is not None
    ]
    if target == NUMBER:
        return LabelledImages(found, (printable(str(names[1])),), target=target)
    classes = {name for one in found for name in (one.labels if target == LABELS else [one.label])}
    named = [name for name in order if name in classes]
    others = _sorted(classes.difference(named))  # numbers that have no name
    below = [text for text in others if text.startswith("-")]
    ordered = tuple(dict.fromkeys((*below, *named, *others)))
    return LabelledImages(found, ordered, target=target)


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


def _class(data: Path, value: Any) -> Answer | None:
    text = _label(data, value)
    return (text, (), None) if text else None


def _labels(data: Path, value: Any) -> Answer | None:
    """Return the classes in a list, or in a text; None for a cell that is missing."""
    if value is None:
        return None
    cells = value.split(SEPARATOR) if isinstance(value, str) else value
    cells = cells if isinstance(cells, list) else [cells]
    names = tuple(dict.fromkeys(filter(None, (_label(data, one) for one in cells))))
    return f"{SEPARATOR} ".join(names), names, None


def _number(_data: Path, value: Any) -> Answer | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return (repr(number), (), number) if math.isfinite(number) else None


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
    return next((part for part, names in PARTS.items() if text in names), None)


def _image(data: Path, number: int, value: Any) -> tuple[str, Path | bytes]:
    """Return name and place of an image; a missing one has no bytes, and so cannot be read."""
    stated = value.get("path") if isinstance(value, dict) else value
    if isinstance(stated, str) and stated:
        return printable(stated), data.parent / stated
    return f"row {number}", b""
