"""The README: its order, its figures, and each of its commands and blocks, run in order.

VITZOO_README_PYTHON names the Python of the environment that command 1 made, as `.ci/run` does; the
default is the Python of the tests, whose environment has the same packages.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import safetensors.torch

import vitzoo
from helpers import says
from vitzoo.testing import Hub

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = Path(os.environ.get("VITZOO_README_PYTHON") or sys.executable)
PHOTOS = {"even": "02468", "odd": "13579"}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NETWORKS = ("dinov2/vit_s14", "vit_b16")  # which the README downloads


def test_it_is_short_and_has_code_and_install_early():
    assert len(TEXT.split()) <= 550
    assert len(TEXT.partition("```")[0].split()) < 100
    assert len(TEXT.partition("## Install")[0].split()) < 200
    assert [language for language, _ in BLOCK.findall(TEXT)] == ["console", "python", "sh", "sh"]


def test_it_counts_the_registry():
    variants = vitzoo.variants()
    weights = [weights for variant in variants for weights in variant.weights]
    with_weights = sum(bool(variant.weights) for variant in variants)
    hashed = sum(bool(row.sha256) for row in weights)
    core = sum(variant.namespace == "core" for variant in variants)
    measured = sum(row.evaluation == "ImageNet-1k validation" and bool(row.top1) for row in weights)
    says(
        TEXT,
        f"{with_weights} networks with published weights",
        f"all {len(variants)} networks",
        f"the {core} ViTs of the paper",
        f"Of {len(weights)} sets of weights, {hashed} have a SHA-256",
        f"parameters of {measured} sets of weights",
    )


def test_its_ratios_hold_for_the_latest_benchmarks():
    """A range in the README contains the turns of the last run."""
    data = json.loads((ROOT / "tests" / "facts" / "benchmarks.json").read_text(encoding="utf-8"))
    rows = {(row["title"], row["side"]): row.get("interval") for row in data["rows"]}
    ranges = re.findall(r"(\d+) to (\d+) times as fast", " ".join(TEXT.split()))
    measured = (
        rows["create(pretrained=True), vit_base_patch16_224", "timm"],
        rows["vitzoo list", "timm.list_models()"],
    )
    for (low, high), (lowest, highest) in zip(ranges, measured, strict=True):
        assert int(low) <= lowest + 0.5
        assert highest - 0.5 <= int(high)


@pytest.fixture
def stand_in() -> str:
    """The smallest network of vitzoo's parts whose published file has no hash in the registry."""
    usual = vitzoo.describe("vit_b16").builder
    every = (v for v in vitzoo.variants() if v.builder == usual and v.default_weights)
    found = min((v for v in every if v.default_weights.pin == "first-use"), key=lambda v: v.params)
    assert found.params < 10e6
    return found.name


@pytest.fixture
def folder(tmp_path, stand_in):
    """A folder with photographs and a Hub, and the variables for its commands."""
    for name, digits in PHOTOS.items():
        tmp_path.joinpath("photos", name).mkdir(parents=True)
        for scan in sorted((ROOT / "docs" / "examples" / "digits").glob("*.png")):
            if scan.name[6] in digits:
                shutil.copy(scan, tmp_path / "photos" / name)
    row, model = vitzoo.describe(stand_in).default_weights, vitzoo.create(stand_in)
    pushed = tmp_path / "pushed"
    vitzoo.push(model, "owner/repo", license="mit", folder=pushed, dry_run=True)
    with Hub() as hub:
        hub.add(row.repo, row.file, safetensors.torch.save(model.state_dict()))
        for file in pushed.iterdir():
            hub.add("owner/repo", file.name, file.read_bytes())
        yield tmp_path, os.environ | hub.environment(tmp_path / "home"), hub


@pytest.mark.docs
def test_each_command_and_block_runs_in_order(folder, stand_in):
    place, environment, hub = folder
    scripts = os.fspath(PYTHON.parent)
    environment |= {"PATH": os.pathsep.join((scripts, os.environ["PATH"]))}
    environment |= {"VIRTUAL_ENV": os.fspath(PYTHON.parents[1])}
    printed, ran = {}, Counter()
    for language, block in BLOCK.findall(TEXT):
        text = re.sub("|".join(NETWORKS), stand_in, block)
        if language == "python":
            commands = [[os.fspath(PYTHON), "-P", "-c", text]]
        elif language == "console":
            lines = (line.removeprefix("$ ") for line in text.splitlines())
            commands = [shlex.split(line, comments=True) for line in lines]
        else:  # installing is what .ci/readme does; what comes after it is run here
            last = shlex.split(text)
            commands = [last[last.index("vitzoo") :]] if "vitzoo" in last else []
        for command in commands:
            where = ROOT if "docs/examples/digits" in command else place
            done = subprocess.run(
                command, cwd=where, env=environment, capture_output=True, text=True, timeout=300
            )
            assert done.returncode == 0, (command, done.stderr)
            printed[tuple(command)] = done.stdout
            ran[language] += 1
    assert ran == {"console": 3, "python": 1, "sh": 1}
    listed, probed, _, _, predicted = printed.values()
    says(listed, "eva02/vit_b14_448")
    says(probed, "logistic regression")
    assert list(place.glob("vectors/*.parquet"))
    assert len(predicted.splitlines()) >= 10
    asked = {path.split("/resolve/")[0] for _, path, _ in hub.file_requests()}
    assert len(asked) == 2  # of the network and of owner/repo
