"""`embed` by processes of other counts at the same time, and folders of earlier versions."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from PIL import Image

import vitzoo
from helpers import fill, refuses
from vitzoo import Predictor, embed
from vitzoo.apps.embed import folder as folders
from vitzoo.apps.embed.folder import MANIFEST, MIN_ROWS
from vitzoo.apps.embed.out import LOCKS, outputs_of
from vitzoo.apps.embed.part_file import claim
from vitzoo.errors import InvalidOption, UnknownOption
from vitzoo.files.platform import processes as platform_processes

SPEC = {
    "image_size": 16,
    "patch_size": 8,
    "num_classes": 2,
    "embed_dim": 32,
    "depth": 1,
    "num_heads": 2,
    "mlp_dim": 32,
}
PATHS = (str(Path(vitzoo.__file__).parents[1]), os.environ.get("PYTHONPATH"))
PATH = os.pathsep.join(filter(None, PATHS))
COUNT = 12 * MIN_ROWS  # three parts for each of four shards

# A process that stops itself in the middle of its second part, as a slow one that never moves.
STOPS = """
import os, signal, sys
from vitzoo.apps.embed import embed as module
from vitzoo.apps.predict.predictor import Predictor

start, done, canaries = Predictor._compute, [], module.canaries

def stopping(self, images):
    done.extend(images)
    if len(done) == 96:
        os.kill(os.getpid(), signal.SIGSTOP)
    return start(self, images)

def only_images(*arguments):
    found = canaries(*arguments)
    done.clear()
    return found

Predictor._compute, module.canaries = stopping, only_images
model, names, out, index, count = sys.argv[1:]
print(module.embed(model, names, out, shard=(int(index), int(count)), workers=1))
"""


@pytest.fixture(scope="module")
def data(once):
    """A list of names of a few images, the file of a small model, and what one process writes."""
    return once("embed-many", write_data)


def write_data(data):
    draw = np.random.default_rng(0)
    for i in range(16):
        Image.fromarray(draw.integers(0, 256, (16, 16, 3), np.uint8)).save(data / f"{i}.png")
    data.joinpath("names.txt").write_text("\n".join(f"{i % 16}.png" for i in range(COUNT)))
    model = fill(vitzoo.create(SPEC))
    model.preprocessing = vitzoo.Preprocessing(mean=(0.4,) * 3, std=(0.2,) * 3)
    vitzoo.save(model, data / "net.safetensors")
    embed(data / "net.safetensors", data / "names.txt", data / "single", workers=1)


@pytest.fixture
def predictor(data):
    return Predictor(data / "net.safetensors")


def bytes_of(folder):
    """Return the files of a result."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".lock"}


