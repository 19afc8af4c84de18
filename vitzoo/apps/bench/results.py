"""What `bench` returns: medians with intervals, agreement, and what it recommends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from torch import Tensor
from torch.nn import functional as F

from vitzoo.apps.export.int8 import LEAST_COSINE
from vitzoo.display import brief, html_table

LEAST_RATIO = 1.1
CONFIDENCE = 0.95
MOST_WAITED = 0.1  # of the time, for a busy core; more favours ways with few barriers for threads
LEAST_ROUNDS = 6  # with fewer there is no such interval


@dataclass(frozen=True)
class Measurement:
    """One way with batches of one size.

    An interval (low, high) contains the median of all possible rounds with 95 % confidence.

    Args:
        way: its name.
        batch: images in a batch; None if the way failed.
        images_per_second: median over the rounds.
        images_per_second_interval: its interval.
        ratio: median of its images per second by those of `eager` in the same round.
        ratio_interval: its interval.
        memory: peak in bytes while it computes batches of this size, beyond a process that has
            imported torch; on another device than the CPU, of the memory that torch allocates
            there. None if the kernel does not tell.
        cosine: the smallest over the images, of the outputs with those of `eager`.
        top1: part of the images for which the largest output is that of `eager`; None for a network
            without classes.
        seconds: time until it could run: export, start, compilation.
        recommended: whether the ratio is at least 1.1 at the lower end of the interval, and the
            cosine at least 0.999. With random weights, no way that computes in fewer bits is.
        error: why the way failed, empty if it did not.
    """

    way: str
    batch: int | None = None
    images_per_second: float | None = None
    images_per_second_interval: tuple[float, float] | None = None
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None
    memory: int | None = None
    cosine: float | None = None
    top1: float | None = None
    seconds: float | None = None
    recommended: bool = False
    error: str = ""

    __repr__ = brief

    def shown(self) -> dict[str, object]:
        """Return the numbers of a way that has not failed, as people read them."""
        return {
            "way": self.way,
            "batch": self.batch,
            "images/s": _spread(self.images_per_second, self.images_per_second_interval),
            "x of eager": _spread(self.ratio, self.ratio_interval),
            "MiB": None if self.memory is None else round(self.memory / 2**20),
            "cosine": five_digits(self.cosine or 0),
            "top-1": None if self.top1 is None else f"{self.top1:.0%}",
        }


@dataclass(frozen=True)
class Benchmark:
    """What `bench` measured on this machine.

    Args:
        model: the network.
        weights: where its weights are from, or that they are random.
        images: what the agreement was measured on, and their number.
        device: of the computation.
        threads: of each way.
        rounds: in which all ways took turns.
        waited: median part of a turn in which threads waited for a core that other programs used.
            Above 0.1 nothing is recommended. None if the kernel does not tell.
        versions: of the libraries, and the kind of processor.
        rows: one for each way and size of the batch.
        advice: for each size of the batch, what is recommended and the lines that give it.
        left_out: ways that are not installed, with the command that installs them.
        identity: of the features before the classifier, see `vitzoo.identity`; empty with random
            weights, and for a network without a preprocessing.
    """

    model: str
    weights: str
    images: str
    device: str
    threads: int
    rounds: int
    waited: float | None
    versions: Mapping[str, str]
    rows: tuple[Measurement, ...]
    advice: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    identity: str = ""

    __repr__ = brief

    def __str__(self) -> str:
        return "\n".join(self.advice)

    def _repr_html_(self) -> str:
        failed = [f"{row.way} failed: {row.error}" for row in self.rows if row.error]
        about = f"weights: {self.weights}; compared on {self.images}; {self.threads} thread(s)"
        rows = [row.shown() for row in self.rows if not row.error]
        return html_table(rows, f"{self.model} on {self.device}", (*failed, about, *self.advice))


def interval(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the median, and the 95 % interval for the median that numbers are drawn around.

    The ends are two of the numbers, by their ranks: whatever the distribution is, at least 95 % of
    such intervals contain its median (sign test). Six numbers give their smallest and largest.

    >>> interval([5, 1, 4, 2, 3, 9, 7, 8, 6])
    (5, (2, 8))
    """
    ordered, n = sorted(values), len(values)
    rank, tail = 0, 2.0**-n
    while 2 * tail <= 1 - CONFIDENCE:
        rank += 1
        tail += math.comb(n, rank) * 2.0**-n
    rank = max(rank, 1)
    return median(ordered), (ordered[rank - 1], ordered[n - rank])


