"""What a release needs: supported systems and metadata."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

import vitzoo
from helpers import says

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
PYTHON = "Programming Language :: Python :: "


def text(name: str) -> str:
    """Return a file of the repository as one line."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# Systems

ELSEWHERE = """
import sys
sys.modules["fcntl"] = None  # Windows does not have it
sys.platform, version, sys.argv, sys.orig_argv = {system!r}, {python!r}, {argv!r}, {argv!r}
sys.version_info = (*version, 0, "final", 0)
import vitzoo
"""
SYSTEMS = [("win32", (3, 13)), ("darwin", (3, 12)), ("linux", (3, 10)), ("win32", (3, 9))]


def elsewhere(system, python, argv=("script.py",)):
    """Import vitzoo on a pretended system in a new process."""
    code = ELSEWHERE.format(system=system, python=python, argv=list(argv))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(("system", "python"), SYSTEMS)
def test_another_system_gets_one_clear_message(system, python):
    done = elsewhere(system, python)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("ImportError: ")  # an optional vitzoo is left out, as ever
    given, wanted = f"Python {python[0]}.{python[1]} on {system}", "Linux and Python 3.11 or newer"
    fix = ("newer Python", "environment") if system == "linux" else ("WSL", "container")
    says(message, vitzoo.__version__, given, wanted, *fix)
    assert "During handling" not in done.stderr


@pytest.mark.parametrize(
    "argv", [("C:/venv/Scripts/vitzoo.exe", "list"), ("bin/vitzoo",), ("-m", "vitzoo", "list")]
)
def test_a_command_on_another_system_prints_one_line(argv):
    done = elsewhere("win32", (3, 13), [arg.rpartition("/")[2] for arg in argv])
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    says(line, "Python 3.13 on win32", "Linux and Python 3.11 or newer", "WSL")


def test_newer_versions_of_python_are_not_refused():
    """They work as soon as torch does; an upper bound would make pip choose an older vitzoo."""
    done = elsewhere("linux", (3, 99))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_distribution_states_what_it_runs_on(folder):
    stated = project(folder)
    assert stated["requires-python"] == ">=3.11"
    assert "Operating System :: POSIX :: Linux" in stated["classifiers"]
    listed = [c.removeprefix(PYTHON) for c in stated["classifiers"] if c.startswith(PYTHON)]
    torch = metadata("torch").get_all("Classifier")
    known = [c.removeprefix(PYTHON) for c in torch if re.fullmatch(rf"{PYTHON}3\.\d+", c)]
    assert "3.11" in known
    assert listed == ["3 :: Only", *(v for v in known if int(v[2:]) >= 11)]


def test_readme_states_the_versions_of_the_classifiers():
    listed = [c.removeprefix(PYTHON) for c in project(ROOT)["classifiers"] if c.startswith(PYTHON)]
    says(text("README.md"), f"Linux with Python {listed[1]} to {listed[-1]}")


# Metadata


def test_plugins_state_the_same_as_vitzoo():
    core = project(ROOT)
    for folder in FOLDERS[1:]:
        stated = project(folder)
        same = ("classifiers", "license", "license-files", "readme", "requires-python", "dynamic")
        assert {key: stated[key] for key in same} == {key: core[key] for key in same}, folder.name
        assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_extra_all_names_every_plugin():
    names = [project(folder)["name"] for folder in FOLDERS[1:]]
    assert sorted(project(ROOT)["optional-dependencies"]["all"]) == sorted(names)
