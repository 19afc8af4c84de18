"""`.ci/nightly`: tiers, the paths that they guard, and what is noted of them. No tier runs here."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import says

ROOT = Path(__file__).parents[1]


@pytest.fixture
def nightly(tmp_path, monkeypatch):
    """The script over a tree with one guarded folder and one project; its tiers do nothing."""
    script = runpy.run_path(str(ROOT / ".ci" / "nightly"))
    names = script["main"].__globals__
    site, project = tmp_path / "site", tmp_path / "pyproject.toml"
    site.mkdir()
    site.joinpath("page.html").write_text("a page")
    project.write_text('[project]\nname = "net"\ndependencies = ["torch>=2"]\n')
    changed = {
        "ROOT": tmp_path,
        "NOTES": tmp_path / "nightly.json",
        "GUARDED": {"lowest": ["pyproject.toml"], "browser": ["site"], "thorough": []},
        "RUN": dict.fromkeys(script["RUN"], lambda: None),
    }
    for name, value in changed.items():
        monkeypatch.setitem(names, name, value)
    return names


def test_every_tier_runs_and_every_guarded_path_exists():
    script = runpy.run_path(str(ROOT / ".ci" / "nightly"))
    assert list(script["GUARDED"]) == list(script["RUN"])
    for tier, paths in script["GUARDED"].items():
        assert list(script["hashes"](tier)) == paths
    assert len(script["GUARDED"]["lowest"]) == 1 + len(list(ROOT.glob("plugins/*/pyproject.toml")))


def test_what_passed_is_noted_until_a_guarded_path_changes(nightly, capsys, tmp_path):
    assert nightly["main"]([]) == 0
    noted = json.loads((tmp_path / "nightly.json").read_text())
    assert list(noted) == ["lowest", "browser", "thorough"]
    assert nightly["stale"]() == []
    (tmp_path / "site" / "__pycache__").mkdir()
    (tmp_path / "site" / "__pycache__" / "a.pyc").write_text("")
    project = tmp_path / "pyproject.toml"
    project.write_text(project.read_text() + "[tool.pytest.ini_options]\n")
    assert nightly["stale"]() == []
    project.write_text(project.read_text().replace(">=2", ">=3"))
    (tmp_path / "site" / "page.html").rename(tmp_path / "site" / "index.html")
    capsys.readouterr()
    assert nightly["main"](["--check"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    lowest, browser = err.splitlines()
    says(lowest, "tier lowest", noted["lowest"]["date"], "pyproject.toml", ".ci/nightly lowest")
    says(browser, "tier browser", "site", ".ci/nightly browser")
    assert nightly["main"](["browser"]) == 0
    assert [line.split()[3] for line in nightly["stale"]()] == ["lowest"]


def test_a_tier_that_fails_is_not_noted_and_the_others_run(nightly, capsys, tmp_path):
    def fails():
        raise subprocess.CalledProcessError(1, "pytest")

    nightly["RUN"]["lowest"] = fails
    assert nightly["main"]([]) == 1
    says(capsys.readouterr().err, "failed: lowest")
    assert list(json.loads((tmp_path / "nightly.json").read_text())) == ["browser", "thorough"]


COLLECT = """
import json, sys
import pytest

print(json.dumps([int(pytest.main(one)) for one in json.loads(sys.argv[1])]))
"""


@pytest.mark.slow
def test_a_tier_of_one_file_selects_tests():
    """`addopts` deselects tests by their markers, and a test may get one of them."""
    script = runpy.run_path(str(ROOT / ".ci" / "nightly"))
    runs = []
    for tier in ("images", "configs", "refusals"):
        run = script["RUN"][tier]
        run.__globals__["pytest"] = lambda *given, **_: runs.append(
            ["-q", "--collect-only", "-p", "no:cacheprovider", *given]
        )
        run()
    command = [sys.executable, "-c", COLLECT, json.dumps(runs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert json.loads(done.stdout.splitlines()[-1]) == [0, 0, 0], done.stdout


@pytest.mark.parametrize(
    ("codes", "last"),
    [((0,), 0), ((1, 0), 0), ((1, 1), 1), ((2,), 2), ((1, 5), 5)],
    ids=["passes", "passes alone", "misses twice", "is interrupted", "failed to collect"],
)
def test_a_benchmark_that_fails_is_measured_once_more(nightly, monkeypatch, codes, last):
    runs, left = [], list(codes)

    def run(*arguments, **_):
        runs.append(arguments)
        if code := left.pop(0):
            raise subprocess.CalledProcessError(code, "pytest")

    monkeypatch.setitem(nightly, "pytest", run)
    if last:
        with pytest.raises(subprocess.CalledProcessError) as raised:
            nightly["measure"]("a.py")
        assert raised.value.returncode == last
    else:
        nightly["measure"]("a.py")
    assert left == []
    assert all(arguments[:3] == ("-m", "benchmark", "a.py") for arguments in runs)
    assert ["--last-failed" in arguments for arguments in runs] == [False, True][: len(codes)]


def test_names_that_are_wrong(nightly, capsys):
    assert nightly["main"](["brwser"]) == 2
    says(capsys.readouterr().err, "no tier 'brwser'", "lowest, browser, thorough")
    nightly["GUARDED"]["browser"] = ["no_folder"]
    with pytest.raises(FileNotFoundError, match=r"no_folder does not exist; correct GUARDED"):
        nightly["stale"]()
