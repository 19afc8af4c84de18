"""Damaged tar archives, Parquet files and images: an error of vitzoo, a row with an error, or rows.

`SEED` draws `FILES` files of each kind. The name of a file, which a failure states, has the seed
and the number of the file.
"""

from __future__ import annotations

import io
import os
import random
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from limited import run_limited

pytestmark = pytest.mark.fuzz

SEED = int(os.environ.get("VITZOO_FUZZ_SEED", "27"))
FILES = int(os.environ.get("VITZOO_FUZZ_CASES", "120"))
ROWS = """
from vitzoo.errors import ImageError
from vitzoo.apps.embed.sources import find_pieces, sha256_of

def read(path):
    pieces = find_pieces(path)
    sha256_of(pieces)
    counts = [0, 0]
    for item in (item for piece in pieces for item in piece.items()):
        try:
            counts[bool(item.load())] += 1
        except ImageError:
            counts[0] += 1
        if sum(counts) > 10_000:
            return "many"
    return counts
"""
DECODES = """
import warnings
from pathlib import Path
import vitzoo
from vitzoo.errors import ImageError

warnings.simplefilter("ignore")  # Pillow warns of odd metadata
predictor = vitzoo.Predictor(vitzoo.create("vit_digits", pretrained=True), outputs="pooled")
transform = vitzoo.transform("vit_b16", image_size=32)

def read(path):
    row = predictor.decode(Path(path).read_bytes())
    if row.error:
        return "error"
    return tuple(transform(path).shape)
"""


def damaged(data, chance):
    """Return bytes with some changed, repeated, removed or cut off."""
    data = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(max(len(data), 1))
        size = chance.choice((1, 2, 4, 16, 512))
        kind = chance.choice(("change", "change", "number", "repeat", "remove", "cut"))
        if kind == "change":
            data[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == "number":  # a size, a count or an offset that is wrong by much
            number = chance.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63))
            data[at : at + 8] = number.to_bytes(8, chance.choice(("big", "little")))
        elif kind == "repeat":
            data[at:at] = data[at : at + size] * chance.choice((1, 100))
        elif kind == "remove":
            del data[at : at + size]
        else:
            del data[at + len(data) // 2 :]
    return bytes(data)


def check(code, files, path):
    """Read each file in a child with limits; some are read, and some are refused."""
    paths = []
    for number, (suffix, data) in enumerate(files):
        paths.append(path / f"seed-{SEED}-{number}{suffix}")
        paths[-1].write_bytes(data)
    assert len(paths) == FILES
    return run_limited(code, [str(one) for one in paths])


def archives():
    """Yield archives with long names, pax records, links and sparse files."""
    for kind in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=kind) as archive:
            for i, name in enumerate(("a.jpg", "d" * 90 + "/" + "n" * 60 + ".jpg", "é.png")):
                info = tarfile.TarInfo(name)
                info.size, info.mtime = 600, 1.5
                info.pax_headers = {"comment": "x" * 40, "GNU.sparse.size": "600"} if i else {}
                archive.addfile(info, io.BytesIO(bytes(600)))
            link = tarfile.TarInfo("l.jpg")
            link.type, link.linkname = tarfile.SYMTYPE, "a.jpg"
            archive.addfile(link)
            sparse = tarfile.TarInfo("s.jpg")
            sparse.type = tarfile.GNUTYPE_SPARSE
            archive.addfile(sparse)
        yield file.getvalue()


def with_checksums(data, chance):
    """Return an archive in which fields of headers are changed, with right checksums."""
    data = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) // 512) * 512
        field, size = chance.choice(
            ((0, 100), (124, 12), (156, 1), (345, 155), (386, 96), (482, 1))
        )
        values = (b"x", b"g", b"L", b"K", b"S", b"0", b"5", b"\xff" * size, b"7" * size, b"\x80")
        values += (b"\xff" * (size - 2) + b"\xfa\0",)  # a negative size
        value = chance.choice(values)[:size]
        data[at + field : at + field + len(value)] = value
        header = bytes(data[at : at + 148]) + b" " * 8 + bytes(data[at + 156 : at + 512])
        data[at + 148 : at + 156] = b"%06o\0 " % sum(header)
    return bytes(data[: at + 512 * chance.choice((1, 2, 3, 100))])


def test_damaged_archives(tmp_path):
    chance, bases = random.Random(SEED), list(archives())

    def files():
        for number in range(FILES):
            change = with_checksums if number % 2 else damaged
            yield ".tar", change(bases[number % 3], chance)

    found = check(ROWS, files(), tmp_path)
    assert {one.kind for one in found} == {"value", "ImageError"}


def tables():
    """Yield Parquet files of several encodings, codecs and kinds of columns."""
    images = [bytes([i]) * (50 * i) for i in range(1, 40)]
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    columns = [
        pa.array(images, pa.binary()),
        pa.array([{"bytes": image, "path": "a.jpg"} for image in images], struct),
        pa.array([f"{i}.jpg" for i in range(39)]),
        pa.array([images[0]] * 39, pa.binary()),
    ]
    options = [
        {"compression": "zstd", "use_dictionary": False},
        {"compression": "snappy", "row_group_size": 10},
        {"compression": "gzip", "data_page_version": "2.0", "use_dictionary": False},
        {"compression": "none", "use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
        {"compression": "lz4", "data_page_size": 100, "write_batch_size": 5},
    ]
    for column in columns:
        for option in options:
            file = io.BytesIO()
            table = pa.table({"n": list(range(39)), "image": column})
            encoding = option.get("column_encoding")
            if encoding and pa.types.is_struct(column.type):
                continue
            more = {"column_encoding": {"image": encoding}} if encoding else {}
            pq.write_table(table, file, **option | more)
            yield file.getvalue()


def test_damaged_parquet_files(tmp_path):
    chance, bases = random.Random(SEED), list(tables())
    files = ((".parquet", damaged(chance.choice(bases), chance)) for _ in range(FILES))
    found = check(ROWS, files, tmp_path)
    assert {one.kind for one in found} >= {"value", "ImageError"}
    assert {one.kind for one in found} <= {"value", "ImageError", "InvalidOption"}


def images():
    """Yield images of every format and several modes."""
    noise = np.random.default_rng(SEED).integers(0, 256, (40, 60, 4), np.uint8)
    for mode, formats in {
        "RGB": ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM", "JPEG2000", "AVIF"),
        "RGBA": ("PNG", "TIFF", "WEBP", "JPEG2000"),
        "P": ("PNG", "GIF"),
        "I;16": ("PNG", "TIFF"),
    }.items():
        image = (
            Image.fromarray(noise, "RGBA") if mode == "RGBA" else Image.fromarray(noise[..., :3])
        )
        image = image.convert("I").convert(mode) if mode == "I;16" else image.convert(mode)
        for name in formats:
            for options in ({}, {"progressive": True}) if name == "JPEG" else ({},):
                file = io.BytesIO()
                image.save(file, name, **options)
                yield file.getvalue()


@pytest.mark.filterwarnings("ignore:'mode' parameter is deprecated")
def test_damaged_images(tmp_path):
    chance, bases = random.Random(SEED), list(images())
    files = ((".png", damaged(chance.choice(bases), chance)) for _ in range(FILES))
    found = check(DECODES, files, tmp_path)
    assert {one.kind for one in found} >= {"value"}
    assert {one.text for one in found} >= {"error", "(3, 32, 32)"}
