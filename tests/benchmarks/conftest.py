"""Side-by-side measurement: all sides take turns in one run, and only their ratios count.

`VITZOO_BENCH=full` holds the promised figures, on an idle machine and with all of its cores. A
smoke run on a shared one takes two turns without a warm-up, of which the better counts, and fails
where something is more than twice as slow as promised. `VITZOO_BENCH_RESULTS` names a file to which
every figure is appended as a line of JSON; tests/update_benchmarks.py makes a page of them.
"""

import ctypes
import gc
import json
import os
import statistics
import time
from pathlib import Path

import pytest

FULL = os.environ.get("VITZOO_BENCH") == "full"
RESULTS = os.environ.get("VITZOO_BENCH_RESULTS")  # a fixture removes it before a test runs
ROOM = 1 if FULL else 2  # for a busy machine


class Result:
    """Seconds of every turn of every side; the first side is vitzoo's."""

    def __init__(self, title, seconds):
        self.title, self.seconds = title, seconds
        self.ours, *self.others = seconds
        self.promised = {}

    def __str__(self):
        said = [f"{self.ours} {self.median(self.ours) * 1e3:.1f} ms"]
        for side in self.others:
            low, high = self.interval(side)
            ratio = f"{self.ratio(side):.3g}x, turns {low:.3g} to {high:.3g}"
            said.append(f"{side} {self.median(side) * 1e3:.1f} ms ({ratio})")
        return f"{self.title}: {'; '.join(said)}"

    def median(self, side):
        """Return the median of a side's turns in seconds, in a smoke run the better of two."""
        return (statistics.median if FULL else min)(self.seconds[side])

    def ratio(self, side):
        """Return the time of a side by ours: above 1, ours is faster.

        This is the median of the ratios of single turns, in which both sides meet the same machine.
        """
        if FULL:
            return statistics.median(self.ratios(side))
        return self.median(side) / self.median(self.ours)

    def ratios(self, side):
        """Return the ratio of each turn."""
        turns = zip(self.seconds[side], self.seconds[self.ours], strict=True)
        return [other / mine for other, mine in turns]

    def interval(self, side):
        """Return the lowest and the highest ratio of a single turn."""
        return min(self.ratios(side)), max(self.ratios(side))

    def check(self, side, *, at_least):
        """Fail if the ratio of this run is below a figure, with room for a busy machine."""
        self.promised[side] = at_least
        expect(f"{self.title}, {side}", self.ratio(side), at_least=at_least)

    def rows(self):
        """Return one row of data for each other side."""
        spread = {side: [min(turns), max(turns)] for side, turns in self.seconds.items()}
        for side in self.others:
            promise = self.promised.get(side)
            yield {
                "title": self.title,
                "ours": self.ours,
                "side": side,
                "medians": [self.median(self.ours), self.median(side)],
                "spreads": [spread[self.ours], spread[side]],
                "value": self.ratio(side),
                "interval": self.interval(side),
                "at_least": promise,
                "held": None if promise is None else self.ratio(side) >= promise,
            }


def release_memory():
    """Free unused objects, and give the memory that the allocator keeps back to the system.

    It would otherwise do so at some later call, in the time of another side: 25 ms for B/16.
    """
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc
        trim(0)


def expect(title, value, *, at_least=None, at_most=None):
    """Fail if a value is out of its bounds, with room for a busy machine."""
    if at_least is not None:
        assert value >= at_least / ROOM, f"{title}: {value:.3g}, expected at least {at_least:.3g}"
    if at_most is not None:
        assert value <= at_most * ROOM, f"{title}: {value:.3g}, expected at most {at_most:.3g}"


class Comparison:
    """Times the sides of a comparison in turns, and keeps the figures of one test."""

    def __init__(self, capsys):
        self.capsys = capsys
        self.results, self.recorded = [], []

    def __call__(self, title, sides, *, rounds=5, before=None):
        """Return the seconds of `rounds` turns after a warm-up, of two turns in a smoke run.

        `sides` maps names to functions, ours first. `before` is called before each of them, and is
        not timed.
        """
        rounds, warm_up = (rounds, 1) if FULL else (2, 0)
        seconds = {name: [] for name in sides}
        for turn in range(warm_up + rounds):
            for name, side in sides.items():
                if before is not None:
                    before()
                release_memory()  # what another side left is not this one's
                start = time.perf_counter()
                made = side()
                if turn >= warm_up:
                    seconds[name].append(time.perf_counter() - start)
                del made  # giving memory back is not measured
        result = Result(title, seconds)
        self.results.append(result)
        self._say(result)
        return result

    def record(self, title, side, value, *, at_least=None, at_most=None, unit="x"):
        """Keep and check a figure that is not a ratio of medians.

        `unit` stands behind the value: "x" for a ratio to the other side.
        """
        row = {"title": title, "side": side, "value": value, "unit": unit}
        row |= {"at_least": at_least, "at_most": at_most, "held": None}
        if (at_least, at_most) != (None, None):
            row["held"] = (at_least is None or value >= at_least) and (
                at_most is None or value <= at_most
            )
        self.recorded.append(row)
        self._say(f"{title}, {side}: {value:.3g} {unit}")
        expect(f"{title}, {side}", value, at_least=at_least, at_most=at_most)

    def rows(self):
        """Return the figures of this test as data."""
        return [*(row for result in self.results for row in result.rows()), *self.recorded]

    def _say(self, text):
        with self.capsys.disabled():
            print(f"\n{text}")


@pytest.fixture
def compare(capsys, request):
    comparison = Comparison(capsys)
    yield comparison
    topic = request.module.__doc__.partition("\n")[0].rstrip(".")
    test = {"topic": topic, "test": name(request.node.nodeid)}
    keep(*(test | row for row in comparison.rows()))  # also where a check failed


def pytest_runtest_logreport(report):
    if report.failed:
        keep({"failed": name(report.nodeid)})


def name(node):
    """Return the file and the name of a test."""
    return node.rpartition("/")[2]


def keep(*lines):
    """Append lines to the file of results."""
    if RESULTS:
        with Path(RESULTS).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
