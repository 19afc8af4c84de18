"""`cases` and `check_all`: every case runs, and each that fails is named."""

from contextlib import contextmanager

import pytest

from helpers import says
from tables import cases, check_all


class Subtests:
    """As the fixture `subtests`: it notes the labels and errors of what fails."""

    def __init__(self):
        self.failed = []

    @contextmanager
    def test(self, label):
        try:
            yield
        except BaseException as error:  # noqa: BLE001  # `skip` and `fail` of pytest
            self.failed.append((label, type(error)))


def test_every_case_runs_and_each_that_fails_is_named():
    ran, subtests = [], Subtests()

    @cases("number", [1, 2, 3, 4])
    def test(number):
        ran.append(number)
        if number == 2:
            pytest.fail("as pytest does")
        assert number != 3

    test(subtests=subtests)
    assert ran == [1, 2, 3, 4]
    assert subtests.failed == [("2", pytest.fail.Exception), ("3", AssertionError)]


def test_several_tables_give_all_combinations_with_the_labels_of_both():
    ran, subtests = [], Subtests()

    @cases("outer", ["a", "b"])
    @cases(("x", "y"), [(1, 2), (3, 4)], ids=["first", "second"])
    def test(outer, x, y):
        ran.append((outer, x, y))
        assert (outer, x) != ("b", 3)

    test(subtests=subtests)
    assert ran == [("a", 1, 2), ("a", 3, 4), ("b", 1, 2), ("b", 3, 4)]
    assert [label for label, _ in subtests.failed] == ["second, b"]


def test_each_case_has_its_own_folder_and_its_own_patches(tmp_path, monkeypatch):
    seen, subtests = [], Subtests()

    @cases("value", ["one", "two"])
    def test(value, tmp_path, monkeypatch):
        seen.append(list(tmp_path.iterdir()))
        tmp_path.joinpath(value).touch()
        assert not hasattr(pytest, "of_a_case")
        monkeypatch.setattr(pytest, "of_a_case", value, raising=False)

    test(subtests=subtests, tmp_path=tmp_path, monkeypatch=monkeypatch)
    assert (seen, subtests.failed) == ([[], []], [])
    assert not hasattr(pytest, "of_a_case")


@pytest.mark.parametrize("values", [[], [(1, 2), (3,)]])
def test_a_table_that_does_not_fit_its_names_is_refused(values):
    with pytest.raises(ValueError, match="2 values"):
        cases(("x", "y"), values)


def test_a_case_with_marks_is_refused():
    with pytest.raises(TypeError, match="parametrize"):
        cases("x", [pytest.param(1, marks=pytest.mark.slow)])


def test_check_all_names_all_that_failed():
    def check(number):
        assert number < 2, "too large"

    with pytest.raises(AssertionError) as caught:
        check_all({"one": 1, "two": 2, "three": 3}, check)
    says(str(caught.value), "2 of 3", "two", "three", "too large")
    with pytest.raises(AssertionError, match="empty"):
        check_all({}, check)
