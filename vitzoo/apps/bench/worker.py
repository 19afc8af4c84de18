"""The process of one way: it prepares, computes the samples, and then runs turns on demand."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitzoo.apps.bench.ways import CPU, WAYS, Place
from vitzoo.apps.embed.processes import channel
from vitzoo.apps.export.targets import Run
from vitzoo.errors import VitzooError, printable
from vitzoo.files.platform.processes import PROCESS
from vitzoo.network.device import running_on

MODULE = __name__
KB, NANO = 1024, 10**9
MPS = "mps"
MOST = 300  # characters of the text of an error of another library
NO_COMPILER = "torch found no C++ compiler; install one (apt-get install g++), or name it in CXX"


@dataclass(frozen=True)
class Job:
    """What a process does.

    Args:
        way: name of the way.
        place: where it finds its files.
        write: whether it only writes the files of the way.
        batches: numbers of images in a batch.
        samples: prepared images (n, c, h, w).
        threads: of torch, onnxruntime and OpenVINO.
        precision: of torch's float32 products.
    """

    way: str
    place: Place
    write: bool
    batches: tuple[int, ...]
    samples: Tensor
    threads: int
    precision: str


@dataclass(frozen=True)
class Failed:
    """Why a way cannot run."""

    cause: str


@dataclass(frozen=True)
class Outputs:
    """What a way computed for the samples in batches of one size.

    Args:
        values: (m, k) float32 outputs; the samples are repeated until each batch is full.
        memory: bytes as `Processor.measure` returns them.
        seconds: of one batch.
    """

    values: Tensor
    memory: int | None
    seconds: float


@dataclass(frozen=True)
class Turn:
    """What a way did in a turn.

    Args:
        speed: images per second.
        waited: part of the time for which its threads waited for a core that was busy; None if the
            kernel does not tell.
    """

    speed: float
    waited: float | None


class Processor:
    """Waits for a device, and measures memory: that of the process, or that of the device.

    Args:
        device: such as `cpu` or `cuda:0`.
        process: folder in which Linux describes the process; other systems measure nothing.
    """

    def __init__(self, device: str, process: Path = PROCESS) -> None:
        self._device, self._process = torch.device(device), process
        self._module: Any = None if self._device.type == CPU else torch.get_device_module(device)
        self._arguments = () if self._device.type == MPS else (self._device,)  # MPS is one device
        self._start = self._resident("VmRSS")

    def wait(self) -> None:
        """Wait until everything that was started is computed."""
        if self._module is not None:
            self._module.synchronize(*self._arguments)

    def measure(self, function: Callable[[], Tensor]) -> tuple[Tensor, int | None]:
        """Return a result and bytes of memory; None if they are not known.

        On the CPU it is the peak of the process beyond its size when the `Processor` was made, on a
        GPU the peak of the tensors that torch holds there, and on MPS the memory that torch has
        taken from the driver after the call.
        """
        if self._device.type == MPS:  # it states no peak, but keeps the memory of freed tensors
            self._module.empty_cache()
            found = function()
            return found, self._module.driver_allocated_memory()
        if self._module is not None:
            self._module.reset_peak_memory_stats(self._device)
            found = function()
            return found, self._module.max_memory_allocated(self._device)
        known = True
        try:
            (self._process / "clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
        except OSError:
            known = False
        found, peak = function(), self._resident("VmHWM")
        return found, peak - self._start if known and peak and self._start else None

    def waited(self) -> float | None:
        """Return the seconds for which threads of the process have waited for a busy core."""
        found = 0
        try:
            for path in (self._process / "task").glob("*/schedstat"):
                found += int(path.read_text(encoding="utf-8").split()[1])
        except (OSError, IndexError, ValueError):
            return None
        return found / NANO if found else None

    def _resident(self, key: str) -> int:
        """Return a size in bytes that the kernel states for this process."""
        with suppress(OSError):
            for line in (self._process / "status").read_text(encoding="utf-8").splitlines():
                if line.startswith(f"{key}:"):
                    return int(line.split()[1]) * KB
        return 0


class Runner:
    """A prepared way: its outputs for the samples, and its turns.

    Args:
        run: maps images to outputs.
        job: of this process.
        processor: of the device.
        clock: returns seconds.
    """

    def __init__(
        self,
        run: Run,
        job: Job,
        processor: Processor,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._run, self._processor, self._clock = run, processor, clock
        self._samples, self._device, self._threads = job.samples, job.place.device, job.threads
        self._seconds: dict[int, float] = {}

    @torch.inference_mode()
    def outputs(self, batch: int) -> Outputs:
        """Compute the outputs for the samples; the first batch may compile.

        One batch at a time is on the device, so that its memory is that of this size.
        """
        parts = self._batches(batch)
        self._run(parts[0].to(self._device))
        begin = self._clock()
        values, memory = self._processor.measure(
            lambda: torch.cat([self._run(x.to(self._device)).float().cpu() for x in parts])
        )
        self._seconds[batch] = (self._clock() - begin) / len(parts)
        return Outputs(values.flatten(1), memory, self._seconds[batch])

    def _batches(self, batch: int) -> tuple[Tensor, ...]:
        """Return the samples in batches; samples are repeated until the last one is full."""
        count = len(self._samples)
        return torch.split(self._samples[torch.arange(-(-count // batch) * batch) % count], batch)

    @torch.inference_mode()
    def turn(self, batch: int, seconds: float) -> Turn:
        """Run batches for about `seconds`, at least one."""
        images = self._batches(batch)[0].to(self._device)
        count = max(1, round(seconds / max(self._seconds[batch], 1e-9)))
        self._processor.wait()
        before, begin = self._processor.waited(), self._clock()
        for _ in range(count):
            self._run(images)
        self._processor.wait()
        passed, after = max(self._clock() - begin, 1e-9), self._processor.waited()
        self._seconds[batch] = passed / count
        waited = None
        if before is not None and after is not None:
            waited = max(0.0, after - before) / (passed * self._threads)
        return Turn(batch * count / passed, waited)


def main() -> None:
    """Do the job that stdin names; answers go to stdout."""
    receive, send = channel()
    with suppress(OSError):  # if the memory gets full, this process ends, and not the user's
        (PROCESS / "oom_score_adj").write_text("500", encoding="ascii")
    job: Job = receive()
    torch.set_num_threads(job.threads)
    torch.set_float32_matmul_precision(job.precision)
    way = WAYS[job.way]
    try:
        if job.write and way.write is not None:
            way.write(job.place)
            send(None)
            return
        with running_on(torch.device(job.place.device)):
            processor = Processor(job.place.device)
            runner = Runner(way.open(job.place), job, processor)
            for batch in job.batches:
                send(runner.outputs(batch))
            while True:
                send(runner.turn(*_request(receive, job)))
    except Exception as error:  # noqa: BLE001  # the first process tells the user
        send(Failed(cause_of(error)))


def _request(receive: Callable[[], Any], job: Job) -> tuple[int, float]:
    """Return the next batch and seconds; if the first process was killed, clean up and exit."""
    try:
        request: tuple[int, float] = receive()
    except EOFError:
        shutil.rmtree(job.place.folder, ignore_errors=True)
        sys.exit()
    return request


def cause_of(error: BaseException) -> str:
    """Return one line about an error, with the fix of a known one."""
    inner: BaseException | None = error
    while inner is not None:
        if type(inner).__name__ == "InvalidCxxCompiler":
            return NO_COMPILER
        inner = inner.__cause__ or getattr(inner, "inner_exception", None)
    if isinstance(error, VitzooError):
        return str(error)
    text = " ".join(str(error).split())
    return printable(f"{type(error).__name__}: {text}" if text else type(error).__name__, MOST)
