"""`vitzoo.ray.Embedder`: the rows of `Predictor` in Ray Data, also if a worker is killed."""

import os
import subprocess
import sys
import tempfile
from copy import deepcopy
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

import vitzoo
from helpers import refuses, says
from vitzoo.errors import InvalidOption, MissingDependency

ROOT = Path(__file__).parents[2]
NEEDS_RAY = pytest.mark.slow  # the quick tests do not install it
FILES = sorted((ROOT / "docs" / "examples" / "digits").glob("*.png"))


@pytest.fixture(scope="module")
def predictor():
    return vitzoo.Predictor("vit_digits", outputs=("pooled", "labels"))


def column(*values):
    """Return a column as Ray Data gives it: objects, unless all are arrays of one shape."""
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def check(table, keys, rows):
    """Compare a table with the rows of a `Predictor`, byte for byte."""
    assert table.num_rows == len(rows)
    for said, key, row in zip(table.to_pylist(), keys, rows, strict=True):
        assert said["key"] == key
        assert said["error"] == (row.error or None)
        assert said["sha256"] == (row.sha256 or None)
        assert (said["width"], said["height"]) == (row.width or None, row.height or None)
        if row.error:
            assert np.isnan(said["pooled"]).all()
            assert said["labels"] is None
            continue
        assert np.float32(said["pooled"]).tobytes() == row.outputs["pooled"].tobytes()
        ranks = [(one["index"], one["label"], one["probability"]) for one in said["labels"]]
        assert ranks == list(row.outputs["labels"])


@NEEDS_RAY
def test_a_row_that_is_not_finite_is_an_error(predictor):
    model = deepcopy(predictor.model)
    with torch.no_grad():
        model.patch_embed.proj.weight.fill_(3e38)
    model.preprocessing = vitzoo.Preprocessing(mean=(0,), std=(1,))
    images = [np.full((28, 28), value, np.uint8) for value in (0, 255)]
    table = vitzoo.ray.Embedder(model)({"image": column(*images), "key": column("a", "b")})
    black, white = table.to_pylist()
    assert black["error"] is None
    says(white["error"], "'pooled'", "nan", "another dtype")
    assert np.isnan(white["pooled"]).all()


@NEEDS_RAY
def test_rows_are_those_of_the_predictor(predictor):
    embedder = vitzoo.ray.Embedder(predictor)
    data = [file.read_bytes() for file in FILES[:3]]
    images = [*data, b"no image", None, {"bytes": data[0], "path": None}, {"path": str(FILES[1])}]
    keys = [f"é {i}" for i in range(len(images))]
    found = embedder({"path": column(*keys), "bytes": column(*images), "label": column(*keys)})
    plain = [*images[:5], data[0], str(FILES[1])]
    check(found, keys, predictor(plain))
    assert found.column_names == ["key", "error", "width", "height", "sha256", "pooled", "labels"]
    assert found.schema.field("pooled").type == pa.list_(pa.float32(), 64)
    assert embedder({"path": column(), "bytes": column()}).num_rows == 0


@NEEDS_RAY
def test_arrays_of_one_size_and_of_several(predictor):
    embedder = vitzoo.ray.Embedder("vit_digits", outputs=("pooled", "labels"))
    arrays = [np.array(Image.open(file)) for file in FILES[:3]]
    expected = predictor(arrays)
    keys = ["a", "b", "c"]
    check(embedder({"key": np.array(keys), "image": np.stack(arrays)}), keys, expected)
    arrays[2] = arrays[2][:5]
    check(embedder({"key": column(*keys), "image": column(*arrays)}), keys, predictor(arrays))


@NEEDS_RAY
def test_columns_can_be_named(predictor):
    embedder = vitzoo.ray.Embedder(predictor, column="file", key="id")
    files = [str(file) for file in FILES[:2]]
    check(embedder({"file": np.array(files), "id": np.arange(2)}), ["0", "1"], predictor(files))
    with refuses(InvalidOption, "'path'", "not 'file'", "column='...'"):
        embedder({"path": column("a")})
    with refuses(InvalidOption, "'x'", "'image' or 'bytes' or 'path'", "column='...'"):
        vitzoo.ray.Embedder(predictor)({"x": column("a")})
    with refuses(InvalidOption, "'image'", "'key' or 'path'", "key='...'"):
        vitzoo.ray.Embedder(predictor)({"image": column("a")})
    with refuses(InvalidOption, "a Table", "batch_format='numpy'"):
        embedder(pa.table({"file": files}))


