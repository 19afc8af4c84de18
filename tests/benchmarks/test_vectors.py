"""`vitzoo check-vectors` against reading the vectors alone."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from safetensors.numpy import load_file, save_file

import vitzoo
from vitzoo_vectors import check_vectors, write_sidecar
from vitzoo_vectors.files import read_file
from vitzoo_vectors.stored import Request

pytestmark = pytest.mark.benchmark

COUNT, WIDTH = 100_000, 768  # 300 MB
IDENTITY = f"vz1:other:{'a' * 26}:{'b' * 26}"
DIGITS = Path(vitzoo.__file__).parents[1] / "docs" / "examples" / "digits"
READERS = {
    ".npy": np.load,
    ".safetensors": load_file,
    ".parquet": lambda path: parquet.read_table(path, columns=["pooled"]),
}


def write(path, vectors, keys, stated):
    if path.suffix == ".npy":
        np.save(path, vectors)
        if stated:
            write_sidecar(path, IDENTITY)
    elif path.suffix == ".safetensors":
        save_file({"pooled": vectors}, path, {"vitzoo.identity": IDENTITY})
    else:
        column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1])
        table = pa.table({"key": keys, "pooled": column})
        table = table.replace_schema_metadata({"vitzoo.identity": IDENTITY} if stated else {})
        parquet.write_table(table, path, row_group_size=4096, use_dictionary=False)


@pytest.fixture(params=READERS)
def file(request, tmp_path):
    path = tmp_path / f"a{request.param}"
    vectors = np.random.default_rng(0).standard_normal((COUNT, WIDTH), np.float32)
    write(path, vectors, [f"{i:06}.png" for i in range(COUNT)], stated=True)
    yield path
    path.unlink()


def test_all_vectors_are_read(compare, file):
    file.with_name(f"{file.name}.vitzoo.json").unlink(missing_ok=True)  # reading, not hashing
    images = [f"{i:06}.png" for i in range(COUNT)]
    request = Request(("pooled", "vector"), images, COUNT)

    def read():  # `sum`, because npy is mapped
        return read_file(file, request).vectors.sum(axis=1)

    def alone():
        found = READERS[file.suffix](file)
        if file.suffix == ".parquet":
            parts = [chunk.flatten().to_numpy() for chunk in found["pooled"].chunks]
            return np.concatenate(parts).reshape(COUNT, WIDTH).sum(axis=1)
        return (found["pooled"] if isinstance(found, dict) else found).sum(axis=1)

    title = f"read {COUNT:,} vectors of a {file.suffix[1:]} file"
    result = compare(title, {"vitzoo": read, "reading the vectors": alone})
    if file.suffix != ".parquet":  # read in another process
        result.check("reading the vectors", at_least=1 / 1.2)


def test_a_check_of_what_is_stated_takes_a_second_as_a_process(compare, file):
    def process(*command):
        subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.DEVNULL)

    sides = {"vitzoo": lambda: process("-m", "vitzoo", "check-vectors", file)}
    title = f"check the identity of a {file.suffix[1:]} file with {COUNT:,} vectors"
    result = compare(title, sides | {"bare interpreter": lambda: process("-c", "pass")})
    compare.record(title, "a new process", result.median("vitzoo"), at_most=1, unit="s")


@pytest.mark.parametrize(("suffix", "count"), [(".npy", 1000), (".parquet", 10_000)])
def test_a_full_check_computes_images_and_reads_vectors(compare, tmp_path, suffix, count):
    images = [tmp_path / f"{i:04}.png" for i in range(count)]
    digits = sorted(DIGITS.glob("*.png"))
    for i, image in enumerate(images):
        image.write_bytes(digits[i % len(digits)].read_bytes())
    file = tmp_path / f"a{suffix}"
    rows = vitzoo.Predictor("vit_digits")(images)
    vectors = np.stack([row.outputs["pooled"] for row in rows])
    write(file, vectors, [*map(str, images)], stated=False)

    def alone():
        predictor = vitzoo.Predictor("vit_digits", outputs="pooled")
        return READERS[suffix](file), [row.outputs["pooled"] for row in predictor.rows(images)]

    def check():
        return check_vectors(file, "vit_digits", images=images, rows=None)

    assert check().compared == len(images)
    title = f"check {count:,} vectors of a {suffix[1:]} file with their images, vit_digits"
    result = compare(title, {"vitzoo": check, "vectors and images alone": alone})
    result.check("vectors and images alone", at_least=1 / 1.2)
