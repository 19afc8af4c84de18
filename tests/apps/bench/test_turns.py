"""How ways take turns, what becomes of a way that fails, and what is compared with `eager`."""

from pathlib import Path

import pytest
import torch

from helpers import refuses, says
from vitzoo.apps.bench import turns
from vitzoo.apps.bench.turns import measure
from vitzoo.apps.bench.ways import Place
from vitzoo.apps.bench.worker import Job
from vitzoo.apps.embed.processes import ProcessEnded
from vitzoo.errors import InvalidOption, VitzooError

JOB = Job("", Place(Path("/none"), "cpu"), False, (1, 8), torch.zeros(16, 1, 4, 4), 2, "highest")
ALL = ["eager", "bf16", "onnxruntime"]


def results(names, rounds=9, job=JOB, seconds=1.0, report=lambda *_: None):
    rows, waited = measure(names, job, rounds, seconds, report)
    return {(row.way, row.batch): row for row in rows}, waited


def test_all_ways_take_turns_in_every_round_in_both_orders(fakes):
    results(ALL, rounds=6)
    assert [way for way, batch in fakes.calls if batch == 8] == (ALL + ALL[::-1]) * 3
    rounds = [{*fakes.calls[i : i + 6]} for i in range(0, 36, 6)]
    assert rounds == [{(way, batch) for way in ALL for batch in (1, 8)}] * 6
    assert sorted(fakes.ended) == sorted([*ALL, "onnxruntime"])  # one that wrote its files


def test_the_progress_counts_the_turns_and_names_the_ways(fakes):
    seen = []
    results(ALL, rounds=6, report=lambda *report: seen.append(report))
    ready = [text for done, _, text in seen[:7] if done == 0]
    assert [text.partition(":")[0] for text in ready[:6]] == [way for way in ALL for _ in "12"]
    assert ready[6] == "6 rounds of 3 ways, about 5 s"
    turns = [(i, 36, way) for i, (way, _) in enumerate(fakes.calls)]
    assert seen[7:] == [*turns, (36, 36, "")]


def test_a_network_that_is_slow_takes_longer_than_the_seconds(fakes):
    said = []
    fakes.seconds = 2.0
    results(["eager", "bf16"], rounds=6, report=lambda *report: said.append(report[2]))
    assert "6 rounds of 2 ways, about 50 s" in said


def test_the_turns_of_a_way_that_fails_are_not_counted(fakes):
    seen = []
    fakes.failing["bf16"] = ("turn", 2)
    results(["eager", "bf16"], rounds=6, report=lambda *report: seen.append(report[:2]))
    assert (seen[0], seen[-1]) == ((0, 24), (16, 16))


def test_ratios_are_taken_within_a_round(fakes):
    """The machine gets ten times slower half-way: the ratio stays, the speeds do not."""
    slow = [10.0 if number >= 9 else 100.0 for number in range(18)]
    fakes.speeds = {"eager": slow, "bf16": [1.5 * speed for speed in slow]}
    rows, _ = results(["eager", "bf16"])
    for batch in (1, 8):
        row = rows["bf16", batch]
        assert row.images_per_second_interval == (15, 150)
        assert row.ratio == pytest.approx(1.5)
        assert row.ratio_interval == pytest.approx((1.5, 1.5))
        assert row.recommended
        assert not rows["eager", batch].recommended
        assert (row.memory, row.top1) == (2**20, 1)


@pytest.mark.parametrize(
    ("low", "cosine", "recommended"),
    [(1.1, 1.0, True), (1.09, 1.0, False), (2.0, 0.9991, True), (2.0, 0.9989, False)],
)
def test_only_what_is_faster_and_the_same_is_recommended(fakes, turned, low, cosine, recommended):
    """Of nine numbers, the second smallest is the lower end of the interval."""
    fakes.speeds["bf16"] = [n for n in (50, low * 100, *[300] * 7) for _ in (1, 8)]
    fakes.outputs["bf16"] = turned(cosine)
    rows, _ = results(["eager", "bf16"])
    row = rows["bf16", 1]
    assert row.ratio == 3
    assert row.ratio_interval[0] == pytest.approx(low)
    assert row.cosine == pytest.approx(cosine, abs=1e-6)
    assert row.recommended is recommended