@NEEDS_RAY
def test_a_predictor_has_its_options(predictor):
    with refuses(InvalidOption, "Predictor('vit_digits'", "pass them to Predictor"):
        vitzoo.ray.Embedder(predictor, outputs="norm")
    with refuses(InvalidOption, "Predictor('vit_digits'", "pass them to Predictor"):
        vitzoo.ray.Embedder(predictor, top=3)


@NEEDS_RAY
def test_top_is_for_labels():
    with refuses(InvalidOption, "top=3", "labels"):
        vitzoo.ray.Embedder("vit_digits", top=3)
    assert len(_labels(top=3)) == 3
    assert len(_labels()) == 5


def _labels(**options):
    embedder = vitzoo.ray.Embedder("vit_digits", outputs="labels", **options)
    (row,) = embedder({"path": column(str(FILES[0]))}).to_pylist()
    return row["labels"]


def test_a_missing_extra_is_named(monkeypatch):
    def missing(extra, whose):
        assert extra == "ray"
        raise MissingDependency(f"{whose} needs ray")

    monkeypatch.setattr("vitzoo.ray.embedder.check_extra", missing)
    with refuses(MissingDependency, "vitzoo.ray.Embedder", "ray"):
        vitzoo.ray.Embedder("vit_digits")


# In Ray

SESSION = """
import json, os, re, signal, sys
from pathlib import Path

import ray
import vitzoo

folder, page = Path(sys.argv[1]), Path(sys.argv[2]).read_text()
quiet = {"include_dashboard": False, "logging_level": "error", "log_to_driver": False}
ray.init(num_cpus=2, object_store_memory=100_000_000, _temp_dir=sys.argv[3], **quiet)
context = ray.data.DataContext.get_current()
context.enable_progress_bars = False
section = page.partition("## Ray Data")[2].partition("## Spark")[0]
(code,) = re.findall("^```python\\n(.*?)^```", section, re.M | re.S)
exec(compile(code, "the page", "exec"))

class Killed(vitzoo.ray.Embedder):
    def __call__(self, batch):
        done = super().__call__(batch)
        with open(folder / "pids", "a") as file:
            file.write(f"{os.getpid()}\\n")
        if "image 100" in done["key"].to_pylist():
            try:
                (folder / "killed").touch(exist_ok=False)
            except FileExistsError:
                return done
            os.kill(os.getpid(), signal.SIGKILL)
        return done

context.execution_options.preserve_order = True
items = [{"key": f"image {i}", "path": str(folder / "images" / f"{i}.png")} for i in range(200)]
settings = {"model": "vit_digits", "outputs": ("pooled", "labels")}
found = ray.data.from_items(items, override_num_blocks=10).map_batches(
    Killed, fn_constructor_kwargs=settings, batch_size=12,
    compute=ray.data.ActorPoolStrategy(size=1),
)
found.write_parquet(folder / "from_ray_killed")
ray.shutdown()
"""
# Ray starts its own servers; on a busy machine each may take longer than Ray waits by itself.
PATIENCE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "240",
    "RAY_worker_register_timeout_seconds": "240",
}


@pytest.mark.workflows
@pytest.mark.long
def test_ray_gives_the_rows_of_the_predictor_if_a_worker_is_killed(predictor, tmp_path):
    (tmp_path / "images").mkdir()
    files = [tmp_path / "images" / f"{i}.png" for i in range(200)]
    draw = np.random.default_rng(0)
    for number, file in enumerate(files):
        if number % 40 == 7:
            file.write_bytes(b"no image")
        elif number % 40 != 8:  # that one is missing
            Image.fromarray(draw.integers(0, 255, (8, 9), np.uint8)).save(file)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    script = tmp_path / "session.py"
    script.write_text(SESSION)
    with tempfile.TemporaryDirectory(prefix="ray") as short:  # its sockets have short paths
        arguments = [sys.executable, script, tmp_path, ROOT / "docs" / "embedding.md", short]
        done = subprocess.run(
            arguments, cwd=tmp_path, env=os.environ | PATIENCE, capture_output=True, text=True,
            timeout=560,  # if no core is left to read the files, Ray waits for ever
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = parquet.read_table(tmp_path / "from_ray_killed")
    check(found, [f"image {i}" for i in range(200)], predictor(files))
    assert len(set((tmp_path / "pids").read_text().split())) == 2  # the second did the rest
    page = parquet.read_table(tmp_path / "from_ray").sort_by("key")
    keys = page["key"].to_pylist()
    assert [Path(key).name for key in keys] == [file.name for file in FILES]
    check(page, keys, predictor(FILES))
