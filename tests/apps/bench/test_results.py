"""Intervals against tables and simulation, agreement, and the rule of the recommendation."""

import math
import random

import pytest
import torch

from helpers import says
from tables import cases
from vitzoo.apps.bench.results import (
    LEAST_ROUNDS,
    Measurement,
    advise,
    agreement,
    five_digits,
    interval,
    is_recommended,
)

# Ranks of the 95 % interval for a median: Conover, Practical Nonparametric Statistics, table A3.
RANKS = {6: 1, 7: 1, 8: 1, 9: 2, 10: 2, 11: 2, 12: 3, 15: 4, 17: 5, 20: 6, 25: 8, 30: 10}


@cases("n", RANKS)
def test_the_interval_has_the_ranks_of_the_tables(n):
    values = list(range(1, n + 1))
    random.Random(n).shuffle(values)
    middle, (low, high) = interval(values)
    assert middle == (n + 1) / 2
    assert (low, high) == (RANKS[n], n + 1 - RANKS[n])


def test_95_of_100_intervals_contain_the_median():
    """Of a skewed distribution; with one rank more, fewer would."""
    draw = random.Random(0)
    true, hits = math.log(2), 0
    for _ in range(2000):
        _, (low, high) = interval([draw.expovariate(1) for _ in range(9)])
        hits += low <= true <= high
    assert hits / 2000 == pytest.approx(0.961, abs=0.012)


def test_the_least_number_of_rounds_is_the_first_with_an_interval():
    assert 2 * 0.5**LEAST_ROUNDS <= 0.05 < 2 * 0.5 ** (LEAST_ROUNDS - 1)


@pytest.mark.parametrize(
    ("low", "cosine", "expected"),
    [
        (1.1, 0.999, True),
        (1.0999, 1.0, False),
        (9.0, 0.9989, False),
        (1.5, float("nan"), False),
        (float("nan"), 1.0, False),
    ],
)
def test_what_is_recommended(low, cosine, expected):
    assert is_recommended((low, 10.0), cosine) is expected


def test_the_agreement_is_that_of_the_worst_image():
    expected = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    found = torch.tensor([[1.0, 0.0], [2.0, 2.0], [6.0, 2.0]])
    cosine, top1 = agreement(found, expected, 3)
    assert cosine == pytest.approx(2**-0.5)
    assert top1 == pytest.approx(2 / 3)  # of equal logits, the first is the class
    assert agreement(found, expected, 1)[1] == 1  # rows beyond repeat images


def test_a_cosine_is_not_rounded_up():
    assert five_digits(0.9989999) == "0.99899"
    assert five_digits(1 - 1e-12) == "1.00000"


def row(way, batch, low, *, recommended):
    return Measurement(way, batch, ratio=low + 0.1, ratio_interval=(low, low + 0.2), cosine=0.9995,
                       recommended=recommended)  # fmt: skip


ROWS = [
    row("eager", 1, 1, recommended=False),
    row("bf16", 1, 3, recommended=False),
    row("compile", 1, 1.2, recommended=True),
    row("freeze", 1, 1.3, recommended=True),
    row("eager", 8, 1, recommended=False),
    Measurement("openvino", error="not installed"),
]
LINES = {"freeze": ["make it", "run it"], "compile": ["no"]}


def advice(**changes):
    given = {"images": "two images", "threads": 2, "waited": None, "random_weights": False}
    return advise(ROWS, LINES, **given | {"random_images": False} | changes)


def test_for_each_batch_the_best_of_the_recommended_ways_with_its_lines():
    one, *lines, others, eight = advice()
    says(one, "batch of 1", "freeze", "1.40x", "1.30 to 1.50", "0.99950", "two images")
    assert lines == ["  make it", "  run it"]
    says(others, "also recommended", "compile 1.30x", "--ways")
    says(eight, "batch of 8", "eager", "no other way", "1.1x", "0.999")


def test_random_weights_and_images_are_said():
    weights = advice(random_weights=True)[-1]
    says(weights, "measure again", "weights that you use")
    says(advice(random_images=True)[-1], "images are random", "--images")


def test_nothing_is_recommended_on_a_busy_machine():
    (text,) = advice(waited=0.31)
    says(text, "nothing is recommended", "31%", "idle", "OMP_NUM_THREADS=1")
    (text,) = advice(waited=0.31, threads=1)
    says(text, "idle")
    assert "OMP_NUM_THREADS" not in text
    assert len(advice(waited=0.1)) > 1