def test_a_network_of_another_library_is_not_recommended(fakes):
    fakes.speeds["timm"] = 1000.0
    rows, _ = results(["eager", "timm"])
    assert rows["timm", 1].ratio == 10
    assert not rows["timm", 1].recommended


def test_nothing_is_recommended_on_a_busy_machine(fakes):
    fakes.speeds["bf16"] = 500.0
    assert results(["eager", "bf16"])[0]["bf16", 1].recommended
    fakes.waited = 0.11
    rows, waited = results(["eager", "bf16"])
    assert waited == 0.11
    assert not rows["bf16", 1].recommended
    fakes.waited = None
    assert results(["eager", "bf16"])[1] is None


@pytest.mark.parametrize(
    ("failure", "parts"),
    [
        ("ImportError: no", ["ImportError: no"]),
        (ProcessEnded("signal SIGKILL"), ["signal SIGKILL", "memory was probably full"]),
        (ProcessEnded("exit code 3"), ["exit code 3"]),
        (("turn", 5), ["signal SIGKILL", "memory"]),
    ],
)
def test_a_way_that_fails_is_a_row_with_its_cause(fakes, failure, parts):
    fakes.failing["bf16"] = failure
    said = []
    rows, _ = results(ALL, report=lambda *report: said.append(report[2]))
    assert len(rows) == 5
    row = rows["bf16", None]
    says(row.error, *parts)
    assert (row.ratio, row.recommended) == (None, False)
    assert all(rows[way, batch].ratio == 1 for way in ("eager", "onnxruntime") for batch in (1, 8))
    assert fakes.ended.count("bf16") == 1
    assert ("bf16: failed" in said) is (failure != ("turn", 5))


def test_ways_whose_files_cannot_be_written_fail_with_that_cause(fakes):
    fakes.failing["timm"] = "no network for it"
    rows, _ = results(["eager", "timm", "timm-bf16"])
    assert rows["timm", None].error == rows["timm-bf16", None].error == "no network for it"
    assert fakes.written == []
    fakes.failing.clear()
    results(["eager", "timm", "timm-bf16"])
    assert fakes.written == ["timm"]  # once for all ways that use them


def test_without_eager_nothing_is_compared(fakes):
    for failure in ("MemoryError", ("turn", 3)):
        fakes.failing["eager"] = failure
        with refuses(VitzooError, "nothing can be compared", "a smaller batch"):
            results(ALL)
    assert sorted(set(fakes.ended)) == sorted(ALL)


def test_outputs_that_are_all_zero_are_refused(fakes):
    fakes.outputs["eager"] = torch.zeros(16, 10)
    with refuses(InvalidOption, "all zero", "trained weights", "--untrained"):
        results(ALL)


@pytest.mark.parametrize(
    ("outputs", "parts"),
    [
        (torch.full((16, 10), torch.nan), ["NaN or infinite"]),
        (torch.zeros(16, 3), ["(16, 3)", "expected (16, 10)"]),
    ],
)
def test_outputs_of_another_network_are_a_failure(fakes, outputs, parts):
    fakes.outputs["bf16"] = outputs
    says(results(["eager", "bf16"])[0]["bf16", None].error, *parts)


def test_a_network_without_classes_has_no_best_class(fakes):
    fakes.outputs["eager"] = fakes.outputs["bf16"] = torch.ones(16, 1)
    row = results(["eager", "bf16"])[0]["bf16", 1]
    assert (row.top1, row.cosine) == (None, 1)


@pytest.mark.usefixtures("fakes")
def test_compilers_keep_their_files_in_the_temporary_folder(monkeypatch):
    seen, start = [], turns.Process
    monkeypatch.setattr(
        turns, "Process", lambda m, env, **k: seen.append(env) or start(m, env, **k)
    )
    results(["eager"])
    assert {seen[0][name] for name in turns.FOLDERS} == {"/none"}
    assert {"TMPDIR", "TORCHINDUCTOR_CACHE_DIR"} < set(seen[0])


def test_an_interrupted_run_ends_its_processes(fakes):
    def interrupt(_done, _total, text):
        if "rounds" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results(["eager", "bf16"], report=interrupt)
    assert sorted(fakes.ended) == ["bf16", "eager"]
