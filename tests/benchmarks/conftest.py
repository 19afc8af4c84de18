"""Side-by-side measurement: both sides take turns in one run, and only their ratio counts.

`VITZOO_BENCH=full` holds the figures of the design, on an idle machine. A smoke run on a shared one
takes two turns without a warm-up, of which the better counts, and fails where something is more
than twice as slow as it should be.
"""

import gc
import os
import statistics
import time

import pytest


class Comparison:
    """Times two sides in turns and reports how many times faster the first one is."""

    full = os.environ.get("VITZOO_BENCH") == "full"
    room = 1 if full else 2

    def __init__(self, capsys):
        self.capsys = capsys

    def check(self, ratio, at_least):
        """Fail if a ratio of this run is below a figure, with room for a busy machine."""
        assert ratio >= at_least / self.room, f"{ratio:.2f}x, expected {at_least:.2f}x"

    def __call__(self, title, ours, theirs, *, rounds=5):
        """Return theirs / ours: medians of `rounds` turns after a warm-up, or the better of two."""
        rounds, middle = (rounds, statistics.median) if self.full else (2, min)
        warm_up = int(self.full)
        times = {ours: [], theirs: []}
        for turn in range(warm_up + rounds):
            for side, seconds in times.items():
                gc.collect()  # what the other side left is not this one's
                start = time.perf_counter()
                made = side()
                if turn >= warm_up:
                    seconds.append(time.perf_counter() - start)
                del made  # giving memory back is not measured
        mine, other = (middle(seconds) for seconds in times.values())
        with self.capsys.disabled():
            print(f"\n{title}: {other / mine:.2f}x  ({mine * 1e3:.1f} ms, {other * 1e3:.1f} ms)")
        return other / mine


@pytest.fixture
def compare(capsys):
    return Comparison(capsys)
