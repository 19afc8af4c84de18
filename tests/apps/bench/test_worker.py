"""What the process of a way measures, with a clock, a device and a /proc of the test."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers import says
from vitzoo.apps.bench import worker
from vitzoo.apps.bench.ways import NETWORK, Place
from vitzoo.apps.bench.worker import Failed, Job, Processor, Runner, Turn, cause_of
from vitzoo.errors import InvalidOption

SAMPLES = torch.arange(3.0).reshape(3, 1, 1, 1)


def job(way="eager", batches=(2,), folder=Path("/none")):
    return Job(way, Place(folder, "cpu"), False, batches, SAMPLES, 2, "highest")


class Clock:
    """A second passes for each image that is computed."""

    def __init__(self):
        self.now = 0.0
        self.batches = []

    def __call__(self):
        return self.now

    def run(self, images):
        assert torch.is_inference_mode_enabled()
        self.now += len(images)
        self.batches.append(images.flatten().tolist())
        return images.flatten(1) * 2


def write_proc(folder, resident=100, peak=150, waited=()):
    (folder / "status").write_text(f"Name:\tx\nVmHWM:\t {peak} kB\nVmRSS:\t {resident} kB\n")
    for i, nanoseconds in enumerate(waited):
        (folder / "task" / str(i)).mkdir(parents=True, exist_ok=True)
        (folder / "task" / str(i) / "schedstat").write_text(f"5 {nanoseconds} 7\n")
    return folder


def test_all_samples_are_computed_in_full_batches(tmp_path):
    clock = Clock()
    runner = Runner(clock.run, job(), Processor("cpu", write_proc(tmp_path)), clock)
    found = runner.outputs(2)
    assert found.values.tolist() == [[0], [2], [4], [0]]
    assert clock.batches == [[0, 1], [0, 1], [2, 0]]  # the first may compile
    assert found.memory == 50 * 1024


def test_one_batch_at_a_time_is_on_the_device(tmp_path, monkeypatch):
    """Otherwise the memory of a small batch contains the images of a large one."""
    clock, moved = Clock(), []
    runner = Runner(clock.run, job(batches=(1, 2)), Processor("cpu", write_proc(tmp_path)), clock)
    to = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda x, where: moved.append(len(x)) or to(x, where))
    runner.outputs(1)
    runner.outputs(2)
    runner.turn(2, 0)
    assert moved == [1] * 4 + [2] * 3 + [2]


def test_a_turn_runs_whole_batches_for_about_its_time(tmp_path):
    clock = Clock()
    write_proc(tmp_path, waited=(10**9, 0))
    runner = Runner(clock.run, job(), Processor("cpu", tmp_path), clock)
    runner.outputs(2)
    clock.batches.clear()
    assert runner.turn(2, 7) == Turn(1.0, 0.0)  # images per second
    assert clock.batches == [[0, 1]] * 4
    clock.batches.clear()
    assert runner.turn(2, 0.001).speed == 1
    assert clock.batches == [[0, 1]]


def test_waiting_is_a_part_of_the_time_of_all_threads(tmp_path):
    clock = Clock()
    write_proc(tmp_path, waited=(10**9, 2 * 10**9))

    def run(images):
        write_proc(tmp_path, waited=(2 * 10**9, 3 * 10**9))
        return clock.run(images)

    runner = Runner(run, job(), Processor("cpu", tmp_path), clock)
    runner.outputs(2)
    write_proc(tmp_path, waited=(10**9, 2 * 10**9))
    assert runner.turn(2, 8) == Turn(1.0, 2 / (8 * 2))


def test_memory_is_not_stated_if_the_kernel_does_not_tell(tmp_path):
    one = torch.ones(1)
    write_proc(tmp_path)
    assert Processor("cpu", tmp_path).measure(lambda: one) == (one, 50 * 1024)
    (tmp_path / "clear_refs").unlink()
    (tmp_path / "clear_refs").mkdir()  # the peak cannot be reset
    assert Processor("cpu", tmp_path).measure(lambda: one) == (one, None)
    nowhere = Processor("cpu", tmp_path / "none")
    assert nowhere.measure(lambda: one) == (one, None)
    assert nowhere.waited() is None


PEAK = """
import torch
from vitzoo.apps.bench.worker import Processor

def use():
    torch.ones(2**24).sum()
    return torch.ones(1)

