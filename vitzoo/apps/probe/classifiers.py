"""Classifiers of features, k nearest neighbours and logistic regression, and their scores.

Features are (n, d) arrays, and classes are whole numbers from 0 to k - 1. All results are computed
in float64, and the same seed gives the same result.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

TEMPERATURE = 0.07
PLACES = 10  # decimals of similarities and votes; equal images have equal similarities in these
BLOCK = 2**23  # similarities in memory at a time
STRENGTHS = tuple(10.0**power for power in range(-4, 3))  # of C, the inverse of the regularisation
VALIDATION_SHARE = 0.2
ITERATIONS = 1000
LARGE = 2**27  # multiply-accumulates of one pass over the rows that are worth several threads


def split(classes: Ints, share: float, seed: int) -> tuple[Ints, Ints]:
    """Split rows at random into two parts that have the same classes.

    Of every class with n rows, `share` times n rows are in the second part, rounded, and at least
    one row is in each part.

    Returns:
        the indices of the rows of both parts, ascending.
    """
    generator, second = np.random.default_rng(seed), np.zeros(len(classes), dtype=bool)
    for one in np.unique(classes):
        rows = np.flatnonzero(classes == one)
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        second[generator.permutation(rows)[:count]] = True
    return np.flatnonzero(~second), np.flatnonzero(second)


def knn(
    train: Array, classes: Ints, test: Array, neighbours: Sequence[int], count: int
) -> dict[int, Ints]:
    """Classify features by the classes of the most similar training features.

    The similarity s is the cosine. Each of the k most similar training features votes for its
    class with weight exp(s / 0.07). Similarities and sums of votes are rounded to 10 decimals.
    Among equally similar training features the first row is the nearer one. Among classes with
    equal votes, the first class is chosen.

    Args:
        train: (n, d) training features.
        classes: (n,) their classes.
        test: (m, d) features to classify.
        neighbours: the numbers k, each at most n.
        count: number of classes.

    Returns:
        the classes (m,) for each k.

    Source: arXiv:2104.14294, appendix F.1, and `eval_knn.py` of its authors. They scale the votes
    by a constant that does not change the result.
    """
    train, test = _unit(train), _unit(test)
    found: dict[int, list[int]] = {k: [] for k in neighbours}
    most = max(neighbours, default=0)
    if not most:
        return {}
    step = max(1, BLOCK // len(train))
    for start in range(0, len(test), step):
        similarities = (test[start : start + step] @ train.T).round(PLACES)
        least = np.partition(similarities, -most, axis=1)[:, -most]
        for row, limit in zip(similarities, least, strict=True):
            near = np.flatnonzero(row >= limit)  # ascending, so a stable sort keeps the first rows
            near = near[np.argsort(-row[near], kind="stable")][:most]
            weights = np.exp((row[near] - row[near[0]]) / TEMPERATURE)
            for k, answers in found.items():
                votes = np.bincount(classes[near[:k]], weights[:k], minlength=count)
                answers.append(int(votes.round(PLACES).argmax()))
    return {k: np.array(answers, dtype=np.int64) for k, answers in found.items()}


def _unit(features: Array) -> Array:
    """Return features of length 1 in float64; zeros stay zeros."""
    wide = features.astype(np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), np.finfo(float).tiny)


@dataclass(frozen=True, eq=False)
class LinearClassifier:
    """A linear layer on features, as logistic regression gives it.

    Args:
        weight: (k, d) float32.
        bias: (k,) float32.
        strength: the chosen C of scikit-learn, the inverse of the strength of the L2 penalty.
        strengths: (C, accuracy on the validation rows) for every C that was tried.
        converged: whether the solver reached its tolerance.
    """

    weight: Array
    bias: Array
    strength: float
    strengths: tuple[tuple[float, float], ...]
    converged: bool

    def logits(self, features: Array) -> Array:
        """Map (n, d) features to (n, k) logits in float64."""
        return features.astype(np.float64) @ self.weight.T.astype(np.float64) + self.bias

    def predict(self, features: Array) -> Ints:
        """Return the classes (n,) of (n, d) features; of equal logits, the first."""
        return self.logits(features).argmax(axis=1)


def logistic(train: Array, classes: Ints, *, seed: int = 0) -> LinearClassifier:
    """Fit scikit-learn's logistic regression (L2 penalty, L-BFGS) to standardised features.

    A stratified random fifth of the rows chooses C among 0.0001, 0.001, ..., 100: the smallest C
    with the highest accuracy on it. The classifier is then fitted to all rows. Mean and standard
    deviation of the features become part of the linear layer.

    Args:
        train: (n, d) features.
        classes: (n,) classes; each class has at least two rows.
        seed: of the split.
    """
    wide = train.astype(np.float64)
    fitted, held = split(classes, VALIDATION_SHARE, seed)
    tried = []
    for strength in STRENGTHS:
        weight, bias, _ = _fit(wide[fitted], classes[fitted], strength)
        right = (wide[held] @ weight.T + bias).argmax(axis=1) == classes[held]
        tried.append((strength, float(right.mean())))
    best = max(tried, key=lambda pair: (pair[1], -pair[0]))[0]
    weight, bias, converged = _fit(wide, classes, best)
    narrow = weight.astype(np.float32), bias.astype(np.float32)
    return LinearClassifier(*narrow, best, tuple(tried), converged)


def _fit(train: Array, classes: Ints, strength: float) -> tuple[Array, Array, bool]:
    """Return weight (k, d) and bias (k,) for features that are not standardised."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # scikit-learn needs it

    mean, std = train.mean(axis=0), train.std(axis=0)
    std[std == 0] = 1.0
    solver = LogisticRegression(C=strength, max_iter=ITERATIONS)
    threads = None if train.size * (classes.max() + 1) >= LARGE else 1  # None: as many as usual
    with threadpool_limits(threads), warnings.catch_warnings():  # the caller says it
        warnings.simplefilter("ignore", ConvergenceWarning)
        solver.fit((train - mean) / std, classes)
    converged = bool(solver.n_iter_.max() < ITERATIONS)
    weight, bias = solver.coef_, solver.intercept_
    if len(weight) == 1:  # of two classes, scikit-learn has the logit of the second alone
        weight, bias = np.stack((-weight[0], weight[0])) / 2, np.stack((-bias[0], bias[0])) / 2
    return weight / std, bias - weight @ (mean / std), converged


