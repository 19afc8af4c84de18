"""Files of the working directory are data: no process of vitzoo imports one as a module."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitzoo
from plugin_files import write_distribution
from vitzoo.plugin.importing import search_path
from vitzoo.testing.checks.plugin import _worker, in_worker

pytestmark = pytest.mark.workflows

TRAP = """\
import posix
posix.close(posix.open({marker!r}, posix.O_CREAT | posix.O_WRONLY))
raise ImportError("a file of the working directory was imported")
"""
OTHERS = ("PIL", "click", "huggingface_hub", "numpy", "pluggy", "rtoml", "safetensors", "torch")
VITZOO = (Path(sys.executable).with_name("vitzoo"),)
MODULE = (sys.executable, "-m", "vitzoo")
TORCHRUN = (
    *(sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"),
    *("--nproc-per-node", "2"),
)
EMBED = ("embed", "vit_digits", "images", "--out", "out", "--workers", "2")
BENCH = ("bench", "vit_digits", "--ways", "eager", "--batch", "1", "--rounds", "6", "--seconds")
CONVERT = ("convert", "net.pt", "net.safetensors", "--from-pickle")


BY_NIGHT = (pytest.mark.workflows, pytest.mark.long)


@pytest.fixture(scope="module")
def of_python(tmp_path_factory):
    """The modules that `python -m` itself imports; nothing can keep them from the directory."""
    folder = tmp_path_factory.mktemp("other")
    (folder / "other.py").write_text("import sys; print(*sys.modules)")
    command = [sys.executable, "-P", "-m", "other"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


@pytest.fixture
def folder(tmp_path, of_python):
    """A working directory with images, a pickle, and a file for every module."""
    folder = tmp_path / "work"
    (folder / "images").mkdir(parents=True)
    for number in range(65):  # two parts
        Image.fromarray(np.full((8, 8), number, np.uint8)).save(folder / f"images/{number}.png")
    torch.save({"weight": torch.ones(2)}, folder / "net.pt")
    trap = TRAP.format(marker=str(tmp_path / "marker"))
    for name in (sys.stdlib_module_names | {*OTHERS}) - of_python:
        (folder / f"{name}.py").write_text(trap)
    return folder


@pytest.mark.parametrize(
    "command",
    [
        (*VITZOO, *EMBED),
        (*MODULE, "list", "-q"),
        pytest.param((*MODULE, *CONVERT), marks=BY_NIGHT),
        pytest.param((*VITZOO, *BENCH, "0.1"), marks=BY_NIGHT),
        pytest.param((*MODULE, *EMBED), marks=BY_NIGHT),
        pytest.param((*MODULE, "plugins", "check", "acme"), marks=BY_NIGHT),
        pytest.param((*TORCHRUN, "-m", "vitzoo", *EMBED), marks=BY_NIGHT),
        pytest.param((*TORCHRUN, "--no-python", *VITZOO, *EMBED), marks=BY_NIGHT),
    ],
    ids=lambda command: " ".join(map(str, command)).partition("/bin/")[2],
)
def test_no_process_imports_from_the_working_directory(command, folder, tmp_path):
    manifest = {"acme/__init__.py": "", "acme/registry.toml": "api = 1\n"}
    site = write_distribution(
        tmp_path / "site", "acme-parts", "acme = acme:registry.toml", manifest
    )
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert not (tmp_path / "marker").exists(), done.stderr
    assert done.returncode == 0, done.stderr


def test_another_process_gets_the_path_without_the_working_directory(monkeypatch):
    """`python -c` and notebooks have it as `''`; what names a folder stays, in order."""
    own = str(Path(vitzoo.__file__).parents[1])
    monkeypatch.setattr(sys, "path", ["", "/a", ".", "./", "src", Path("/b"), own, "/c"])
    assert search_path() == ["/a", "src", own, "/c"]
    monkeypatch.setattr(sys, "path", ["", "/a"])  # a clone that is not installed
    assert search_path() == ["/a", own]


@pytest.mark.parametrize(
    ("command", "stays"),
    [
        (["-m", "vitzoo"], False),
        (["-um", "vitzoo.__main__"], False),
        (["-umvitzoo"], False),
        (["-m", "other", "vitzoo"], True),
    ],
)
def test_only_the_module_vitzoo_leaves_the_working_directory(tmp_path, command, stays):
    """A module of the user, which imports vitzoo, keeps it, and so does PYTHONPATH."""
    code = "import sys; print(sys.path)\n"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "__init__.py").write_text("import vitzoo")
    (tmp_path / "other" / "__main__.py").write_text(code)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "click.py").write_text(code)  # a command imports it first
    for path, expected in (("site", 0), (f"site:{tmp_path}", 1)):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        found = ast.literal_eval(done.stdout.splitlines()[0])
        assert found.count(str(tmp_path)) == expected + stays
        assert str(tmp_path / "site") in found


def test_the_worker_of_the_conformance_tests(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    _worker.cache_clear()
    try:
        assert in_worker.__wrapped__("core")["error"] is None
    finally:
        _worker.cache_clear()
    assert not (tmp_path / "marker").exists()
