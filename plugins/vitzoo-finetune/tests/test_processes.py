"""Several processes: a killed run continues with another number of them, with equal losses."""

import csv
import os
import random
import signal
import subprocess
import sys

import pytest
from PIL import Image
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

FILES = ["card.md", "confusion.png", "curves.png", "metrics.csv", "mistakes.png"]
FILES += ["model.safetensors", "run.toml"]
SCRIPT = """
import os, signal, sys
import vitzoo_finetune
from vitzoo_finetune.training import Training
out, devices, left, shard = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), len(sys.argv) > 4
step = Training.training_step
def count(self, batch, batch_idx):
    global left
    left -= 1
    if left == 0:
        os.killpg(0, signal.SIGKILL)
    return step(self, batch, batch_idx)
Training.training_step = count
vitzoo_finetune.finetune(
    "vit_digits", "data", out, devices=devices, epochs=2, batch_size=8, save_every=2,
    drop_path=0.0, progress=False, shard=shard,
)
"""


@pytest.fixture
def start(tmp_path):
    """Train on 40 images of noise in a group of processes; return the exit code."""
    for i in range(50):
        path = tmp_path / "data" / ("val" if i >= 40 else "train") / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("L", (8, 8), random.Random(i).randbytes(64)).save(path)
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(out, devices, killed=0, shard=False):
        return subprocess.run(
            [sys.executable, "script.py", out, str(devices), str(killed), *["shard"] * shard],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
            timeout=180,
            check=False,
        ).returncode

    return start


@pytest.fixture
def losses(tmp_path):
    def losses(out):
        with (tmp_path / out / "metrics.csv").open() as file:
            lines = list(csv.DictReader(file))
        return [[float(v) for k, v in one.items() if k != "seconds"] for one in lines]

    return losses


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_killed_run_continues_with_another_number_of_processes(
    start, losses, tmp_path, before, after
):
    assert start("whole", 1) == 0
    assert start("killed", before, killed=9) == -signal.SIGKILL  # in the middle of epoch 2
    assert (tmp_path / "killed" / "checkpoint.safetensors").exists()
    assert start("killed", after) == 0
    assert len(losses("whole")) == 2
    for one, other in zip(losses("killed"), losses("whole"), strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_a_sharded_run_continues_in_one_process_and_back(start, losses, tmp_path):
    assert start("whole", 1) == 0
    assert start("sharded", 2, killed=4, shard=True) == -signal.SIGKILL  # after 2 of 5 steps
    assert start("sharded", 1, killed=3) == -signal.SIGKILL  # after 4
    assert (tmp_path / "sharded" / "checkpoint.safetensors").exists()
    assert start("sharded", 2, shard=True) == 0
    for one, other in zip(losses("sharded"), losses("whole"), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    shapes = {}
    for out in ("whole", "sharded"):
        assert sorted(path.name for path in (tmp_path / out).iterdir()) == FILES
        tensors = load_file(tmp_path / out / "model.safetensors")
        shapes[out] = {name: (one.dtype, one.shape) for name, one in tensors.items()}
    assert shapes["sharded"] == shapes["whole"]


def test_a_process_without_validation_images(start, losses, tmp_path):
    for path in sorted(tmp_path.glob("data/val/*/*"))[1:-1]:
        path.unlink()
    assert start("one", 1) == 0
    assert start("two", 2) == 0
    for one, other in zip(losses("two"), losses("one"), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
