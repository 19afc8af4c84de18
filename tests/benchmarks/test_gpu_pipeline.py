"""A GPU is kept busy: at least 0.9 of what decoding and the GPU allowed, both replaced by sleeps.

`python tests/benchmarks/gpu_pipeline.py ROW` prints a row, also with the code of ee1f85a9.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("gpu_pipeline.py")
IMAGES = 16384
ROWS = (
    "embed",
    "embed of one part",
    "embed of tokens",
    "labels",
    "pooled",
    "predict",
    "probe",
    "ray, a chunk a call",
)
LEAST = 0.9
HOST = 0.056  # ms of this process for an image, beside decoding and the network

pytestmark = pytest.mark.benchmark


def measured(row):
    env = {**os.environ, "VITZOO_DEVICE": "cpu"}
    command = [sys.executable, SCRIPT, row, str(IMAGES)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("row", ROWS)
def test_the_gpu_waits_for_little(row):
    """The best of three: other work on the machine slows each of the 16 threads."""
    best = max((measured(row) for _ in range(3)), key=lambda one: one["rate"] / one["allowed"])
    print(best)
    assert best["rate"] >= LEAST * best["allowed"]


def test_the_process_spends_little_on_an_image():
    found = min(measured("host")["cpu_ms"] for _ in range(3))
    print(found)
    assert found <= HOST