@pytest.fixture
def stopped(data, tmp_path):
    """Start shards that stop in the middle of a part, and end them after the test."""
    started = []

    def start(count):
        for index in range(count):
            command = [sys.executable, "-c", STOPS, data / "net.safetensors", data / "names.txt"]
            process = subprocess.Popen(
                [*map(str, command), str(tmp_path / "out"), str(index), str(count)],
                env=os.environ | {"PYTHONPATH": PATH},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            started.append(process)
        for process in started:
            found = os.waitpid(process.pid, os.WUNTRACED)[1]
            assert os.WIFSTOPPED(found), process.communicate()[0]
        return started

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.workflows
@pytest.mark.parametrize(
    "recovery",
    [
        [(0, 1)],
        pytest.param([(5, 8)], marks=pytest.mark.long),
        pytest.param([(i, 8) for i in range(8)], marks=pytest.mark.long),
    ],
)
def test_the_recovery_of_one_shard_leaves_the_running_ones_alone(
    data, predictor, tmp_path, stopped, recovery
):
    """Three shards live and have one part each in work; the recovery computes what is left."""
    out = tmp_path / "out"
    shards = stopped(4)
    shards[1].kill()
    shards[1].wait()
    unfinished = len(list(out.glob(".part-*")))
    assert unfinished == 4
    for shard in recovery:
        done = embed(predictor, data / "names.txt", out, shard=shard, workers=1)
        assert done.computed > 0 or shard[0] % 4 != 1
    left = {path.name.split(".")[1] for path in out.glob(".part-*")}
    assert left == {"part-000004", "part-000006", "part-000007"}
    if recovery[0][0] == 0:
        assert done.missing == 3
        everything = {f"part-{i:06}" for i in range(12)}
        assert left == everything - {path.stem for path in out.glob("part-*")}
    for process in (shards[0], *shards[2:]):
        process.send_signal(signal.SIGCONT)
        said = process.communicate(timeout=300)[0]
        assert process.returncode == 0, said
    if recovery == [(5, 8)]:  # half of the parts of the shard that was killed
        assert embed(predictor, data / "names.txt", out, workers=1).computed == MIN_ROWS
    assert json.loads((out / MANIFEST).read_text())["complete"]
    assert bytes_of(out) == bytes_of(data / "single")


@pytest.fixture(params=["linux", "darwin"])
def system(request, monkeypatch):
    """Where a byte of an open file can be locked, and where each part has a lock file."""
    monkeypatch.setattr(platform_processes, "sys", SimpleNamespace(platform=request.param))
    return request.param


def test_threads_of_one_process_exclude_each_other(tmp_path, system):
    """A lock of a process would be free for its own threads, and be lost with any closed file."""
    part = tmp_path / "part-000003.parquet"
    with claim(part) as first:
        with claim(part) as second, claim(tmp_path / "part-000004.parquet") as other:
            assert (first, second, other) == (True, False, True)
        with claim(part) as third:
            assert not third
    with claim(part) as free:
        assert free
        assert (tmp_path / ".part-000003.parquet.lock").exists() == (system == "darwin")
    assert [path.name for path in tmp_path.iterdir()] == [".writing.lock"]


@pytest.fixture
def other(tmp_path, system):
    """A process that has the lock of part 3, as one that is stopped in the middle of it."""
    (tmp_path / "out").mkdir()
    code = (
        "import sys; from pathlib import Path\n"
        "from types import SimpleNamespace\n"
        "from vitzoo.files.platform import processes\n"
        "processes.sys = SimpleNamespace(platform=sys.argv[2])\n"
        "from vitzoo.apps.embed.part_file import claim\n"
        "with claim(Path(sys.argv[1])) as free: print(free, flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "out" / "part-000003.parquet")]
    command.append(system)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "True\n"
        yield process
        process.kill()


@pytest.mark.one_in(2)
@pytest.mark.slow
def test_a_part_of_a_process_that_is_killed_meanwhile_is_computed(data, predictor, tmp_path, other):
    seen = []

    def kill(done, *_):
        seen.append(done)
        if done == 8 * MIN_ROWS:  # after part 3 was left out
            other.kill()
            other.wait()

    out = tmp_path / "out"
    done = embed(predictor, data / "names.txt", out, workers=1, on_progress=kill)
    assert (done.missing, done.errors, done.computed) == (0, 0, COUNT)
    assert sorted(seen) == seen
    assert bytes_of(out) == bytes_of(data / "single")


@pytest.mark.one_in(2)
@pytest.mark.slow
def test_a_file_that_another_process_writes_is_not_removed(data, predictor, tmp_path, other):
    out, part = tmp_path / "out", "part-000003.parquet"
    written = [out / f".{name}.{other.pid}.17000" for name in (part, "part-000004.parquet")]
    for _ in range(2):
        done = embed(predictor, data / "names.txt", out, workers=1)
        assert (done.missing, done.errors) == (1, None)
        assert not (out / part).exists()
        assert sorted(out.glob(".part-*[0-9]")) == sorted(path for path in written if path.exists())
        for path in written:
            path.touch()
    assert embed(predictor, data / "names.txt", out, workers=1).missing == 1
    assert list(out.glob(".part-*.1*")) == written[:1]
    other.kill()
    other.wait()
    done = embed(predictor, data / "names.txt", out, workers=1)
    assert (done.missing, done.errors, done.computed) == (0, 0, MIN_ROWS)
    assert bytes_of(out) == bytes_of(data / "single")
    locks = [path for path in out.iterdir() if path.suffix == ".lock"]
    assert len(locks) == 3  # for any number of parts
    assert all(LOCKS.fullmatch(path.name) for path in locks)


@pytest.mark.slow
def test_other_processes_do_not_wait_while_inputs_are_read(data, predictor, tmp_path, monkeypatch):
    """No process holds the lock of the manifest while names are hashed."""
    out, hashed = tmp_path / "out", []
    sha256_of = folders.sha256_of

    def watched(pieces):
        with FileLock(out / ".manifest.lock", timeout=0) if out.exists() else FileLock(os.devnull):
            hashed.append(1)
        return sha256_of(pieces)

    monkeypatch.setattr(folders, "sha256_of", watched)
    for _ in range(2):
        embed(predictor, data / "names.txt", out, workers=1)
    assert len(hashed) >= 2
    assert bytes_of(out) == bytes_of(data / "single")


@pytest.mark.slow
@pytest.mark.parametrize("there", [False, True])
def test_a_manifest_that_changes_while_inputs_are_read_is_read_again(
    data, predictor, tmp_path, monkeypatch, there
):
    """Another process makes the folder in that time, or extends it."""
    out, few = tmp_path / "out", tmp_path / "few.txt"
    lines = [str(data / line) for line in data.joinpath("names.txt").read_text().split("\n")]
    few.write_text("\n".join(lines[:16]))
    if there:
        embed(predictor, few, out, workers=1)
        few.write_text("\n".join(lines[:32]))
    every, sha256_of = tmp_path / "every.txt", folders.sha256_of
    every.write_text("\n".join(lines[:48]))

    def faster(pieces):
        monkeypatch.setattr(folders, "sha256_of", sha256_of)
        embed(predictor, few, out, extend=True, workers=1)
        return sha256_of(pieces)

    monkeypatch.setattr(folders, "sha256_of", faster)
    done = embed(predictor, every, out, extend=True, workers=1)
    ranges = json.loads((out / MANIFEST).read_text())["ranges"]
    assert [one["inputs"] for one in ranges] == ([16, 16, 16] if there else [16, 32])
    assert (done.inputs, done.errors) == (48, 0)
    assert pq.read_table(out)["key"].to_pylist() == lines[:48]


PHOTOS = ["photos/a.png", "photos/sub/b.png", "photos/sub/deep/c.png"]
FORMER = [  # sources, the rows that version ec83163 wrote for them, and the sha256 that it wrote
    (
        ["photos/**"],
        [0, 1, 2, 0, 1, 2, 1, 2, 2],
        "87a441be443124eada4a8a71ccc1c8a739688fd5d790fdc24cedf27295c03192",
    ),
    (
        ["photos/**/*"],
        [0, 1, 2, 1, 2, 2],
        "16910e3fbe7265678a3e3f6a299ab65941cec08fc5bd69cba6aed085e327e684",
    ),
    (
        ["photos", "photos/sub/b.png"],
        [0, 1, 2, 1],
        "aed028113c98e1a3e0fe3b5e1e8feeb8824a2ad204cd1b72a4633e661ed9fea4",
    ),
    (
        ["photos", "photos/sub"],
        [0, 1, 2, 1, 2],
        "d5dc273fb3938b22b5c5fb400b8f9bddc52671db796aee83c7a3a664cfdae303",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("sources", "rows", "sha256"), FORMER)
def test_a_folder_of_an_earlier_version_is_counted_as_it_was_written(
    data, predictor, tmp_path, monkeypatch, sources, rows, sha256
):
    monkeypatch.chdir(tmp_path)
    for i, name in enumerate((*PHOTOS, "photos-2/d.png")):
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((data / f"{i}.png").read_bytes())
    expected = [PHOTOS[i] for i in rows]
    Path("rows.txt").write_text("\n".join(expected), encoding="utf-8")
    embed(predictor, "rows.txt", "listed", workers=1)
    manifest = json.loads(Path("listed", MANIFEST).read_text(encoding="utf-8"))
    assert manifest["ranges"] == [{"inputs": len(rows), "sha256": sha256}]
    Path("out").mkdir()
    Path("out", MANIFEST).write_text(
        json.dumps(manifest | {"complete": False, "errors": None}), encoding="utf-8"
    )
    assert embed(predictor, sources, "out", workers=1).computed == len(rows)
    assert bytes_of(Path("out")) == bytes_of(Path("listed"))
    longer = [*sources, "photos-2"]
    done = embed(predictor, longer, "out", extend=True, workers=1)
    assert (done.inputs, done.computed) == (len(rows) + 1, 1)
    assert embed(predictor, longer, "out", workers=1).computed == 0
    assert pq.read_table("out")["key"].to_pylist() == [*expected, "photos-2/d.png"]
    with refuses(InvalidOption, "each file once"):
        embed(predictor, [*longer, "photos-2/d.png"], "new", workers=1)


@pytest.mark.slow
@pytest.mark.needs("names")
def test_the_bytes_of_a_folder_do_not_depend_on_the_locale(data, tmp_path, monkeypatch):
    """Names in archives and Parquet files are text; names of files are bytes."""
    monkeypatch.chdir(tmp_path)
    image = (data / "0.png").read_bytes()
    Path("bÄume").mkdir()
    for name in ("ü.png", os.fsdecode(b"\xff.png")):
        Path("bÄume", name).write_bytes(image)
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        with tarfile.open(f"{kind}-ß.tar", "w", format=kind) as archive:
            info = tarfile.TarInfo("größe.png")
            info.size = len(image)
            archive.addfile(info, io.BytesIO(image))
    pq.write_table(pa.table({"gemälde": [image, b"no image"]}), "rows.parquet")
    Path("names.txt").write_text("bÄume/ü.png", encoding="utf-8")
    sources = ["bÄume", "*-ß.tar", "rows.parquet", "names.txt"]
    embed(data / "net.safetensors", sources, "utf-8", workers=1)
    assert pq.read_table("utf-8")["key"][2].as_py() == "1-ß.tar/größe.png"
    code = (
        "import os, sys; from vitzoo.apps.embed.embed import embed\n"
        "assert sys.getfilesystemencoding() == 'ascii'\n"
        "net, *sources = sys.argv[1:]\n"
        "print(embed(net, sources, 'ascii', workers=1))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(data / "net.safetensors"), *sources],
        env=os.environ
        | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        | {"PYTHONPATH": PATH},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert bytes_of(Path("ascii")) == bytes_of(Path("utf-8"))


def test_the_command_knows_the_outputs_of_a_network():
    """It refuses others before torch is imported; `Predictor` asks the network."""
    with pytest.raises(UnknownOption) as caught:
        Predictor("vit_digits", outputs="?")
    known = outputs_of(vitzoo.describe("vit_digits").spec.depth)
    assert str(caught.value).endswith(f"known: {', '.join(known)}")