def interval(correct: int, total: int) -> tuple[float, float]:
    """Return the 95 % interval of a share by Wilson's score.

    Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference",
    1927.

    >>> [round(end, 3) for end in interval(95, 100)]
    [0.888, 0.978]
    """
    from scipy.stats import binomtest  # scikit-learn needs it

    low, high = binomtest(correct, total).proportion_ci(method="wilson")
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class Score:
    """The result of one classifier on the test images.

    Args:
        classifier: `k-NN, k=10` or `logistic regression`.
        predictions: (m,) the predicted class of each test image.
        confusion: (k, k) numbers of test images by true class (row) and predicted class (column).
    """

    classifier: str
    predictions: Ints
    confusion: Ints

    @classmethod
    def of(cls, classifier: str, predictions: Ints, true: Ints, count: int) -> Score:
        """Return the score of predictions."""
        confusion = np.zeros((count, count), dtype=np.int64)
        np.add.at(confusion, (true, predictions), 1)
        return cls(classifier, predictions, confusion)

    @property
    def correct(self) -> int:
        """Number of test images with the right class."""
        return int(self.confusion.trace())

    @property
    def total(self) -> int:
        """Number of test images."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Share of the test images with the right class."""
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy by Wilson's score."""
        return interval(self.correct, self.total)

    @property
    def class_accuracy(self) -> tuple[float | None, ...]:
        """Share of the test images of each class with the right class; None without images."""
        totals = self.confusion.sum(axis=1).tolist()
        right = self.confusion.diagonal().tolist()
        return tuple(r / n if n else None for r, n in zip(right, totals, strict=True))

    def to_data(self) -> dict[str, Any]:
        """Return the score as plain data."""
        low, high = self.interval
        return {
            "classifier": self.classifier,
            "accuracy": self.accuracy,
            "low": low,
            "high": high,
            "correct": self.correct,
            "total": self.total,
        }

    def shown(self) -> dict[str, str]:
        """Return the score as people read it."""
        low, high = self.interval
        return {
            "classifier": self.classifier,
            "accuracy": f"{self.accuracy:.1%}",
            "95 % interval": f"{low:.1%} to {high:.1%}",
            "correct": f"{self.correct:,} of {self.total:,}",
        }