def _spread(median: float | None, interval: tuple[float, float] | None) -> str:
    """Write a median with its interval, each with three digits."""
    middle, low, high = (
        f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
        for value in (median or 0, *(interval or (0, 0)))
    )
    return f"{middle} ({low}-{high})"


def agreement(found: Tensor, expected: Tensor, count: int) -> tuple[float, float]:
    """Return the smallest cosine of (m, k) outputs, and the part of the rows with the same maximum.

    Args:
        found, expected: rows beyond the first `count` repeat images.
        count: number of images.
    """
    cosine = F.cosine_similarity(found.double(), expected.double()).min().item()
    same = found.argmax(1) == expected.argmax(1)
    return cosine, same[:count].float().mean().item()


def is_busy(waited: float | None) -> bool:
    """Tell whether other programs used the cores during the measurement."""
    return waited is not None and waited > MOST_WAITED


def is_recommended(ratio_interval: tuple[float, float], cosine: float) -> bool:
    """Tell whether a way is clearly faster and computes the same."""
    return ratio_interval[0] >= LEAST_RATIO and cosine >= LEAST_COSINE


def advise(
    rows: Sequence[Measurement],
    lines: Mapping[str, Sequence[str]],
    *,
    images: str,
    threads: int,
    waited: float | None,
    random_weights: bool,
    random_images: bool,
) -> tuple[str, ...]:
    """Return what is recommended for each size of the batch, and the lines that give it.

    Args:
        rows: of all ways.
        lines: with which a user gets each way.
        images: what the agreement was measured on.
        threads, waited: as in `Benchmark`.
        random_weights, random_images: whether they are, which the advice then says.
    """
    if is_busy(waited):
        fewer = ", or with fewer threads (OMP_NUM_THREADS=1)" if threads > 1 else ""
        busy = (
            f"nothing is recommended: other programs used the cores, and the ways waited "
            f"{waited:.0%} of the time for one, which slows some ways more than others; measure "
            f"again when the machine is idle{fewer}"
        )
        return (busy,)
    advice: list[str] = []
    for batch in dict.fromkeys(row.batch for row in rows if row.batch):
        advice += _of_batch(batch, rows, lines, images)
    if random_weights:
        advice.append(
            "the weights are random, so cosine and top-1 say nothing about trained weights, and "
            "ways that compute in fewer bits are not recommended: measure again with the weights "
            "that you use"
        )
    if random_images:
        advice.append(
            "the images are random numbers, so cosine and top-1 say little about photographs: "
            "pass images of yours (--images)"
        )
    return tuple(advice)


def _of_batch(
    batch: int, rows: Sequence[Measurement], lines: Mapping[str, Sequence[str]], images: str
) -> list[str]:
    good = [row for row in rows if row.batch == batch and row.recommended]
    if not good:
        text = (
            f"eager; no other way is at least {LEAST_RATIO}x as fast at the lower end of its "
            f"interval with a cosine of at least {LEAST_COSINE}"
        )
        return [f"batch of {batch}: {text}"]
    best = max(good, key=lambda row: row.ratio_interval or (0, 0))
    low, high = best.ratio_interval or (0, 0)
    text = (
        f"{best.way}, {best.ratio:.2f}x as fast as eager ({low:.2f} to {high:.2f}), cosine at "
        f"least {five_digits(best.cosine or 0)} for {images}"
    )
    advice = [f"batch of {batch}: {text}", *(f"  {line}" for line in lines[best.way])]
    if others := ", ".join(f"{row.way} {row.ratio:.2f}x" for row in good if row is not best):
        advice.append(f"  also recommended: {others}; --ways NAME alone shows the lines of one")
    return advice


def five_digits(cosine: float) -> str:
    """Write a cosine with five digits, not rounded up.

    >>> five_digits(0.99999999), five_digits(1 - 1e-12), five_digits(0.998999)
    ('0.99999', '1.00000', '0.99899')
    """
    return f"{math.floor(round(cosine, 9) * 1e5) / 1e5:.5f}"
