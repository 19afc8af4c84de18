"""Side-by-side measurement: both sides take turns in one run, and only their ratio counts."""

import gc
import statistics
import time

import pytest


class Comparison:
    """Times two sides in turns and reports how many times faster the first one is."""

    def __init__(self, capsys):
        self.capsys = capsys

    def __call__(self, title, ours, theirs, *, rounds=5):
        """Return theirs / ours, the medians of `rounds` turns after one warm-up each."""
        times = {ours: [], theirs: []}
        for turn in range(rounds + 1):
            for side, seconds in times.items():
                gc.collect()  # what the other side left is not this one's
                start = time.perf_counter()
                made = side()
                if turn:
                    seconds.append(time.perf_counter() - start)
                del made  # giving memory back is not measured
        mine, other = (statistics.median(seconds) for seconds in times.values())
        with self.capsys.disabled():
            print(f"\n{title}: {other / mine:.2f}x  ({mine * 1e3:.1f} ms, {other * 1e3:.1f} ms)")
        return other / mine


@pytest.fixture
def compare(capsys):
    return Comparison(capsys)
