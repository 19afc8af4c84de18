"""Many images by two processes, of which one is killed, against one process that is not.

There are 2,000 images, or VITZOO_IMAGES; `.ci/nightly` takes 20,000.
"""

from __future__ import annotations

import filecmp
import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import vitzoo
from helpers import fill, photographs, says
from sockets import WATCH
from vitzoo import Predictor

pytestmark = pytest.mark.workflows

COUNT = int(os.environ.get("VITZOO_IMAGES", "2000"))
TAR = COUNT // 10  # images in each of 3 archives
PARQUET = 3 * TAR  # in a file
FOLDER = COUNT - 3 * TAR - PARQUET
BROKEN, DUPLICATES = 40, 100


@pytest.fixture(scope="module")
def images():
    """Crops of the two photographs; 40 are broken, and 100 have the bytes of another one."""
    draw, photos = random.Random(0), photographs()
    places = [(x, y) for x in range(photos[0].width - 72) for y in range(photos[0].height - 72)]
    found = []
    for i, (x, y) in enumerate(draw.sample(places, COUNT)):
        photo, file = photos[i % 2], io.BytesIO()
        photo.crop((x, y, x + 64 + i % 9, y + 72)).save(file, "JPEG", quality=75)
        found.append(file.getvalue())
    odd = draw.sample(range(COUNT), BROKEN + 2 * DUPLICATES)
    broken, copies, originals = odd[:BROKEN], odd[BROKEN:-DUPLICATES], odd[-DUPLICATES:]
    for i in broken:
        found[i] = draw.choice([b"", b"no image", found[i][: len(found[i]) // 2]])
    for i, j in zip(copies, originals, strict=True):
        found[i] = found[j]
    return found, set(broken), list(zip(copies, originals, strict=True))


@pytest.fixture(scope="module")
def place(tmp_path_factory, images):
    """The working directory: the sources, the model, and a hook that sees sockets."""
    place = tmp_path_factory.mktemp("whole")
    rest = iter(images[0])
    (place / "photos").mkdir()
    for i in range(FOLDER):
        (place / "photos" / f"{i:05}.jpg").write_bytes(next(rest))
    for shard in range(3):
        with tarfile.open(place / f"shard-{shard:03}.tar", "w") as archive:
            for i in range(TAR):
                info, data = tarfile.TarInfo(f"{i:05}.jpg"), next(rest)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
                archive.addfile(tarfile.TarInfo(f"{i:05}.cls"))
    pq.write_table(
        pa.table({"image": list(rest)}), place / "rows.parquet", row_group_size=PARQUET // 3 + 500
    )
    model = fill(vitzoo.create({"variant": "vit_ti16", "depth": 2, "image_size": 64}))
    model.preprocessing = vitzoo.transform("vit_ti16").preprocessing
    vitzoo.save(model, place / "net.safetensors")
    (place / "hook").mkdir()
    (place / "hook" / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    return place


def expected_keys():
    return [
        *(f"photos/{i:05}.jpg" for i in range(FOLDER)),
        *(f"shard-{shard:03}.tar/{i:05}.jpg" for shard in range(3) for i in range(TAR)),
        *(f"rows.parquet/{i}" for i in range(PARQUET)),
    ]


@pytest.fixture
def start(place):
    """Start the command in one process that computes; its sockets are written to a file."""
    started = []
    path = os.pathsep.join([str(place / "hook"), str(Path(vitzoo.__file__).parents[1])])
    hook = {"PYTHONPATH": path, "SOCKETS": str(place / "sockets.txt"), "OMP_NUM_THREADS": "1"}
    sources = ("photos", "shard-{000..002}.tar", "rows.parquet")

    def run(out, **env):
        command = (sys.executable, "-m", "vitzoo", "embed", "net.safetensors", *sources)
        process = subprocess.Popen(
            [*command, "--out", out, "--workers", "1"],
            cwd=place,
            env=os.environ | hook | env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def finish(process: subprocess.Popen) -> str:
    """Return what a process says in the end."""
    _, said = process.communicate(timeout=900)
    assert process.returncode == 0, said
    return said


def kill_in_mid_run(process: subprocess.Popen, out: Path) -> None:
    """Kill the second of two processes when it has written three parts."""
    while len(list(out.glob("part-*[13579].parquet"))) < 3:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.long
def test_two_processes_and_a_killed_one_equal_a_single_process(start, place, images):
    single = start("single")
    shards = [start("out", RANK=str(i), WORLD_SIZE="2") for i in range(2)]
    out = place / "out"
    kill_in_mid_run(shards[1], out)
    assert not json.loads((out / "_manifest.json").read_text())["complete"]
    again = start("out", RANK="1", WORLD_SIZE="2")
    last = finish(again)
    says(finish(shards[0]) + last, "bottleneck", f"inputs: {COUNT:,}; errors: {BROKEN}; complete")
    finish(single)
    names = sorted(path.name for path in (place / "single").iterdir() if path.suffix != ".lock")
    assert names == sorted(path.name for path in out.iterdir() if path.suffix != ".lock")
    same, different, missing = filecmp.cmpfiles(out, place / "single", names, shallow=False)
    assert (same, different, missing) == (names, [], [])
    assert len(names) > 16  # parts and a manifest
    manifest = json.loads((out / "_manifest.json").read_text())
    assert (manifest["complete"], manifest["inputs"], manifest["errors"]) == (True, COUNT, BROKEN)
    says(finish(start("out")), "nothing was left to compute")
    assert not (place / "sockets.txt").exists()
    check_rows(place, out, *images)


def check_rows(place, out, data, broken, copies):
    """Check the whole result, read by pyarrow, pandas and DuckDB."""
    import duckdb
    import pandas as pd

    whole = [i for i in range(COUNT) if i not in broken]
    table = pq.read_table(out)
    assert table["key"].to_pylist() == expected_keys()
    assert {i for i, error in enumerate(table["error"].to_pylist()) if error} == broken
    hashes = table["sha256"].to_pylist()
    assert len({hashes[i] for i in whole}) == len(whole) - len(copies)
    frame = pd.read_parquet(out)
    assert frame["key"].tolist() == expected_keys()
    assert set(frame.index[frame["error"].notna()]) == broken
    vectors = frame["pooled"]
    assert {i for i, vector in enumerate(vectors) if np.isnan(vector).all()} == broken
    for copy, original in copies:
        assert hashes[copy] == hashes[original]
        assert vectors[copy].tobytes() == vectors[original].tobytes()
    edges = (
        0,
        1,
        FOLDER - 1,
        FOLDER,
        FOLDER + TAR,
        COUNT - PARQUET,
        COUNT - PARQUET // 2,
        COUNT - 1,
    )
    some = [i for i in edges if i in whole]
    rows = Predictor(place / "net.safetensors")([data[i] for i in some])
    for i, row in zip(some, rows, strict=True):
        assert (row.sha256, row.outputs["pooled"].tobytes()) == (hashes[i], vectors[i].tobytes())
        assert (row.width, row.height) == tuple(frame.loc[i, ["width", "height"]])
    query = (
        "select count(*), count(error), count(*) filter (error is null), count(distinct sha256), "
        f"sum(list_sum(pooled::DOUBLE[])) filter (error is null) from '{out}/*.parquet'"
    )
    with duckdb.connect() as connection:  # that of the module may have a result of another test
        (found,) = connection.sql(query).fetchall()
    assert found[:4] == (COUNT, BROKEN, len(whole), len(set(hashes) - {None}))
    assert found[4] == pytest.approx(np.stack(vectors[whole]).sum(dtype=np.float64))