processor = Processor("cpu")
print(processor.measure(use)[1], processor.waited())
"""


@pytest.mark.slow
def test_memory_of_this_process_is_its_peak():
    """In numbers of the kernel: 64 MiB that are freed again, in a new process, which kept none."""
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    memory, waited = done.stdout.split()
    assert 60 * 2**20 < int(memory) < 200 * 2**20
    assert waited != "None"


def test_on_another_device_it_is_synchronised_and_has_its_own_memory(monkeypatch):
    """The module of a device, such as torch.cuda, with the calls that are made."""
    calls = []
    module = SimpleNamespace(
        synchronize=lambda device: calls.append(f"wait {device}"),
        reset_peak_memory_stats=lambda device: calls.append(f"reset {device}"),
        max_memory_allocated=lambda _: calls.append("peak") or 12345,
    )
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    clock, processor = Clock(), Processor("cuda:0")
    runner = Runner(clock.run, job(), processor, clock)  # its tensors stay on the CPU here
    assert runner.outputs(2).memory == 12345
    assert calls == ["reset cuda:0", "peak"]
    calls.clear()
    run = clock.run
    runner._run = lambda images: calls.append("run") or run(images)
    runner.turn(2, 4)
    assert calls == ["wait cuda:0", "run", "run", "wait cuda:0"]


def test_mps_has_no_peak_and_is_the_only_one(monkeypatch):
    """`torch.mps` has neither a peak nor an argument for the device."""
    calls = []
    module = SimpleNamespace(
        synchronize=lambda: calls.append("wait"),
        empty_cache=lambda: calls.append("empty"),
        driver_allocated_memory=lambda: calls.append("driver") or 777,
    )
    assert all(hasattr(torch.mps, name) for name in vars(module))
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    processor = Processor("mps")
    assert processor.measure(lambda: calls.append("run")) == (None, 777)
    processor.wait()
    assert calls == ["empty", "run", "driver", "wait"]


def test_a_job_is_answered_until_there_are_no_more_turns(monkeypatch, tmp_path):
    torch.save(torch.nn.Identity(), tmp_path / NETWORK)
    requests, answers = [job(batches=(1, 2), folder=tmp_path), (1, 0.0), (2, 0.0)], []
    monkeypatch.setattr(worker, "channel", lambda: (lambda: next(given), answers.append))
    real = Path.write_text
    monkeypatch.setattr(Path, "write_text", lambda p, *a, **k: "oom" in p.name or real(p, *a, **k))

    def requested():
        yield from requests
        raise EOFError

    given = requested()
    before = torch.get_num_threads()
    try:
        with pytest.raises(SystemExit):
            worker.main()
        assert not tmp_path.exists()  # a killed `bench` leaves no files
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert [len(a.values) for a in answers[:2]] == [3, 4]
    assert [type(a) for a in answers[2:]] == [Turn, Turn]


@pytest.mark.slow  # it needs openvino
def test_a_job_that_fails_is_answered(monkeypatch):
    requests, answers = iter([job("openvino")]), []
    monkeypatch.setattr(worker, "channel", lambda: (lambda: next(requests), answers.append))
    before = torch.get_num_threads()
    try:
        worker.main()
    finally:
        torch.set_num_threads(before)
    assert [type(a) for a in answers] == [Failed]
    says(answers[0].cause, "none/openvino/model.xml")


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_cannot_run_the_network_is_the_cause(monkeypatch):
    def fails(_):
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")

    monkeypatch.setattr(worker, "Processor", fails)
    requests, answers = iter([replace(job(), place=Place(Path("/none"), "cuda:0"))]), []
    monkeypatch.setattr(worker, "channel", lambda: (lambda: next(requests), answers.append))
    before = torch.get_num_threads()
    try:
        worker.main()
    finally:
        torch.set_num_threads(before)
    says(answers[0].cause, "cuda:0 (NVIDIA H200)", "no kernel image", "--device cpu")


class InvalidCxxCompiler(RuntimeError):
    """As torch names it."""


class Wrapped(Exception):
    def __init__(self, inner):
        super().__init__("backend='inductor' raised")
        self.inner_exception = inner


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (Wrapped(InvalidCxxCompiler("No working C++ compiler")), ["no C++ compiler", "g++", "CXX"]),
        (InvalidOption("with a\ttab"), [r"with a\ttab"]),
        (ValueError("two\nlines"), ["ValueError: two lines"]),
        (MemoryError(), ["MemoryError"]),
    ],
)
def test_the_cause_of_an_error_is_one_line(error, parts):
    says(cause_of(error), *parts)
    assert len(cause_of(ValueError("x" * 9999))) < 400


NO_COMPILER = """
import torch
from vitzoo.apps.bench.worker import cause_of

try:
    torch.compile(torch.nn.Linear(2, 2))(torch.zeros(1, 2))
except Exception as error:
    print(cause_of(error))
"""


@pytest.mark.long
@pytest.mark.compile
def test_torch_without_a_compiler_gets_the_fix(tmp_path):
    env = os.environ | {"PATH": str(tmp_path), "CXX": "no-compiler", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", NO_COMPILER], env=env, capture_output=True, text=True
    )
    says(done.stdout, "no C++ compiler", "g++", "CXX")
