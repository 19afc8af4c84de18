"""`cores`: the CPU cores of this process, also in a container with a limit."""

from __future__ import annotations

import os

import pytest

from tables import cases
from vitzoo.apps.predict.cores import cores, cores_of_process
from vitzoo.apps.probe import embeddings

V2 = "0::/pods/one\n"
V1 = "12:memory:/m\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n0::/\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Write the files of a machine with 16 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))

    def write(cgroup, files):
        for name, text in {"proc/self/cgroup": cgroup, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return tmp_path

    return write


def v1(folder, quota, period="100000\n"):
    return {f"{folder}/cpu.cfs_quota_us": quota, f"{folder}/cpu.cfs_period_us": period}


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        (V2, {}, 16),
        (V2, {"sys/fs/cgroup/pods/one/cpu.max": "max 100000\n"}, 16),
        (V2, {"sys/fs/cgroup/pods/one/cpu.max": "400000 100000\n"}, 4),
        (V2, {"sys/fs/cgroup/pods/one/cpu.max": "250000 100000\n"}, 3),
        (V2, {"sys/fs/cgroup/pods/one/cpu.max": "1000 100000\n"}, 1),
        (V2, {"sys/fs/cgroup/pods/one/cpu.max": "9900000 100000\n"}, 16),
        (V2, {"sys/fs/cgroup/pods/cpu.max": "200000 100000\n"}, 2),
        (
            V2,
            {
                "sys/fs/cgroup/pods/one/cpu.max": "400000 100000\n",
                "sys/fs/cgroup/pods/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/cpu.max": "max 100000\n",
            },
            3,
        ),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "50000 25000\n"}, 2),  # seen from a container
        ("0::/../../x\n", {"sys/fs/cgroup/cpu.max": "50000 25000\n"}, 2),
        (V2, {"sys/fs/cgroup/other/cpu.max": "100000 100000\n"}, 16),
        (V1, v1("sys/fs/cgroup/cpu/docker/abc", "300000\n"), 3),
        (V1, v1("sys/fs/cgroup/cpu,cpuacct/docker/abc", "300000\n"), 3),
        (V1, v1("sys/fs/cgroup/cpu", "150000\n"), 2),  # the host's path, in a container
        (V1, v1("sys/fs/cgroup/cpu/docker/abc", "-1\n"), 16),
        (V1, v1("sys/fs/cgroup/memory/m", "100000\n"), 16),
    ],
)
def test_the_limit_of_a_container(tree, cgroup, files, expected):
    assert cores(tree(cgroup, files)) == expected


@cases("cgroup", ["", "0::", "0", "::::\n\n", "0::/\0\n", b"\xff\xfe", V2])
@cases(
    "text", ["", "4", "max", "a b", "-5 100000", "1 0", "0 1", "1 2 3", b"\xff", "9" * 5000 + " 1"]
)
def test_what_cannot_be_read_is_no_limit(tree, cgroup, text):
    assert cores(tree(cgroup, {"sys/fs/cgroup/pods/one/cpu.max": text})) == 16


def test_without_files_the_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 7, 9})
    assert cores(tmp_path) == 3


@cases(
    ("processes", "expected"),
    [
        ("", 8),
        ("-4", 8),
        ("x", 8),
        ("0", 8),
        ("1", 8),
        ("3", 2),
        ("8", 1),
        ("999999999", 1),
        ("٢", 4),
    ],
)
def test_processes_of_torchrun_divide_the_cores(monkeypatch, processes, expected):
    monkeypatch.setattr("vitzoo.apps.predict.cores.cores", lambda: 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert cores_of_process() == expected


def test_what_runs_in_parallel_asks_for_the_limit(monkeypatch):
    """Threads of `probe`."""
    pools = []
    monkeypatch.setattr(embeddings, "cores_of_process", lambda: 6)
    monkeypatch.setattr(embeddings, "ThreadPoolExecutor", lambda n: pools.append(n) or Pool())
    assert embeddings.embed_images(Pool(), [], {}, print) == []
    assert pools == [6]


class Pool:
    chunk, asynchronous = 8, False
    decode = None

    def map(self, *_):
        return ()

    def shutdown(self, **_):
        pass
