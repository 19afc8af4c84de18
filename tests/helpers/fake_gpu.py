"""A GPU in the memory of the process: what a stream of images asks of a device, and delays."""

from __future__ import annotations

import threading
import time

import torch

from vitzoo import Predictor


class FakeCopies:
    """Copies whose results have wrong numbers until they are waited for."""

    def __init__(self, device):
        self.device = device

    def enter_thread(self):
        """Do nothing."""

    def buffer(self, shape, dtype):
        return torch.full(shape, 99, dtype=dtype, device="cpu")

    def to_device(self, buffer):
        copy = buffer.clone()
        buffer.fill_(7)  # whoever reads it later is wrong
        return copy

    def from_device(self, results):
        late = {name: torch.full_like(x, 55) for name, x in results.items()}

        @torch.inference_mode()
        def wait():
            for name, x in results.items():
                late[name].copy_(x)

        return late, wait


class SlowGpu(FakeCopies):
    """A GPU that computes one chunk after the other, each in a number of seconds."""

    seconds = 0.06
    lock = threading.Lock()
    free_at = 0.0
    busy = ()

    def from_device(self, results):
        with self.lock:
            begin = max(time.perf_counter(), SlowGpu.free_at)
            SlowGpu.free_at = end = begin + self.seconds
            SlowGpu.busy += ((begin, end),)
        return results, lambda: time.sleep(max(0, end - time.perf_counter()))

    def buffer(self, shape, dtype):
        return torch.zeros(shape, dtype=dtype, device="cpu")

    def to_device(self, buffer):
        return buffer


def use_fake_gpu(monkeypatch, copies=FakeCopies):
    """Let Predictors take the CPU for a device that computes beside the process."""
    monkeypatch.setattr(Predictor, "asynchronous", True)
    monkeypatch.setattr("vitzoo.apps.predict.stream.DeviceCopies", copies)
