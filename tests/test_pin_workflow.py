"""The workflow that pins: its steps as shell against a Hub on loopback, and the text it writes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml

import vitzoo
from helpers import says
from internals import reply
from vitzoo.testing import Hub

ROOT = Path(__file__).parents[1]
FIGURES = runpy.run_path(str(ROOT / "tests" / "update_figures.py"))
PINS = runpy.run_path(str(ROOT / "tests" / "update_pins.py"))
(JOB,) = yaml.safe_load((ROOT / ".github/workflows/pin.yml").read_text("utf-8"))["jobs"].values()
# Entries that the copy of the repository trusts on first use, whatever their pins are here.
FOUND = {"vit_s32:augreg_in21k": "core", "deit/deit_b16_384:fb_in1k": "deit"}
ABSENT, GATED = "vit_s16:augreg_in1k", "vit_b8:augreg_in21k"
FRESH = FOUND | {ABSENT: "core", GATED: "core"}
PIN = re.compile(r"^pin = .*\n(?:(?:revision|sha256|size|predicted_size) = .*\n)+", re.MULTILINE)
GH = """\
#!/bin/sh
[ "$2" != list ] || cat "$OPEN"
printf '%s ' "$@" >> "$CALLS"
echo >> "$CALLS"
"""


def row(weights, state="pinned", difference=0.0):
    pin = {"sha256": "ab" * 32, "size": 12345, "revision": "cd" * 20, "difference": difference}
    return {"weights": weights, "state": state, **pin}


def test_the_text_of_the_pull_request():
    rows = [row("net:a"), row("acme/net:b", "already"), row("net:c", "missing: no\n@file [x](y)")]
    rows += [row("net:d", "open"), row("net:e", difference=-3.5), row("net:f", difference=None)]
    text = PINS["described"](rows)
    says(text, "3 are new", "1 were known", "1 have none", "docs/releasing.md")
    says(text, "1 entries were not asked for", "Run the workflow again")
    table = text.rpartition("|---|\n")[2].splitlines()
    ends = " | `cdcdcdcd` | `abababab` |"
    assert table == [
        f"| `net:f` | 12,345 | {ends}",
        f"| `net:e` | 12,345 | -3.50 %{ends}",
        f"| `net:a` | 12,345 | +0.00 %{ends}",
    ]
    block = text.partition("~~~~text\n")[2].partition("~~~~\n")[0]
    assert block == "net:c: missing: no @file [x](y)\n"
    assert "Not pinned" not in PINS["described"](rows[:2])
    assert "ended early" not in PINS["described"](rows[:3])
    assert "| weights |" not in PINS["described"](rows[1:3])


def test_the_text_of_the_pull_request_is_no_longer_than_github_accepts():
    rows = [row(f"net:n{i}") for i in range(2000)]
    rows += [row(f"net:m{i}", "failed: " + "x" * 5000) for i in range(2000)]
    text = PINS["described"](rows)
    assert 50_000 < len(text) < 65_536
    assert text.count("\n\nand ") == 2
    shown = text.count("| `net:n")
    says(text, f"and {2000 - shown} more")


@pytest.fixture
def clone(tmp_path):
    """A copy of the repository that is installed editable, and has a remote."""
    folder, site = tmp_path / "clone", tmp_path / "site"
    ignore = shutil.ignore_patterns("__pycache__", "*.json.gz")
    for name in ("vitzoo", "plugins", "docs", "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
    shutil.copy(ROOT / "registry.toml", folder)
    for name, namespace in FRESH.items():
        unpin(folder, name, namespace)
    for name in {info.distribution for info in vitzoo.plugins()}:
        info = Path(distribution(name)._path)
        shutil.copytree(info, site / info.name)
        editable = {"dir_info": {"editable": True}, "url": folder.as_uri()}
        (site / info.name / "direct_url.json").write_text(json.dumps(editable))
    for command in (
        ["init", "--quiet", "--bare", "--initial-branch=main", tmp_path / "remote"],
        ["init", "--quiet", "--initial-branch=main", folder],
        ["-C", folder, "add", "--all"],
        ["-C", folder, "-c", "user.name=a", "-c", "user.email=a", "commit", "--quiet", "-m", "a"],
        ["-C", folder, "remote", "add", "origin", tmp_path / "remote"],
    ):
        git(*command)
    places = [folder, *(folder / "plugins").glob("vitzoo-*"), site, folder / "tests" / "helpers"]
    return folder, os.pathsep.join(map(str, places))


def unpin(folder, name, namespace):
    """Undo the pin of an entry in a copy of the repository, as if it had never had one."""
    variant, _, weights = name.partition(":")
    (manifest,) = FIGURES["manifests"]([namespace]).values()
    manifest = folder / manifest.relative_to(ROOT)
    head = f"[variants.{variant.rpartition('/')[2]}.weights.{weights}]"
    before, _, after = manifest.read_text().partition(head)
    after = PIN.sub('pin = "first-use"\npredicted_size = 9\n', after, count=1)
    manifest.write_text(before + head + after)
    released = folder / PINS["released"]()[namespace].relative_to(ROOT)
    rows = json.loads(released.read_text())
    rows[variant]["weights"][weights] = ""
    released.write_text(json.dumps(rows, indent=1) + "\n")


def git(*arguments):
    command = ["git", *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def hub():
    """A Hub with every file of the registry but one, and but a gated one."""
    files = {}
    for variant in vitzoo.variants():
        for weights in variant.weights:
            name = f"{weights.repo}/{weights.file}"
            sha256 = weights.sha256 or hashlib.sha256(name.encode()).hexdigest()
            lfs = {"size": weights.size or weights.predicted_size, "sha256": sha256}
            if f"{variant.name}:{weights.name}" not in (ABSENT, GATED):
                files.setdefault(weights.repo, {})[weights.file] = lfs
    gated = repo_of(GATED)

    def api(handler, path):
        repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        if repo not in files:
            status, code = (403, "GatedRepo") if repo == gated else (404, "RepoNotFound")
            reply(handler, status, {"X-Error-Code": code})
            return
        siblings = [{"rfilename": name, "lfs": lfs} for name, lfs in files[repo].items()]
        fixed = len(revision) == 40  # no branch and no pull request
        commit = revision if fixed else hashlib.sha1(repo.encode()).hexdigest()
        reply(handler, 200, (), json.dumps({"sha": commit, "siblings": siblings}).encode())

    with Hub() as server:
        server.api = api
        yield server


def repo_of(name):
    variant, _, weights = name.partition(":")
    return next(w.repo for w in vitzoo.describe(variant).weights if w.name == weights)


@pytest.fixture
def step(clone, hub, tmp_path):
    """Run a step of the job by its name; `gh` only notes how it is called."""
    folder, path = clone
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gh").write_text(GH)
    (programs / "gh").chmod(0o755)
    for name in ("open", "summary", "output", "calls"):
        (tmp_path / name).touch()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("VITZOO_", "GIT_", "PYTHON"))}
    env |= hub.environment(tmp_path / "home") | {
        "PATH": os.pathsep.join((str(programs), str(Path(sys.executable).parent), env["PATH"])),
        "PYTHONPATH": path,
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "OPEN": str(tmp_path / "open"),
        "CALLS": str(tmp_path / "calls"),
    }

    def run(name, code=0):
        (step,) = (step for step in JOB["steps"] if step.get("name", "").startswith(name))
        lines = (tmp_path / "output").read_text().splitlines()
        outputs = {f"steps.pin.outputs.{key}": text for key, text in (x.split("=") for x in lines)}
        given = {
            key: outputs.get(value.strip("${} "), "") for key, value in step.get("env", {}).items()
        }
        command = ["bash", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(
            command, cwd=folder, env=env | given, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.mark.long
@pytest.mark.workflows
def test_the_steps_open_a_pull_request_and_update_it(clone, step, tmp_path):
    folder, _ = clone
    remote = ("-C", tmp_path / "remote")
    step("Pin")
    step("Open")
    step("Fail")
    (tmp_path / "output").write_text("status=1\n")
    step("Fail", code=1)
    changed = git(*remote, "diff-tree", "--name-only", "-r", "pin-weights").split()
    deit = ("vitzoo_deit/registry.toml", "tests/released.json")
    expected = {"registry.toml", "tests/released.json", "docs/trust.md", "docs/families/core.md"}
    assert expected | {f"plugins/vitzoo-deit/{name}" for name in deit} <= {*changed}
    assert not any(name.endswith(".py") for name in changed)
    manifests = [folder / "registry.toml", *folder.glob("plugins/*/vitzoo_*/*.toml")]
    left = [file for file in manifests if 'pin = "first-use"' in file.read_text()]
    assert left == manifests[:1]
    rows = tomllib.loads(left[0].read_text())["variants"]
    names = [
        f"{variant}:{name}"
        for variant, table in rows.items()
        for name, entry in table.get("weights", {}).items()
        if entry["pin"] == "first-use"
    ]
    assert {*names} == {ABSENT, GATED}
    body = (tmp_path / "body.md").read_text()
    assert all(f"| `{name}` | " in body for name in FOUND)
    assert (tmp_path / "summary").read_text() == body
    says(body.partition("~~~~text")[2], f"{ABSENT}: missing", f"{GATED}: gated")
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split()[:2] for call in calls] == [["pr", "list"], ["pr", "create"]]
    says(calls[1], "--base main", "--head pin-weights", f"--body-file {tmp_path}/body.md")
    git("-C", folder, "switch", "main")
    git("-C", folder, "branch", "-D", "pin-weights")
    assert "nothing new" in step("Open")
    (folder / "registry.toml").write_text("another pin")
    (tmp_path / "open").write_text("7\n")
    step("Open")
    assert (tmp_path / "calls").read_text().splitlines()[-1].startswith("pr edit 7 --body-file ")
    assert git(*remote, "show", "pin-weights:registry.toml") == "another pin"


@pytest.mark.long
@pytest.mark.workflows
def test_without_a_hub_the_job_fails_with_the_cause(hub, step, tmp_path):
    hub.close()
    assert step("Pin", code=4) == ""
    assert not (tmp_path / "body.md").exists()
