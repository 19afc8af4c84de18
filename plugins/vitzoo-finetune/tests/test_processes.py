"""Several processes: a killed run continues with another number of them, with equal losses."""

import csv
import os
import random
import signal
import subprocess
import sys

import pytest
from PIL import Image

pytestmark = pytest.mark.slow

SCRIPT = """
import os, signal, sys
import vitzoo_finetune
from vitzoo_finetune.training import Training
out, devices, left = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
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
    drop_path=0.0, progress=False,
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

    def start(out, devices, killed=0):
        return subprocess.run(
            [sys.executable, "script.py", out, str(devices), str(killed)],
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
