"""Planning of many images, from their names to the parts

A whole `embed` without the network, in processes of one core: it reads the names, hashes them,
writes the manifest and makes the tasks. Time per name must not grow with the number of names.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitzoo

pytestmark = pytest.mark.benchmark

FULL = os.environ.get("VITZOO_BENCH") == "full"
COUNTS = (10_000, 100_000, 1_000_000) if FULL else (3_000, 30_000)
FOLDER = 1_000  # files
CODE = """
import json, os, sys, time
from pathlib import Path

import torch, vitzoo

def used():
    status = Path("/proc/self/status").read_text()  # ru_maxrss begins with that of the parent
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
before = used()
from vitzoo.apps.embed import embed as module

module.compute = lambda *args: None
predictor = vitzoo.Predictor("vit_digits")
start = time.perf_counter()
done = module.embed(predictor, sys.argv[1], sys.argv[2])
seconds = time.perf_counter() - start
print(json.dumps([done.inputs, done.missing, seconds, used() - before]))
"""
SOURCES = {"list": "names.txt", "pattern": "files/*/*.png"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Empty files and lists of them, for each number of names."""
    place = tmp_path_factory.mktemp("names")
    for count in COUNTS:
        names = [f"files/{i // FOLDER:05}/{i:09}.png" for i in range(count)]
        for name in names[::FOLDER]:
            (place / str(count) / name).parent.mkdir(parents=True)
        for name in names:
            os.close(os.open(place / str(count) / name, os.O_CREAT | os.O_WRONLY))
        (place / str(count) / "names.txt").write_text("\n".join(names), encoding="utf-8")
    return place


@pytest.mark.parametrize("kind", SOURCES)
def test_planning_is_linear_and_takes_little_memory(compare, place, kind):
    environment = os.environ | {"PYTHONPATH": str(Path(vitzoo.__file__).parents[1])}
    each = {}
    for count in COUNTS:
        turns = []
        for turn in range(2):  # the first one also fills the caches of the kernel
            args = (SOURCES[kind], f"out-{kind}-{turn}")
            command = [sys.executable, "-c", CODE, *args]
            found = subprocess.run(
                command, check=True, capture_output=True, cwd=place / str(count), env=environment
            )
            inputs, missing, *used = json.loads(found.stdout)
            assert inputs == count
            assert missing == -(-count // 1024) or count < 16 * 1024
            turns.append(used)
        seconds, memory = map(min, zip(*turns, strict=True))
        each[count] = seconds / count
        title = f"plan {count:,} names in a {kind}"
        compare.record(title, "on one core", seconds, at_most=30, unit="s")
        compare.record(title, "beyond the imports", memory, at_most=600, unit="MB")
    growth = each[COUNTS[-1]] / each[COUNTS[0]]
    title = f"plan {COUNTS[-1]:,} names in a {kind}, seconds per name"
    compare.record(title, f"{COUNTS[0]:,} names", growth, at_most=1.5)
