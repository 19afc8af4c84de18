"""Commands that install packages, in messages."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from helpers import says
from internals import from_clone, installing, pip, update

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _fresh():
    """Look for Python and for the clone again."""
    names = (installing._python, installing._clone)
    for function in names:
        function.cache_clear()
    yield
    for function in names:
        function.cache_clear()


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A folder with the programs `python3` and, if asked for, `python`, of which one runs."""

    def programs(*names, path=True, folder="bin"):
        bin_ = tmp_path / folder
        bin_.mkdir()
        bin_.joinpath("python3").touch(mode=0o755)
        for name in names:
            bin_.joinpath(name).symlink_to("python3")
        monkeypatch.setattr(sys, "executable", str(bin_ / "python3"))
        monkeypatch.setenv("PATH", str(bin_) if path else str(tmp_path))
        return bin_

    return programs


@pytest.mark.skipif(os.name == "nt", reason="programs have other names there")
def test_python_is_named_shortly_only_where_it_is_the_running_one(programs):
    programs("python")
    assert pip("install", "timm") == "python -m pip install timm"


@pytest.mark.skipif(os.name == "nt", reason="programs have other names there")
@pytest.mark.parametrize(
    ("names", "path"), [((), True), (("python",), False)], ids=["no python", "not on the path"]
)
def test_another_python_is_named_with_its_path(programs, names, path):
    bin_ = programs(*names, path=path)
    assert pip("install", "timm") == f"{bin_}/python3 -m pip install timm"


@pytest.mark.skipif(os.name == "nt", reason="programs have other names there")
def test_a_python_of_another_environment_is_another_one(programs, tmp_path, monkeypatch):
    """The `python` of a virtual environment links to the one that made it."""
    bin_ = programs("python")
    venv = tmp_path / "venv"
    venv.mkdir()
    venv.joinpath("python").symlink_to(bin_ / "python3")
    monkeypatch.setattr(sys, "executable", str(venv / "python"))
    assert pip("check") == f"{venv}/python -m pip check"


@pytest.mark.skipif(os.name == "nt", reason="other quotes there")
def test_words_are_quoted_for_the_shell(programs):
    bin_ = programs(path=False, folder="my programs")
    command = pip("install", "timm>=1.0")
    assert command == f"'{bin_}/python3' -m pip install 'timm>=1.0'"
    words = [f"{bin_}/python3", "-m", "pip", "install", "timm>=1.0"]
    assert shlex.split(command) == words


def test_windows_gets_double_quotes(monkeypatch):
    monkeypatch.setattr(sys, "executable", r"C:\my programs\python.exe")
    monkeypatch.setenv("PATH", "")
    command = pip("install", "timm>=1.0", "numpy")
    assert command == r'"C:\my programs\python.exe" -m pip install "timm>=1.0" numpy'


def test_a_command_changes_to_the_clone_that_vitzoo_is_from():
    command = from_clone("./plugins/vitzoo-dino")
    assert command == f"cd {ROOT} && {pip('install', './plugins/vitzoo-dino')}"
    says(update(), f"cd {ROOT} && git pull && ", pip("install", "."))


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """Let vitzoo be installed as a copy, and return what sets its `direct_url.json`."""
    monkeypatch.setattr(installing, "__file__", str(tmp_path / "site" / "vitzoo" / "x.py"))

    class Distribution:
        text = None

        def read_text(self, _):
            return self.text

    monkeypatch.setattr(installing.metadata, "distribution", lambda _: Distribution())
    return lambda text: setattr(Distribution, "text", text)


def test_a_copy_knows_the_clone_that_it_was_installed_from(wheel):
    wheel(json.dumps({"url": ROOT.as_uri(), "dir_info": {}}))
    assert from_clone(".").startswith(f"cd {ROOT} && ")


@pytest.mark.parametrize(
    "text",
    [
        None,  # from an index
        "{}",
        json.dumps({"url": "https://a.example/vitzoo.zip"}),
        json.dumps({"url": "file:///no/such/clone", "dir_info": {}}),  # it was removed
        json.dumps({"url": f"file:///{'x' * 300}", "dir_info": {}}),  # it cannot be looked up
    ],
)
def test_without_a_clone_the_message_says_that_one_is_needed(wheel, text):
    wheel(text)
    command = from_clone("-r", "plugins/all.txt")
    assert command.startswith(pip("install", "-r", "plugins/all.txt"))
    says(command, "in a clone of vitzoo's repository")
    assert " cd " not in command
