"""k-NN, logistic regression, splits and intervals against scikit-learn, SciPy and a plain loop."""

import math

import numpy as np
import pytest

from tables import cases
from vitzoo.apps.probe import classifiers
from vitzoo.apps.probe.classifiers import STRENGTHS, interval, knn, logistic, split

NEIGHBOURS = (1, 10, 20, 100, 200)


def digits(seed=0):
    """Pixels of scans, and rows for training and test."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return data.data.astype(np.float32), data.target, split(data.target, 0.2, seed)


def blobs():
    """Unscaled features of two classes, one of them constant."""
    from sklearn.datasets import make_classification

    x, y = make_classification(400, 12, n_informative=6, flip_y=0.2, random_state=3)
    x = (x * np.logspace(-2, 2, 12) + 5).astype(np.float32)
    x[:, 4] = 7
    return x, y, split(y, 0.25, 1)


def clouds():
    """Features of 30 classes that overlap, of very different sizes."""
    generator = np.random.default_rng(5)
    y = np.sort(generator.integers(0, 30, 900) % generator.integers(1, 31, 900))
    x = (generator.normal(size=(900, 16)) + generator.normal(size=(30, 16))[y] * 0.7).astype("f4")
    return x, y, split(y, 0.3, 2)


DATA = {"digits": digits, "blobs": blobs, "clouds": clouds}


@pytest.mark.slow
@pytest.mark.parametrize("name", DATA)
def test_knn_is_that_of_scikit_learn_in_every_prediction(name):
    from sklearn.neighbors import KNeighborsClassifier

    x, y, (train, test) = DATA[name]()
    found = knn(x[train], y[train], x[test], NEIGHBOURS, y.max() + 1)
    assert list(found) == list(NEIGHBOURS)
    for k, answers in found.items():
        reference = KNeighborsClassifier(
            k, metric="cosine", algorithm="brute",
            weights=lambda distances: np.exp((1 - distances) / 0.07),
        ).fit(x[train].astype(float), y[train])  # fmt: skip
        expected = reference.predict(x[test].astype(float))
        assert np.array_equal(answers, expected), k
        assert len(set(answers)) > 1
    assert not np.array_equal(found[1], found[200])


def by_loop(train, classes, test, k, count):
    """Classify in the plainest way, with the documented rule for ties."""
    answers = []
    for row in test:
        similarities = [
            round(float(row @ other) / math.sqrt(float(row @ row) * float(other @ other)), 10)
            for other in train
        ]
        near = sorted(range(len(train)), key=lambda i: (-similarities[i], i))[:k]
        votes = [0.0] * count
        for i in near:
            votes[classes[i]] += math.exp((similarities[i] - similarities[near[0]]) / 0.07)
        best = max(round(vote, 10) for vote in votes)
        answers.append([round(vote, 10) for vote in votes].index(best))
    return answers


@pytest.mark.slow
@cases("k", [1, 2, 3, 8, 100])
@cases(("block", "rows"), [(1, 60), (100, 60), (2**23, 60), (2**23, 900)])
def test_ties_are_decided_by_the_documented_rule(k, block, rows, monkeypatch):
    """Images that occur often, in several classes, and as multiples of each other."""
    monkeypatch.setattr(classifiers, "BLOCK", block)
    generator = np.random.default_rng(0)
    few = generator.integers(-2, 3, size=(12, 4)) + 0.5
    k = min(k, rows)
    train = few[generator.integers(0, 12, rows)] * generator.choice([1, 2, 3, 0.1], (rows, 1))
    test, classes = few[generator.integers(0, 12, 40)], generator.integers(0, 4, rows)
    found = knn(train, classes, test, (k,), 4)[k].tolist()
    assert found == by_loop(train, classes, test, k, 4)
    backwards = by_loop(train[::-1], classes[::-1], test, k, 4)
    assert found != backwards or k > 2  # so the order decides


def test_zeros_are_similar_to_nothing():
    train, classes = np.array([[0.0, 0], [1, 0], [0, 1]]), np.array([0, 1, 2])
    found = knn(train, classes, np.array([[0.0, 0], [0, 3]]), (1,), 3)[1]
    assert found.tolist() == [0, 2]


@pytest.mark.workflows
@pytest.mark.parametrize("name", DATA)
def test_logistic_regression_is_that_of_scikit_learn(name):
    """The same C, the same logits within float32, the accuracy within 0.1 points."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y, (train, test) = DATA[name]()
    fitted = logistic(x[train], y[train], seed=4)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        {"logisticregression__C": STRENGTHS},
        cv=[split(y[train], 0.2, 4)],
    ).fit(x[train].astype(float), y[train])
    assert fitted.strength == search.best_params_["logisticregression__C"]
    tried = [accuracy for _, accuracy in fitted.strengths]
    assert tried == pytest.approx(list(search.cv_results_["mean_test_score"]))
    assert len(set(tried)) > 1
    logits = search.decision_function(x[test].astype(float))
    found = fitted.logits(x[test])
    if logits.ndim == 1:  # two classes
        found = found[:, 1] - found[:, 0]
    np.testing.assert_allclose(found, logits, rtol=0, atol=2e-4 * np.abs(logits).max())
    reference = search.score(x[test].astype(float), y[test])
    assert abs((fitted.predict(x[test]) == y[test]).mean() - reference) <= 0.001
    assert fitted.weight.dtype == fitted.bias.dtype == np.float32
    assert fitted.converged


@pytest.mark.slow
def test_a_fit_that_did_not_converge_says_so(monkeypatch):
    monkeypatch.setattr(classifiers, "ITERATIONS", 2)
    x, y, (train, _) = digits()
    assert not logistic(x[train], y[train]).converged


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_a_split_keeps_every_class_on_both_sides(share):
    classes = np.repeat(np.arange(5), [2, 3, 10, 50, 100])
    first, second = split(classes, share, 0)
    assert sorted([*first, *second]) == list(range(165))
    for part in (first, second):
        assert np.array_equal(part, np.sort(part))
        assert set(classes[part]) == set(range(5))
    expected = [min(max(1, round(share * n)), n - 1) for n in (2, 3, 10, 50, 100)]
    assert np.bincount(classes[second]).tolist() == expected
    assert np.array_equal(second, split(classes, share, 0)[1])
    assert not np.array_equal(second, split(classes, share, 1)[1])


@cases("total", [1, 7, 360, 10_000])
@cases("share", [0, 0.1, 0.5, 0.99, 1])
def test_intervals_are_those_of_scipy(total, share):
    from scipy.stats import binomtest

    correct = int(share * total)
    expected = binomtest(correct, total).proportion_ci(0.95, method="wilson")
    assert interval(correct, total) == pytest.approx((expected.low, expected.high), abs=1e-12)
