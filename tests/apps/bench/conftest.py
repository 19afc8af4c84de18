"""Processes of `bench` that compute nothing: they answer what a test scripts."""

from __future__ import annotations

import pytest
import torch

from helpers import randn
from vitzoo.apps.bench import turns, ways
from vitzoo.apps.bench.worker import Failed, Job, Outputs, Turn
from vitzoo.apps.embed.processes import ProcessEnded

EXPECTED = randn(16, 10, seed=1)


class Fakes:
    """What the processes of each way answer, and what they were asked.

    Attributes:
        speeds: of each way: images per second, or one for each turn.
        outputs: of each way, instead of those of `eager`.
        failing: of each way: an error that ends its start, or ("turn", number).
        waited: in each turn.
        seconds: of a batch.
        calls: (way, batch) of each turn, in their order.
        written, ended: names of ways.
        jobs: that were sent.
    """

    def __init__(self):
        self.speeds = {"eager": 100.0}
        self.outputs, self.failing = {}, {}
        self.waited, self.seconds = 0.0, 0.01
        self.calls, self.written, self.ended, self.jobs = [], [], [], []


class FakeProcess:
    def __init__(self, fakes, module, env, *, quiet, group):
        assert (module, quiet, group) == ("vitzoo.apps.bench.worker", True, True)
        assert env["PYTHONSAFEPATH"] == "1"  # torch starts `python -c` when it compiles
        self.fakes, self.env = fakes, env
        self.answers = []

    def send(self, value):
        if isinstance(value, Job):
            self.way = value.way
            self.fakes.jobs.append(value)
            self.start(value)
            return
        batch, _ = value
        calls = self.fakes.calls
        number = sum(way == self.way for way, _ in calls)
        calls.append((self.way, batch))
        if self.fakes.failing.get(self.way) == ("turn", number):
            self.answers.append(ProcessEnded("signal SIGKILL"))
            return
        speed = self.fakes.speeds.get(self.way, 100.0)
        speed = speed[number] if isinstance(speed, list) else speed
        self.answers.append(Turn(speed, self.fakes.waited))

    def start(self, job):
        failure = self.fakes.failing.get(self.way)
        if isinstance(failure, str | Exception):
            known = isinstance(failure, Exception)
            self.answers.append(failure if known else Failed(failure))
        elif job.write:
            self.fakes.written.append(self.way)
            self.answers.append(None)
        else:
            values = self.fakes.outputs.get(self.way, EXPECTED)
            self.answers += [Outputs(values, 2**20, self.fakes.seconds)] * len(job.batches)

    def receive(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self):
        self.fakes.ended.append(self.way)


@pytest.fixture
def fakes(monkeypatch):
    found = Fakes()
    monkeypatch.setattr(turns, "Process", lambda *a, **k: FakeProcess(found, *a, **k))
    monkeypatch.setattr(ways, "check_extra", lambda *_: None)  # all packages are installed
    return found


@pytest.fixture
def turned():
    """Return outputs whose smallest cosine with those of `eager` is a given number."""

    def make(cosine):
        first = EXPECTED[0].double()
        other = torch.zeros(10, dtype=torch.float64)
        other[0], other[1] = -first[1], first[0]  # at a right angle to the first
        sine = (1 - cosine**2) ** 0.5
        values = EXPECTED.double().clone()
        values[0] = cosine * first + sine * other * (first.norm() / other.norm())
        return values

    return make
