"""Many small cases in one test: all of them run, and each that fails is reported by its name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


class Case(dict[str, Any]):
    """The arguments of a case, by name, and its label."""

    def __init__(self, label: str, arguments: dict[str, Any]) -> None:
        super().__init__(arguments)
        self.label = label


def cases(
    names: str | Sequence[str],
    values: Iterable[Any],
    ids: Iterable[object] | Callable[[Any], object] | None = None,
) -> Callable[[Test], Test]:
    """Run a test for all values, as `pytest.mark.parametrize` does, but as one item of pytest.

    An item costs more than a small case. Each case has its own `tmp_path` and `monkeypatch`; it
    shares all other fixtures. Several of these decorators make all combinations.
    """
    single = isinstance(names, str) and "," not in names
    fields = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    rows = [(row,) if single else tuple(row) for row in values]
    if not rows or any(len(row) != len(fields) for row in rows):
        raise ValueError(f"expected cases of {len(fields)} values each ({names}), got {rows[:3]}")
    if any(isinstance(value, type(pytest.param())) for row in rows for value in row):
        raise TypeError("a case has no marks; use pytest.mark.parametrize for pytest.param")
    if ids is None or callable(ids):
        labels = [
            ", ".join(
                _label(ids(v) if ids else v, f"{n}{i}") for n, v in zip(fields, r, strict=True)
            )
            for i, r in enumerate(rows)
        ]
    else:
        labels = [str(label) for label in ids]
    arguments = (dict(zip(fields, row, strict=True)) for row in rows)
    own = [Case(*both) for both in zip(labels, arguments, strict=True)]

    def decorate(test: Test) -> Test:
        inner: tuple[Test, list[Case]] | None = getattr(test, "cases", None)
        if inner is not None:
            both = [Case(f"{b.label}, {a.label}", b | a) for a in own for b in inner[1]]
            return _runner(inner[0], both)
        return _runner(test, own)

    return decorate


def _runner(test: Test, every: list[Case]) -> Test:
    """Return a test that runs another one for each case."""
    parameters = inspect.signature(test).parameters
    fixtures = [name for name in parameters if name not in every[0]]

    @functools.wraps(test)
    def run(*self: object, subtests: pytest.Subtests, **given: Any) -> None:
        for i, case in enumerate(every):
            arguments = given | case
            if "tmp_path" in given:
                arguments["tmp_path"] = given["tmp_path"] / f"case-{i}"
                arguments["tmp_path"].mkdir()
            with pytest.MonkeyPatch.context() as patch:
                if "monkeypatch" in given:
                    arguments["monkeypatch"] = patch
                try:
                    test(*self, **arguments)
                except BaseException:  # `skip` and `fail` of pytest are such errors
                    with subtests.test(case.label):
                        raise

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    wanted = dict.fromkeys([*fixtures, "subtests"])
    run.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in wanted])  # type: ignore[attr-defined]
    run.cases = (test, every)  # type: ignore[attr-defined]
    return run


def _label(value: object, otherwise: str) -> str:
    """Return a text for a value, as pytest does for its ids."""
    if value is None or isinstance(value, str | int | float):
        return str(value)[:60]
    return str(getattr(value, "__name__", otherwise))


def check_all(cases: Mapping[str, Any], check: Callable[[Any], object]) -> None:
    """Call `check` with every case, then fail with the names of all cases that failed, and why."""
    failures = []
    for name, case in cases.items():
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # reported below
            failures.append(f"{name}: {type(error).__name__}: {error}")
    assert cases, "an empty table checks nothing"
    assert not failures, f"{len(failures)} of {len(cases)} cases failed\n" + "\n".join(failures)
